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
	g.own(x, inHeader(h, ownLines))
	if x.prefer.applied != "" && x.record.Waited > 0 {
		h.Set("Preference-Applied", x.prefer.applied)
	}
}

// own sets the fields that are Weir's: the rate limit of the account, the
// cache's part in it, and the request's name in the logs.
func (g *Gateway) own(x *exchange, into fields) {
	if x.match.Operation != nil {
		g.rateHeaders(x, into)
	}
	if x.record.Cache != "" { // behind that of caches nearer to the origin
		into.add("Cache-Status", x.record.Cache)
	}
	if x.who.Debug && x.in.Header.Get(debugHeader) == "1" {
		into.set(debugHeader, x.record.debug(x.operation))
	}
	into.set(requestIDHeader, x.record.ID)
}

const (
	requestIDHeader = "Weir-Request-Id"
	debugHeader     = "Weir-Debug"
)

// rateHeaders replaces what the upstream told of some request by what is true
// for this caller now: one set only, of the resource that this request counts
// against. RateLimit-Policy and RateLimit are as the drafts -08 to -11 of the IETF
// have them (limits.md section 9).
func (g *Gateway) rateHeaders(x *exchange, into fields) {
	b, err := g.Ledger.Budget(x.in.Context(), x.who.Caller.Account, x.who.Caller.Kind, x.record.Resource)
	if err != nil {
		g.Log.DebugContext(x.in.Context(), "no budget is known", "request", x.record.ID, "error", err) // the ledger says once that it is lost
		return
	}
	into.number("X-Ratelimit-Limit", b.Limit)
	into.number("X-Ratelimit-Remaining", b.Remaining)
	into.number("X-Ratelimit-Used", b.Used)
	into.number("X-Ratelimit-Reset", int(b.Reset.Unix()))
	into.set("X-Ratelimit-Resource", b.Resource)
	if g.RateLimitFields {
		into.budget("Ratelimit-Policy", b.Resource, ";q=", b.Limit, ";w=", int(b.Window/time.Second))
		into.budget("Ratelimit", b.Resource, ";r=", b.Remaining, ";t=", max(0, int(time.Until(b.Reset)/time.Second)))
	}
}

// replyFromEntry writes a fresh entry, or 304 where the client has it.
func (g *Gateway) replyFromEntry(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = g.hit(e, now)
	h := x.w.Header()
	status := entryFields(x, e, now, entryInHeader(h))
	g.reply(x, h)
	x.w.WriteHeader(status)
	if status != http.StatusNotModified && x.method != http.MethodHead {
		_, _ = x.w.Write(e.Body) // a client that is gone shows in the record
	}
}

// replyPart writes the part of a fresh entry that is asked for, or 304, 416, or all
// of it, as If-None-Match, If-Range and Range have it.
func (g *Gateway) replyPart(x *exchange, e *cache.Entry, now time.Time) {
	x.record.Cache = g.hit(e, now)
	h := x.w.Header()
	into := entryInHeader(h)
	e.Fields(into.add)
	delete(h, "Content-Length")
	into.number("Age", int(e.Age(now)/time.Second))
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // not guessed
	}
	g.reply(x, h)
	modified, _ := http.ParseTime(e.Field("Last-Modified")) // the zero time says nothing
	http.ServeContent(x.w, x.in, "", modified, bytes.NewReader(e.Body))
}

// hit is the Cache-Status of an answer that comes from the cache alone.
func (g *Gateway) hit(e *cache.Entry, now time.Time) string {
	return g.hits.of(-int(e.Staleness(now) / time.Second))
}

// ofBody are the fields of an entry that a 304 does not repeat (RFC 9110 section 15.4.5).
var ofBody = map[string]bool{"Content-Type": true, "Content-Length": true, "Content-Encoding": true, "Content-Language": true}

// replaced are those that an entry may have come with, and Weir says itself.
var replaced = map[string]bool{"Content-Length": true, requestIDHeader: true, debugHeader: true}

// entryFields tells what this client gets of an entry beside its body, and returns
// the status: all of it, or 304 when its own validators say that it has it.
func entryFields(x *exchange, e *cache.Entry, now time.Time, into fields) (status int) {
	status = e.Status
	modified := !e.NotModified(x.header)
	if !modified {
		status = http.StatusNotModified
	}
	e.Fields(func(name, value string) {
		if !replaced[name] && (modified || !ofBody[name]) {
			into.add(name, value)
		}
	})
	if modified && status != http.StatusNoContent {
		into.number("Content-Length", len(e.Body))
	}
	into.number("Age", int(e.Age(now)/time.Second))
	return status
}

// entryResponse is an entry in the place of an upstream's answer.
func entryResponse(x *exchange, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: x.in, Body: http.NoBody, Header: make(http.Header, 16)}
	resp.StatusCode = entryFields(x, e, now, entryInHeader(resp.Header))
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
