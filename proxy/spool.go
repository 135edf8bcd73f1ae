package proxy

import (
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/spool"
)

// shareLarge returns a response whose body is read into a temporary file for all clients of the call, or nil if it cannot be
// shared. The entry describes the response.
func (g *Gateway) shareLarge(a *attempt, resp *http.Response, e *cache.Entry) *http.Response {
	if !a.mayShareBody(e) {
		return nil
	}
	s := spool.New(resp.Body, resp.ContentLength, &spool.Buffer{}, func([]byte, bool) { a.call.Finish(coalesce.Ending{Result: coalesce.Private}) })
	g.shareThrough(a, s, e)
	if !s.ShareNow() {
		return nil
	}
	own := *resp
	own.Trailer, own.Body = nil, s.Leader()
	g.fillInBackground(a.record.ID, a.call, s)
	return &own
}

// mayShareBody reports whether the followers of the call may get a body before its end.
func (a *attempt) mayShareBody(e *cache.Entry) bool {
	return a.call != nil && a.graphQL == nil && e.Status == http.StatusOK && a.resultFor(e) == coalesce.Stored
}

// shareThrough lets the followers of the call read a spool after its bytes have moved to a file. The entry has no body.
func (g *Gateway) shareThrough(a *attempt, s *spool.Spool, e *cache.Entry) {
	id := a.record.ID
	share := func() {
		if a.last != nil && a.replacesStored(e.Status) {
			g.deleteStored(a)
		}
		forms := spool.NewForms(s, func(coded *spool.Spool) { g.fillInBackground(id, nil, coded) })
		a.call.SetStream(coalesce.Stream{Response: e, Length: s.Length(), Open: forms.Open, Release: forms.Release})
	}
	outgrown := func() { g.Cache.MarkUncacheable(a.predicts, a.key) } // the next clients do not share the body
	s.Share(&g.Background.files, share, outgrown)
}

// fillInBackground reads a body ahead of the client. While the call has followers, the read continues after a
// disconnect of the client.
func (g *Gateway) fillInBackground(id string, call *coalesce.Call, s *spool.Spool) {
	g.Background.running.Go(func() {
		defer context.AfterFunc(g.Background.ctx, call.Close)()
		defer func() {
			if p := recover(); p != nil { // net/http recovers only panics of handlers
				g.Log.Error("panic while reading a response", "request", id, "panic", p, "stack", string(debug.Stack()))
				s.Fail(errPanic)
				call.Finish(coalesce.Ending{Result: coalesce.Private})
			}
		}()
		s.Fill()
	})
}

// streamedResponse returns the response of a call in progress whose body the followers read while it arrives, or nil if the
// client may not use it.
func (g *Gateway) streamedResponse(a *attempt, c *coalesce.Call) *http.Response {
	stream := c.Stream()
	if !g.mayUseShared(a, stream.Response) {
		c.Leave()
		return nil
	}
	resp := g.entryResponse(a, stream.Response, time.Now())
	if resp.StatusCode == http.StatusNotModified {
		c.Leave()
		return resp
	}
	resp.Header.Del("Content-Length")
	var coding *contentcoding.Coding
	if resp.ContentLength = stream.Length; a.identityAsked {
		coding = a.selectCoding(resp.StatusCode, resp.Header, stream.Length)
	}
	if coding != nil {
		resp.ContentLength = -1
	} else if stream.Length >= 0 {
		resp.Header.Set("Content-Length", strconv.FormatInt(stream.Length, 10))
	}
	resp.Body = stream.Open(coding, c.Leave)
	return resp
}
