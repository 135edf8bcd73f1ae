package proxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

const (
	requestIDHeader     = "Weir-Request-Id"
	debugHeader         = "Weir-Debug"
	traceresponseHeader = "Traceresponse"
)

// finishHeader completes the header of a response that came from the cache or the upstream.
func (g *Gateway) finishHeader(ex *exchange, status int, h http.Header) {
	g.learnNumber(ex.question, h)
	g.localize(ex, h)
	g.setWeirHeaders(ex, status, h)
	if ex.prefer.applied != "" && ex.record.Waited > 0 {
		h.Set("Preference-Applied", ex.prefer.applied)
	}
}

// setWeirHeaders sets the fields of every response: the rate limit of the account, Cache-Status and the request ID. If
// the request is traced, it also sets traceresponse (W3C Trace Context, level 2) for authorized clients.
func (g *Gateway) setWeirHeaders(ex *exchange, status int, h http.Header) {
	if ex.question != nil && status != http.StatusUnauthorized { // a refused credential has no budget
		g.setRateLimitHeaders(ex, h)
	}
	h["Cache-Status"] = append(h["Cache-Status"], ex.record.Cache.String()) // after the members of caches closer to the upstream
	if ex.debug && ex.in.Header.Get(debugHeader) == "1" {
		h.Set(debugHeader, ex.record.debug(ex.question))
	}
	if trace := ex.span.SpanContext(); ex.authorized && ex.span.IsRecording() {
		h.Set(traceresponseHeader, "00-"+trace.TraceID().String()+"-"+trace.SpanID().String()+"-"+trace.TraceFlags().String())
	}
	h.Set(requestIDHeader, ex.record.ID)
}

var rateLimitFields = [...]string{
	"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Used", "X-Ratelimit-Reset", "X-Ratelimit-Resource",
}

// setRateLimitHeaders replaces the upstream's rate limit fields by the current budget of the caller's account for the
// request's resource, as far as this process knows it: a hit must not wait for the ledger's store. RateLimit-Policy and
// RateLimit follow the IETF drafts -08 to -11 (limits.md section 9).
func (g *Gateway) setRateLimitHeaders(ex *exchange, h http.Header) {
	b, known := g.Ledger.Budget(ex.question.identity.Caller, ex.record.Resource)
	if !known || b.Unlimited {
		return // the upstream's own fields, if any, are unchanged
	}
	values := []string{
		strconv.Itoa(b.Limit), strconv.Itoa(b.Remaining), strconv.Itoa(b.Used), strconv.FormatInt(b.Reset.Unix(), 10), b.Resource,
	}
	for i, name := range rateLimitFields {
		h[name] = values[i : i+1 : i+1]
	}
	if g.RateLimitFields {
		name, window := strconv.Quote(b.Resource), int(b.Window/time.Second)
		reset := max(0, int(time.Until(b.Reset)/time.Second))
		h.Set("Ratelimit-Policy", name+";q="+strconv.Itoa(b.Limit)+";w="+strconv.Itoa(window))
		h.Set("Ratelimit", name+";r="+strconv.Itoa(b.Remaining)+";t="+strconv.Itoa(reset))
	}
}

// replyFromEntry writes a stored response, which may be stale, or 304 if the client's validators match. For a range
// request, Range and If-Range select a range, 416 or the whole response.
func (g *Gateway) replyFromEntry(a *attempt, e *cache.Entry, now time.Time) {
	a.result.cache = g.hitStatus(a, e, now)
	a.adopt(a)
	h := a.w.Header()
	status := copyEntryHeader(a, e, now, h)
	body := g.storedContent(a, e, status, h)
	g.finishHeader(a.exchange, status, h)
	if a.ranged && status == http.StatusOK {
		h.Del("Content-Length")
		if h["Content-Type"] == nil {
			h["Content-Type"] = nil // prevents ServeContent from guessing
		}
		in := a.in
		if wanted := in.Header.Get("Range"); cache.Satisfiable(wanted) != wanted {
			in = in.Clone(in.Context())
			in.Header.Set("Range", cmp.Or(cache.Satisfiable(wanted), beyond))
		}
		http.ServeContent(a.w, in, "", e.LastModified(), bytes.NewReader(e.Body)) // ignores the zero time
		return
	}
	a.w.WriteHeader(status)
	if status != http.StatusNotModified && a.method != http.MethodHead {
		_, _ = a.w.Write(body) // the record shows an incomplete write
	}
}

// beyond is a range that no stored response contains.
const beyond = "bytes=99999999999-"

// representationFields are omitted from a 304 (RFC 9110 section 15.4.5).
var representationFields = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Content-Encoding": true, "Content-Language": true,
}

// copyEntryHeader copies the header of a stored response, without the fields that Weir sets itself. The returned status
// is 304 if the client's validators match, and otherwise the stored status.
func copyEntryHeader(a *attempt, e *cache.Entry, now time.Time, h http.Header) (status int) {
	status = e.Status
	notModified := e.NotModified(a.header)
	if notModified {
		status = http.StatusNotModified
	}
	for name, values := range e.Header {
		switch {
		case name == "Content-Length", name == requestIDHeader, name == debugHeader:
		case notModified && representationFields[name]:
		default:
			h[name] = values[:len(values):len(values)] // an append then copies the slice
		}
	}
	if !notModified && status != http.StatusNoContent {
		h.Set("Content-Length", strconv.Itoa(len(e.Body)))
	}
	h.Set("Age", strconv.Itoa(int(e.Age(now)/time.Second)))
	return status
}

// entryResponse returns a stored response as an [http.Response].
func (g *Gateway) entryResponse(a *attempt, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: a.in, Body: http.NoBody, Header: http.Header{}}
	resp.StatusCode = copyEntryHeader(a, e, now, resp.Header)
	body := g.storedContent(a, e, resp.StatusCode, resp.Header)
	if resp.StatusCode != http.StatusNotModified {
		resp.ContentLength = int64(len(body))
		if a.method != http.MethodHead {
			resp.Body = io.NopCloser(bytes.NewReader(body))
		}
	}
	return resp
}

// rateLimitOperation is the operation that Weir answers from the ledger.
const rateLimitOperation = "rate-limit/get"

// answerFromLedger writes the rate limit status from the ledger, and reports whether a response was written. These
// requests are forwarded instead:
//   - a request with no-cache
//   - a request with a credential that the upstream refused, and with a credential of the client until the upstream has
//     accepted it
//   - a request for an API version that Weir does not know
//   - every request while the ledger is unavailable, or the upstream has no limits
func (g *Gateway) answerFromLedger(a *attempt) bool {
	if a.match.Operation.ID != rateLimitOperation || a.cacheControl.Has("no-cache") {
		return false
	}
	caller := a.identity.Caller
	if caller.Kind != policy.Unauthenticated && !g.tokens.Has(caller.Class, a.identity.Held) {
		return false
	}
	version := cmp.Or(a.in.Header.Get(g.Dialect.VersionHeader), g.Dialect.Version)
	if !slices.Contains(g.Dialect.Versions, version) {
		return false
	}
	body, err := g.rateLimitStatus(a, version < g.Dialect.NoRateSince)
	if err != nil || body == "" {
		return false
	}
	a.result.cache = CacheStatus{Hit: true, Detail: "ledger", Own: true}
	a.adopt(a)
	sum := sha256.Sum256([]byte(body))
	status := &cache.Entry{Status: http.StatusOK, Body: []byte(body), Answered: time.Now(), Header: http.Header{
		"Cache-Control": {"no-cache"}, "Content-Type": {"application/json; charset=utf-8"},
		"Etag": {strconv.Quote(hex.EncodeToString(sum[:16]))},
	}}
	h := a.w.Header()
	code := copyEntryHeader(a, status, status.Answered, h)
	h.Del("Age") // the status is not a stored response
	g.allowOrigins(h)
	g.finishHeader(a.exchange, code, h)
	a.w.WriteHeader(code)
	if code == http.StatusOK && a.method != http.MethodHead {
		_, _ = io.WriteString(a.w, body)
	}
	return true
}

// rateLimitStatus returns the body of the rate limit status. The body contains the resources of the dialect in the order
// of the API's documents (Document B section 2.6), then the resources that the upstream has named for the account, and
// withRate the deprecated top-level rate. If a resource is unlimited, the status is empty.
func (g *Gateway) rateLimitStatus(a *attempt, withRate bool) (string, error) {
	ctx, caller := a.in.Context(), a.identity.Caller
	names := g.Dialect.Resources()
	named, err := g.Ledger.Resources(ctx, caller.Account)
	if err != nil {
		return "", err
	}
	for _, name := range named {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var resources []string
	var core string
	for _, name := range names {
		b, _ := g.Ledger.Budget(caller, name)
		if b.Unlimited {
			return "", nil
		}
		budget := fmt.Sprintf(`{"limit":%d,"used":%d,"remaining":%d,"reset":%d}`, b.Limit, b.Used, b.Remaining, b.Reset.Unix())
		resources = append(resources, strconv.Quote(name)+":"+budget)
		if name == policy.Core {
			core = budget
		}
	}
	body := `{"resources":{` + strings.Join(resources, ",") + "}"
	if withRate {
		body += `,"rate":` + core
	}
	return body + "}", nil
}

// retryAfter formats a delay for Retry-After in whole seconds, rounded up, at least 1.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int((d+time.Second-1)/time.Second)))
}
