package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// reply finishes the header of every answer that came from the cache or the
// upstream (journey, step 11).
func (g *Gateway) reply(x *exchange, h http.Header) {
	g.localize(x, h)
	g.own(x, h)
	if x.prefer.applied != "" && x.record.Waited > 0 {
		h.Set("Preference-Applied", x.prefer.applied)
	}
}

// own sets the fields that are Weir's: the rate limit of the account, the
// cache's part in it, and the request's name in the logs.
func (g *Gateway) own(x *exchange, h http.Header) {
	if x.match.Operation != nil {
		g.rateHeaders(x, h)
	}
	if x.record.Cache != "" { // behind that of caches nearer to the origin
		h["Cache-Status"] = append(h["Cache-Status"], x.record.Cache)
	}
	if x.who.Debug && x.in.Header.Get(debugHeader) == "1" {
		h[debugHeader] = []string{x.record.debug(x.operation)}
	}
	x.lines[0] = x.record.ID
	h[requestIDHeader] = x.lines[0:1:1]
}

const (
	requestIDHeader = "Weir-Request-Id"
	debugHeader     = "Weir-Debug"
)

// rateHeaders replaces what the upstream told of some request by what is true
// for this caller now: one set only, of the resource that this request counts
// against.
func (g *Gateway) rateHeaders(x *exchange, h http.Header) {
	b, err := g.Ledger.Budget(x.in.Context(), x.who.Caller.Account, x.who.Caller.Kind, x.record.Resource)
	if err != nil {
		g.Log.DebugContext(x.in.Context(), "no budget is known", "request", x.record.ID, "error", err) // the ledger says once that it is lost
		return
	}
	h["X-Ratelimit-Limit"] = x.written.plain.of(b.Limit)
	h["X-Ratelimit-Remaining"] = x.written.plain.of(b.Remaining)
	h["X-Ratelimit-Used"] = x.written.plain.of(b.Used)
	h["X-Ratelimit-Reset"] = x.written.plain.of(int(b.Reset.Unix()))
	x.lines[1] = b.Resource
	h["X-Ratelimit-Resource"] = x.lines[1:2:2]
	if g.RateLimitFields {
		x.written.rateLimitFields(h, b, time.Now())
	}
}

// rateLimitFields adds RateLimit-Policy and RateLimit as the drafts -08 to -11
// of the IETF have them (limits.md section 9): lists of one item, named as the
// resource.
func (w *written) rateLimitFields(h http.Header, b limits.Budget, now time.Time) {
	h["Ratelimit-Policy"] = w.policies.of(b.Resource, b.Limit, int(b.Window/time.Second))
	h["Ratelimit"] = w.left.of(b.Resource, b.Remaining, max(0, int(b.Reset.Sub(now)/time.Second)))
}

// replyFromEntry writes a fresh entry, or 304 where the client has it.
func (g *Gateway) replyFromEntry(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = x.hit(e, now)
	h := x.w.Header()
	status := entryFields(x, e, now, h)
	g.reply(x, h)
	x.w.WriteHeader(status)
	if status != http.StatusNotModified && x.method != http.MethodHead {
		_, _ = x.w.Write(e.Body) // a client that is gone shows in the record
	}
}

// replyPart writes the part of a fresh entry that is asked for, or 304, 416, or all
// of it, as If-None-Match, If-Range and Range have it.
func (g *Gateway) replyPart(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = x.hit(e, now)
	h := x.w.Header()
	e.CopyFields(h)
	delete(h, "Content-Length")
	h["Age"] = x.written.plain.of(int(e.Age(now) / time.Second))
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // not guessed
	}
	g.reply(x, h)
	modified, _ := http.ParseTime(e.Field("Last-Modified")) // the zero time says nothing
	http.ServeContent(x.w, x.in, "", modified, bytes.NewReader(e.Body))
}

// hit is the Cache-Status of an answer that comes from the cache alone.
func (x *exchange) hit(e *cache.Entry, now time.Time) string {
	return x.written.hits.of(-int(e.Staleness(now) / time.Second))[0]
}

// entryFields puts into h what this client gets of an entry beside its body, and returns
// the status: all of it, or 304 when its own validators say that it has it. The values
// are the entry's own: nobody writes to them.
func entryFields(x *exchange, e *cache.Entry, now time.Time, h http.Header) (status int) {
	status = e.Status
	e.CopyFields(h)
	if e.NotModified(x.header) {
		status = http.StatusNotModified
		// What describes the body is not repeated (RFC 9110 section 15.4.5).
		for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding", "Content-Language"} {
			delete(h, name)
		}
	} else if status != http.StatusNoContent {
		h["Content-Length"] = x.written.plain.of(len(e.Body))
	}
	h["Age"] = x.written.plain.of(int(e.Age(now) / time.Second))
	return status
}

// entryResponse is an entry in the place of an upstream's answer.
func entryResponse(x *exchange, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: x.in, Body: http.NoBody, Header: make(http.Header, 16)}
	resp.StatusCode = entryFields(x, e, now, resp.Header)
	if resp.StatusCode != http.StatusNotModified {
		resp.ContentLength = int64(len(e.Body))
		if x.method != http.MethodHead {
			resp.Body = io.NopCloser(bytes.NewReader(e.Body))
		}
	}
	return resp
}

// rateLimitOperation is the one operation that the ledger answers.
const rateLimitOperation = "rate-limit/get"

// answerFromLedger answers the rate limit status from what is known (design
// section 4) and reports whether it did. no-cache asks upstream, and so does a
// ledger that cannot tell.
func (g *Gateway) answerFromLedger(x *exchange) bool {
	if x.match.Operation.ID != rateLimitOperation || x.ask.Has("no-cache") {
		return false
	}
	body, err := g.rateLimitStatus(x)
	if err != nil {
		return false // upstream knows
	}
	x.record.Cache, x.record.Outcome = "weir; hit; detail=ledger", "own"
	h := x.w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", itoa(len(body)))
	g.reply(x, h)
	x.w.WriteHeader(http.StatusOK)
	if x.method != http.MethodHead {
		_, _ = x.w.Write(body)
	}
	return true
}

// member is one resource of the rate limit status (Document B section 2.6).
type member struct {
	Limit     int   `json:"limit"`
	Used      int   `json:"used"`
	Remaining int   `json:"remaining"`
	Reset     int64 `json:"reset"`
}

// rateLimitStatus writes the members in the order of the documents, and the
// deprecated top-level rate.
func (g *Gateway) rateLimitStatus(x *exchange) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"resources":{`)
	var core []byte
	for i, name := range policy.Resources() {
		budget, err := g.Ledger.Budget(x.in.Context(), x.who.Caller.Account, x.who.Caller.Kind, name)
		if err != nil {
			return nil, err
		}
		text := memberOf(budget)
		if name == policy.Core {
			core = text
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(name) + ":")
		b.Write(text)
	}
	b.WriteString(`},"rate":`)
	b.Write(core)
	b.WriteByte('}')
	return b.Bytes(), nil
}

func memberOf(b limits.Budget) []byte {
	text, err := json.Marshal(member{b.Limit, b.Used, b.Remaining, b.Reset.Unix()})
	if err != nil {
		panic(err) // four numbers
	}
	return text
}

func itoa(n int) string { return strconv.Itoa(n) }

// seconds is a delay for Retry-After: whole seconds, one at least.
func seconds(d time.Duration) string {
	return itoa(max(1, int((d+time.Second-1)/time.Second)))
}
