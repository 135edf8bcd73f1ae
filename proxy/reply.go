package proxy

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/negotiation"
	"github.com/weirgate/weir/proxy/record"
)

// replyFromEntry writes a stored response, which may be stale, or 304 if the client's validators match. For a range
// request, Range and If-Range select a range, 416 or the whole response.
func (g *Gateway) replyFromEntry(a *attempt, e *cache.Entry, now time.Time) {
	a.result.cache = g.hitStatus(a, e, now)
	a.publish()
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
		http.ServeContent(&a.w, in, "", e.LastModified(), bytes.NewReader(e.Body)) // ignores the zero time
		return
	}
	a.w.WriteHeader(status)
	switch {
	case status == http.StatusNotModified || a.method == http.MethodHead:
	case body == nil && e.Packed != nil:
		_, _ = io.Copy(&a.w, e.Unpack())
	default:
		_, _ = a.w.Write(body) // the record shows an incomplete write
	}
}

// publish makes the result of the attempt the result of its exchange.
func (a *attempt) publish() {
	ex := a.exchange
	ex.question, ex.lateLimit = a.question, a.lateLimit
	r, from := ex.record, &a.result
	r.Account, r.Resource, r.Cache, r.Error = from.account, from.resource, from.cache, from.err
	r.Limited, r.LimitAnswer, r.OutsideRange = from.limited, from.limitAnswer, from.outsideRange
}

// hitStatus returns the status of a stored response that answers the question without a request.
func (g *Gateway) hitStatus(a *attempt, e *cache.Entry, now time.Time) record.CacheStatus {
	if a.current {
		return record.CacheStatus{Hit: true, TTL: int((g.WebhookFresh - e.Age(now)) / time.Second), HasTTL: true, Detail: "webhook"}
	}
	s := record.CacheStatus{Hit: true}
	s.SetTTL(e, now)
	s.SetSuspect(e.Suspect)
	return s
}

// beyond is a range that no stored response contains.
const beyond = "bytes=99999999999-"

// copyEntryHeader copies the header of a stored response, with Age and Content-Length of the reply. The returned status
// is 304 if the client's validators match, and otherwise the stored status.
func copyEntryHeader(a *attempt, e *cache.Entry, now time.Time, h http.Header) (status int) {
	status = e.Status
	notModified := e.NotModified(a.Header)
	if notModified {
		status = http.StatusNotModified
	}
	otherContent := notModified || a.method == http.MethodHead || a.ranged && status == http.StatusOK
	for name, values := range e.Header {
		switch {
		case name == "Content-Length", name == requestIDHeader, name == debugHeader:
		case otherContent && cache.IsContentDigest(name):
		case notModified && representationFields[name]:
		default:
			h[name] = values[:len(values):len(values)] // an append then copies the slice
		}
	}
	numbers := []string{strconv.Itoa(int(e.Age(now) / time.Second)), ""}
	h["Age"] = numbers[:1:1]
	if !notModified && status != http.StatusNoContent {
		numbers[1] = strconv.FormatInt(e.Length(), 10)
		h["Content-Length"] = numbers[1:]
	}
	return status
}

// representationFields are omitted from a 304 (RFC 9110 section 15.4.5).
var representationFields = map[string]bool{
	"Content-Type": true, "Content-Length": true, "Content-Encoding": true, "Content-Language": true,
}

// storedContent returns the body of a stored response in the content coding of the client, and sets the fields in h. The body is
// nil for the identity form of a packed entry.
func (g *Gateway) storedContent(a *attempt, e *cache.Entry, status int, h http.Header) []byte {
	var offered []*contentcoding.Coding
	if e.Packed != nil {
		offered = []*contentcoding.Coding{contentcoding.Gzip}
	}
	c := a.selectCoding(status, h, e.Length(), offered...)
	if c == nil {
		return e.Body
	}
	body := e.Packed
	if body == nil {
		body = g.Cache.Coded(a.key, e, c)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	return body
}

// selectCoding returns the content coding for a response whose identity form has this length, or nil for identity.
func (a *attempt) selectCoding(status int, h http.Header, length int64, offered ...*contentcoding.Coding) *contentcoding.Coding {
	c := negotiation.Client{AcceptEncoding: a.acceptEncoding, IfNoneMatch: a.in.Header["If-None-Match"], CacheControl: a.cacheControl, Ranged: a.ranged}
	return c.SelectCoding(status, h, length, offered...)
}

const (
	requestIDHeader = "Weir-Request-Id"
	debugHeader     = "Weir-Debug"
	// exposedFields are the response fields that programs of other sites may read, besides those of the dialect.
	exposedFields = "ETag, Link, Location, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, X-RateLimit-Resource, X-RateLimit-Reset, " +
		"X-OAuth-Scopes, X-Accepted-OAuth-Scopes, X-Poll-Interval, Deprecation, Sunset, Cache-Status, " + requestIDHeader + ", " + debugHeader
)

// finishHeader completes the header of a response that came from the cache or the upstream.
func (g *Gateway) finishHeader(ex *exchange, status int, h http.Header) {
	if ex.question.named != "" {
		g.learnNumber(ex.question, h)
	}
	g.localize(ex, h)
	g.setWeirHeaders(ex, status, h)
	if ex.prefer.Applied != "" && ex.record.Waited > 0 {
		h.Set("Preference-Applied", ex.prefer.Applied)
	}
}

// localize replaces the upstream by the gateway in the URLs of a response.
func (g *Gateway) localize(ex *exchange, h http.Header) {
	if names.HaveURLs(h) {
		g.urls.Localize(h, g.TrustedProxies.Origin(ex.in), ex.prefix)
	}
}

// setWeirHeaders sets the fields of every response: the rate limit of the account, Cache-Status and the request ID. If
// the request is traced, it also sets traceresponse (W3C Trace Context, level 2) for authorized clients.
func (g *Gateway) setWeirHeaders(ex *exchange, status int, h http.Header) {
	values := make([]string, 2+len(rateLimitFields)) // of all fields, in one allocation
	values[0], values[1] = ex.record.Cache.String(), ex.record.ID
	if ex.question != nil && status != http.StatusUnauthorized { // a refused credential has no budget
		g.setRateLimitHeaders(ex, h, values[2:])
	}
	h[requestIDHeader] = values[1:2:2]
	if earlier := h["Cache-Status"]; len(earlier) > 0 { // of caches closer to the upstream
		h["Cache-Status"] = append(earlier, values[0])
	} else {
		h["Cache-Status"] = values[:1:1]
	}
	if ex.debug && ex.in.Header.Get(debugHeader) == "1" {
		var op *policy.Operation
		if ex.question != nil {
			op = ex.question.operation
		}
		h.Set(debugHeader, ex.record.Debug(op, g.Ledger.Canonical(ex.record.Account)))
	}
	if value := ex.trace.Traceresponse(); ex.authorized && value != "" {
		h.Set(fields.Traceresponse, value)
	}
}

var rateLimitFields = [...]string{
	"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Used", "X-Ratelimit-Reset", "X-Ratelimit-Resource",
}

// setRateLimitHeaders replaces the upstream's rate limit fields by the current budget of the caller's account for the
// request's resource, as far as this process knows it: a hit must not wait for the ledger's store. RateLimit-Policy and
// RateLimit follow the IETF drafts -08 to -11. values is the memory for the values.
func (g *Gateway) setRateLimitHeaders(ex *exchange, h http.Header, values []string) {
	b, known := g.Ledger.Budget(*ex.question.caller, ex.record.Resource)
	if !known || b.Unlimited {
		return // the upstream's own fields, if any, are unchanged
	}
	values = append(values[:0],
		strconv.Itoa(b.Limit), strconv.Itoa(b.Remaining), strconv.Itoa(b.Used), strconv.FormatInt(b.Reset.Unix(), 10), b.Resource)
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

// entryResponse returns a stored response as an [http.Response].
func (g *Gateway) entryResponse(a *attempt, e *cache.Entry, now time.Time) *http.Response {
	resp := &http.Response{ProtoMajor: 1, ProtoMinor: 1, Request: a.in, Body: http.NoBody, Header: http.Header{}}
	resp.StatusCode = copyEntryHeader(a, e, now, resp.Header)
	body := g.storedContent(a, e, resp.StatusCode, resp.Header)
	if resp.StatusCode == http.StatusNotModified {
		return resp
	}
	content := io.Reader(bytes.NewReader(body))
	if resp.ContentLength = int64(len(body)); body == nil && e.Packed != nil {
		content, resp.ContentLength = e.Unpack(), e.Unpacked
	}
	if a.method != http.MethodHead {
		resp.Body = io.NopCloser(content)
	}
	return resp
}
