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
func (g *Gateway) reply(ex *exchange, h http.Header) {
	g.localize(ex, h)
	g.own(ex, inHeader(h, ownLines))
	if ex.prefer.applied != "" && ex.record.Waited > 0 {
		h.Set("Preference-Applied", ex.prefer.applied)
	}
}

// own sets the fields that are Weir's: the rate limit of the account, the
// cache's part in it, and the request's name in the logs.
func (g *Gateway) own(ex *exchange, into fields) {
	if ex.match.Operation != nil {
		g.rateHeaders(ex, into)
	}
	if ex.record.Cache != "" { // behind that of caches nearer to the origin
		into.add("Cache-Status", ex.record.Cache)
	}
	if ex.identity.Debug && ex.in.Header.Get(debugHeader) == "1" {
		into.set(debugHeader, ex.record.debug(ex.operation))
	}
	into.set(requestIDHeader, ex.record.ID)
}

const (
	requestIDHeader = "Weir-Request-Id"
	debugHeader     = "Weir-Debug"
)

// rateHeaders replaces what the upstream told of some request by what is true
// for this caller now: one set only, of the resource that this request counts
// against. RateLimit-Policy and RateLimit are as the drafts -08 to -11 of the IETF
// have them (limits.md section 9).
func (g *Gateway) rateHeaders(ex *exchange, into fields) {
	b, err := g.Ledger.Budget(ex.in.Context(), ex.identity.Caller.Account, ex.identity.Caller.Kind, ex.record.Resource)
	if err != nil {
		g.Log.DebugContext(ex.in.Context(), "no budget is known", "request", ex.record.ID, "error", err) // the ledger says once that it is lost
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
func (g *Gateway) replyFromEntry(ex *exchange, e *cache.Entry, now time.Time) {
	ex.record.Cache = hitStatus(e, now)
	h := ex.w.Header()
	status := entryFields(ex, e, now, entryInHeader(h))
	g.reply(ex, h)
	ex.w.WriteHeader(status)
	if status != http.StatusNotModified && ex.method != http.MethodHead {
		_, _ = ex.w.Write(e.Body) // a client that is gone shows in the record
	}
}

// replyPart writes the part of a fresh entry that is asked for, or 304, 416, or all
// of it, as If-None-Match, If-Range and Range have it.
func (g *Gateway) replyPart(ex *exchange, e *cache.Entry, now time.Time) {
	ex.record.Cache = hitStatus(e, now)
	h := ex.w.Header()
	into := entryInHeader(h)
	e.Fields(into.add)
	delete(h, "Content-Length")
	into.number("Age", int(e.Age(now)/time.Second))
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // not guessed
	}
	g.reply(ex, h)
	modified, _ := http.ParseTime(e.Field("Last-Modified")) // the zero time says nothing
	http.ServeContent(ex.w, ex.in, "", modified, bytes.NewReader(e.Body))
}

// hitStatus returns the Cache-Status of an answer that comes from the cache alone.
func hitStatus(e *cache.Entry, now time.Time) string {
	return "weir; hit; ttl=" + itoa(-int(e.Staleness(now)/time.Second))
}

// ofBody are the fields of an entry that a 304 does not repeat (RFC 9110 section 15.4.5).
var ofBody = map[string]bool{"Content-Type": true, "Content-Length": true, "Content-Encoding": true, "Content-Language": true}

// replaced are those that an entry may have come with, and Weir says itself.
var replaced = map[string]bool{"Content-Length": true, requestIDHeader: true, debugHeader: true}

// entryFields tells what this client gets of an entry beside its body, and returns
// the status: all of it, or 304 when its own validators say that it has it.
func entryFields(ex *exchange, e *cache.Entry, now time.Time, into fields) (status int) {
	status = e.Status
	modified := !e.NotModified(ex.header)
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
func entryResponse(ex *exchange, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: ex.in, Body: http.NoBody, Header: make(http.Header, 16)}
	resp.StatusCode = entryFields(ex, e, now, entryInHeader(resp.Header))
	if resp.StatusCode != http.StatusNotModified {
		resp.ContentLength = int64(len(e.Body))
		if ex.method != http.MethodHead {
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
func (g *Gateway) answerFromLedger(ex *exchange) bool {
	if ex.match.Operation.ID != rateLimitOperation || ex.cacheControl.Has("no-cache") {
		return false
	}
	body, err := g.rateLimitStatus(ex)
	if err != nil {
		return false // upstream knows
	}
	ex.record.Cache, ex.record.Outcome = "weir; hit; detail=ledger", "own"
	h := ex.w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", itoa(len(body)))
	g.reply(ex, h)
	ex.w.WriteHeader(http.StatusOK)
	if ex.method != http.MethodHead {
		_, _ = ex.w.Write(body)
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
func (g *Gateway) rateLimitStatus(ex *exchange) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"resources":{`)
	var core []byte
	for i, name := range policy.Resources() {
		budget, err := g.Ledger.Budget(ex.in.Context(), ex.identity.Caller.Account, ex.identity.Caller.Kind, name)
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
