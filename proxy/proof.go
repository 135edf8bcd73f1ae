package proxy

import (
	"bytes"
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/pages"
	"github.com/weirgate/weir/proxy/refusal"
)

// ETags selects the ETags that prove a caller's access to a response that another caller fetched. Weir sends the ETag
// upstream with the caller's credential, and a 304 is the proof.
type ETags string

const (
	// ETagsComputed is the default. Weir computes ETags if the dialect defines the upstream's algorithm, and otherwise
	// uses strong ETags of the upstream.
	ETagsComputed ETags = "computed"
	// ETagsUpstream uses only strong ETags of the upstream.
	ETagsUpstream ETags = "upstream"
	// ETagsOff disables proofs, and revalidates only the stored response of the same request.
	ETagsOff ETags = "off"
)

// setConditions makes the request conditional on the candidates. Without candidates, the request has the client's own
// conditions.
func (g *Gateway) setConditions(a *attempt, out *http.Request) {
	a.candidates, a.conditional = nil, false
	if list := g.pages(a.question); a.stale != nil && (a.unconditional && list.MayLack(a.stale) || g.links.NeedsWhole(list, a.stale)) {
		for _, name := range validators { // the client may have the same page
			out.Header.Del(name)
		}
		return
	}
	for _, name := range validators {
		if values := a.Header[name]; len(values) > 0 {
			out.Header[name] = values
		} else {
			out.Header.Del(name)
		}
	}
	if !a.cacheable || a.unconditional || a.graphQL != nil { // a POST cannot be revalidated
		return
	}
	a.candidates = g.candidates(a, out.Header)
	modified := ""
	// A date without the ETag of the same entry is not sent (RFC 9111 section 4.3.1).
	if a.stale != nil && onlyStale(a.candidates) && (len(a.candidates) > 0 || a.stale.ETag() == "") {
		modified = a.stale.Header.Get("Last-Modified")
	}
	if len(a.candidates) == 0 && modified == "" {
		return
	}
	a.conditional = true
	a.identityAsked, out.Header["Accept-Encoding"] = true, identityEncoding // the candidates have this form
	out.Header.Del("If-None-Match")
	out.Header.Del("If-Modified-Since")
	var tags []string
	for _, c := range a.candidates {
		tags = append(tags, c.etag)
	}
	if tags != nil {
		out.Header.Set("If-None-Match", strings.Join(tags, ", "))
	}
	if modified != "" {
		out.Header.Set("If-Modified-Since", modified)
	}
}

// validators are the request fields that make a GET conditional.
var validators = []string{"If-None-Match", "If-Modified-Since"}

func isUnconditional(h http.Header) bool {
	return !slices.ContainsFunc(validators, func(name string) bool { return len(h[name]) > 0 })
}

// candidates returns the stored responses that may answer the request: the stale response, other variants, and
// responses to other callers. If the client sent validators and no response is stale, the list is empty and these
// validators are forwarded.
func (g *Gateway) candidates(a *attempt, sent http.Header) []candidate {
	l := candidateList{g: g, a: a, sent: sent, pages: g.pages(a.question), computes: g.computesETags(a, sent)}
	if a.stale != nil {
		l.add(a.stale, sourceStale)
		if len(l.list) == 0 {
			return nil // the stale response is revalidated by date
		}
	} else if !isUnconditional(a.Header) {
		return nil
	}
	if a.skipShared || g.ETags == ETagsOff {
		return l.list
	}
	own, otherCallers := g.Cache.Candidates(a.in.Context(), a.key, a.baseKey)
	for _, e := range own {
		l.add(e, sourceVariant)
	}
	for _, e := range otherCallers {
		l.add(e, sourceOtherCaller)
	}
	return l.list
}

// candidate is a stored response that the upstream may confirm by a 304 with its ETag.
type candidate struct {
	entry    *cache.Entry
	etag     string
	source   candidateSource
	computed bool // Weir computed the ETag from the body and this request
}

// candidateSource is the relation of a stored response to the request.
type candidateSource int

const (
	// sourceStale is the stale stored response of the request itself.
	sourceStale candidateSource = iota
	// sourceVariant is a response to the same caller for other values of Vary fields.
	sourceVariant
	// sourceOtherCaller is a response to another caller. A 304 proves this caller's access to the response.
	sourceOtherCaller
)

const (
	// maxETags bounds the bytes of all ETags of one request. maxETag bounds the bytes of one ETag.
	maxETags = 4 << 10
	maxETag  = 256
	// maxHashed bounds the bytes that are hashed for one request. A measurable delay would reveal to a caller without
	// access that a response is stored.
	maxHashed = 1 << 20
)

// candidateList collects the candidates of one request.
type candidateList struct {
	g            *Gateway
	a            *attempt
	sent         http.Header
	pages        pages.Question
	computes     bool
	list         []candidate
	size, hashed int // bytes of ETags in list, and of hashed bodies
}

// add adds an entry with the ETag of the upstream, and with the computed ETag. For a variant or another caller's
// response, the ETag must be computed or strong. A weak ETag does not promise identical bytes (RFC 9110 section 8.8.1).
func (l *candidateList) add(e *cache.Entry, source candidateSource) {
	if source != sourceStale && (e.Status != http.StatusOK || e == l.a.stale) {
		return
	}
	if source == sourceOtherCaller && (len(e.Header["Link"]) > 0 || l.a.match.Operation.Paged() && !pages.HasTotal(e.Body)) {
		// This caller may have other pages, which only a 304 with Link reveals.
		if !l.g.links.AreRepeated(l.pages) {
			return
		}
	}
	if source != sourceStale && l.g.links.NeedsWhole(l.pages, e) {
		return
	}
	computable := l.computes && e.Status == http.StatusOK
	if source == sourceStale || !strings.HasPrefix(e.ETag(), "W/") && (source == sourceVariant || !computable) {
		l.append(candidate{e, e.ETag(), source, false})
	}
	same := func(c candidate) bool { return c.computed && bytes.Equal(c.entry.Body, e.Body) }
	if computable && int64(l.hashed)+e.Length() <= maxHashed && !slices.ContainsFunc(l.list, same) {
		l.hashed += len(e.Body)
		l.append(candidate{e, l.g.Dialect.EntityTag(l.sent.Get, e.Body), source, true})
	}
}

// append adds a candidate, unless the ETag is missing, too long or already in the list.
func (l *candidateList) append(c candidate) {
	same := func(other candidate) bool { return opaqueTag(other.etag) == opaqueTag(c.etag) }
	if c.etag == "" || len(c.etag) > maxETag || l.size+len(c.etag) > maxETags || slices.ContainsFunc(l.list, same) {
		return
	}
	l.size += len(c.etag)
	l.list = append(l.list, c)
}

// onlyStale reports whether all candidates are the stored response of the request itself.
func onlyStale(list []candidate) bool {
	return !slices.ContainsFunc(list, func(c candidate) bool { return c.source != sourceStale })
}

// opaqueTag returns an ETag without its weakness indicator (RFC 9110 section 8.8.3.2).
func opaqueTag(etag string) string { return strings.TrimPrefix(etag, "W/") }

// computesETags reports whether Weir can compute the ETag of a response to a request with these fields. The result is
// false if a field of the ETag's input has several lines, because the upstream's treatment is unknown.
func (g *Gateway) computesETags(a *attempt, sent http.Header) bool {
	repeated := func(name string) bool { return len(sent[http.CanonicalHeaderKey(name)]) > 1 }
	return (g.ETags == "" || g.ETags == ETagsComputed) && len(g.Dialect.ETag) > 0 &&
		!slices.ContainsFunc(g.Dialect.ETag, repeated) && a.baseKey != cache.Key{}
}

// notModified returns the response that a 304 confirms (see confirmed). If the 304 confirms no response, the request is
// repeated without conditions. A 304 to a request without conditions is an error.
func (g *Gateway) notModified(a *attempt, out *http.Request, resp *http.Response) (*http.Response, coalesce.Ending, error) {
	if isUnconditional(out.Header) {
		bodies.Discard(resp.Body)
		err := &refusal.Error{
			Status: http.StatusBadGateway, Detail: "upstream",
			Message: "Bad Gateway: the upstream answered 304 to a request without conditions",
		}
		ending := coalesce.Ending{Result: coalesce.Failed, Err: err}
		resp, failed := g.staleOr(a, err)
		return resp, ending, failed
	}
	c, ok := g.confirmed(a, out.Header, resp.Header)
	if !ok {
		return g.fetchWithoutStored(a, out, resp)
	}
	bodies.Discard(resp.Body)
	answer := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: a.requestedAt, Answered: time.Now()}
	if c.etag == "" && answer.Header.Get("Etag") != "" {
		answer.Header = http.Header{"Date": answer.Header["Date"], "Age": answer.Header["Age"]}
	}
	a.result.cache.ForwardStatus = resp.StatusCode
	resp, ending := g.updateStored(a, c, answer)
	return resp, ending, nil
}

// confirmed returns the candidate that a 304 confirms (RFC 9111 section 4.3.4). The result is false if the 304 confirms
// no candidate, does not prove access or may hide other pages ([pages.Question.MayLack]).
//
// A 304 confirms the candidate with the same ETag. A 304 without an ETag confirms a stale response that was validated
// by date, or a single candidate that is stale or has a computed ETag. A 304 with an ETag of no candidate confirms a
// single stale response, if no If-Modified-Since was sent.
func (g *Gateway) confirmed(a *attempt, sent, response http.Header) (candidate, bool) {
	etag, list := response.Get("Etag"), g.pages(a.question)
	if len(response["Link"]) > 0 {
		g.links.Note(list, true)
	}
	hidesPages := func(e *cache.Entry) bool {
		hides := len(response["Link"]) == 0 && list.MayLack(e)
		if hides {
			g.links.Note(list, false)
		}
		return hides
	}
	single := len(a.candidates) == 1 || a.stale != nil && onlyStale(a.candidates)
	for _, c := range a.candidates {
		switch {
		case (etag != "" || !single) && opaqueTag(c.etag) != opaqueTag(etag):
			continue
		case hidesPages(c.entry):
			return candidate{}, false
		case c.source == sourceStale:
			return c, true
		case !c.computed && etag != c.etag:
			return candidate{}, false // the ETag is missing, or has become weak
		case c.source == sourceOtherCaller && len(c.entry.Header["Link"]) > len(response["Link"]):
			g.links.Note(list, false)
			return candidate{}, false // this caller may have other pages
		}
		return c, true
	}
	if single && a.stale != nil && !hidesPages(a.stale) {
		// If the upstream compared dates, another ETag may belong to another response.
		return candidate{entry: a.stale}, etag == "" || len(sent["If-Modified-Since"]) == 0
	}
	return candidate{}, false
}

// updateStored merges a 304 into the confirmed entry (RFC 9111 section 4.3.4), and returns the updated response.
func (g *Gateway) updateStored(a *attempt, c candidate, answer cache.Response) (*http.Response, coalesce.Ending) {
	now, e := answer.Answered, c.entry
	if newer := g.newerThan(a, e.Status, http.Header{"Etag": {cmp.Or(c.etag, e.ETag())}}); newer != nil {
		return newer, coalesce.Ending{Result: coalesce.Private}
	}
	if c.source == sourceOtherCaller {
		e = e.ForCaller(cmp.Or(answer.Header.Get("Etag"), c.etag), g.Dialect.Describe)
	}
	e = e.Validated(g.withoutCaller(a, answer))
	answer.Status, answer.Header = e.Status, e.Header
	lifetime, vary, ok := g.storable(a, answer)
	e.Lifetime, e.Vary, e.BaseKey, e.Tags = lifetime, vary, a.baseKey, a.tagged().Stored(e.Status)
	e.Began(a.began)
	e.Replaces(a.last, g.Lag)
	a.result.cache.SetSuspect(e.Suspect)
	a.boundLifetime(e)
	a.boundUnfinished(e)
	if !ok {
		g.deleteStored(a)
		return g.entryResponse(a, e, now), coalesce.Ending{Result: coalesce.Private}
	}
	g.Cache.MarkCacheable(a.predicts, a.key)
	g.Cache.Put(a.in.Context(), a.key, e, a.call.SetShared)
	a.result.cache.Stored = true
	a.result.cache.SetTTL(e, now)
	return g.entryResponse(a, e, now), coalesce.Ending{Result: a.resultFor(e)}
}

// pages returns the part of a question on which the pages of its response depend.
func (g *Gateway) pages(q *question) pages.Question {
	return pages.Question{Match: &q.match, Operation: q.predicts, Host: g.Host}
}

// digest matches the ETags that Weir can compute.
var digest = regexp.MustCompile(`^"[0-9a-f]{64}"$`)

// checkComputedETag logs, at most once per hour, that the upstream's ETag differs from the computed ETag.
func (g *Gateway) checkComputedETag(a *attempt, sent http.Header, e *cache.Entry) {
	etag := opaqueTag(e.Header.Get("Etag"))
	if e.Status != http.StatusOK || e.Length() > maxHashed || !digest.MatchString(etag) ||
		!g.computesETags(a, sent) || etag == g.Dialect.EntityTag(sent.Get, e.Body) {
		return
	}
	g.etagWarning.Do(func() {
		g.Log.Warn("computed ETag differs from the upstream's; set cache.etags to upstream if this persists", "operation", a.match.Operation.ID)
	})
}
