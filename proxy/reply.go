package proxy

import (
	"bytes"
	"context"
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
	for _, name := range withheld {
		h.Del(name)
	}
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
	if x.record.Cache != "" {
		h.Add("Cache-Status", x.record.Cache) // behind that of caches nearer to the origin
	}
	h.Set(requestIDHeader, x.record.ID)
}

const requestIDHeader = "Weir-Request-Id"

// rateHeaders replaces what the upstream told of some request by what is true
// for this caller now: one set only, of the resource that this request counts
// against.
func (g *Gateway) rateHeaders(x *exchange, h http.Header) {
	b, err := g.Ledger.Budget(context.WithoutCancel(x.in.Context()), x.who.Caller.Account, x.who.Caller.Kind, x.record.Resource)
	if err != nil {
		g.Log.Debug("no budget is known", "request", x.record.ID, "error", err) // the ledger says once that it is lost
		return
	}
	h["X-Ratelimit-Limit"] = []string{itoa(b.Limit)}
	h["X-Ratelimit-Remaining"] = []string{itoa(b.Remaining)}
	h["X-Ratelimit-Used"] = []string{itoa(b.Used)}
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(b.Reset.Unix(), 10)}
	h["X-Ratelimit-Resource"] = []string{b.Resource}
	if g.RateLimitFields {
		rateLimitFields(h, b, time.Now())
	}
}

// rateLimitFields adds RateLimit-Policy and RateLimit as the drafts -08 to -11
// of the IETF have them (limits.md section 9): lists of one item, named as the
// resource.
func rateLimitFields(h http.Header, b limits.Budget, now time.Time) {
	name := strconv.Quote(b.Resource)
	h["Ratelimit-Policy"] = []string{name + ";q=" + itoa(b.Limit) + ";w=" + itoa(int(b.Window/time.Second))}
	h["Ratelimit"] = []string{name + ";r=" + itoa(b.Remaining) + ";t=" + itoa(max(0, int(b.Reset.Sub(now)/time.Second)))}
}

// replyFromEntry writes a fresh entry, or 304 where the client has it.
func (g *Gateway) replyFromEntry(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = hit(e, now)
	status, header := entryHeader(x, e, now)
	h := x.w.Header()
	for name, values := range header {
		h[name] = values
	}
	g.reply(x, h)
	x.w.WriteHeader(status)
	if status != http.StatusNotModified && x.method != http.MethodHead {
		_, _ = x.w.Write(e.Body) // a client that is gone shows in the record
	}
}

// replyPart writes the part of a fresh entry that is asked for, or 304, 416, or all
// of it, as If-None-Match, If-Range and Range have it.
func (g *Gateway) replyPart(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = hit(e, now)
	h := x.w.Header()
	for name, values := range e.Header {
		if name != "Content-Length" {
			h[name] = values
		}
	}
	h["Age"] = []string{itoa(int(e.Age(now) / time.Second))}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // not guessed
	}
	g.reply(x, h)
	modified, _ := http.ParseTime(e.Header.Get("Last-Modified")) // the zero time says nothing
	http.ServeContent(x.w, x.in, "", modified, bytes.NewReader(e.Body))
}

// hit is the Cache-Status of an answer that comes from the cache alone.
func hit(e *cache.Entry, now time.Time) string {
	return "weir; hit; ttl=" + itoa(-int(e.Staleness(now)/time.Second))
}

// entryHeader is what this client gets of an entry beside its body: all of it,
// or 304 when its own validators say that it has it.
func entryHeader(x *exchange, e *cache.Entry, now time.Time) (status int, h http.Header) {
	status, h = e.Status, e.Header.Clone()
	if e.NotModified(x.header) {
		status = http.StatusNotModified
		// What describes the body is not repeated (RFC 9110 section 15.4.5).
		for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding", "Content-Language"} {
			h.Del(name)
		}
	} else if status != http.StatusNoContent {
		h["Content-Length"] = []string{itoa(len(e.Body))}
	}
	h["Age"] = []string{itoa(int(e.Age(now) / time.Second))}
	return status, h
}

// entryResponse is an entry in the place of an upstream's answer.
func entryResponse(x *exchange, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: x.in, Body: http.NoBody}
	resp.StatusCode, resp.Header = entryHeader(x, e, now)
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
	x.record.Cache = "weir; hit; detail=ledger"
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
