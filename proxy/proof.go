package proxy

import (
	"bytes"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// offer is an entry that may be the answer, if the upstream says by a 304 that its
// ETag is that of what it would send to this very caller: proof that the caller may
// see it (design section 6.2).
type offer struct {
	entry *cache.Entry
	etag  string
	// from is whose the entry is; computed is set where the ETag is a digest of the body,
	// and of this request.
	from     origins
	computed bool
}

// origins are whose an entry is that is offered.
type origins int

const (
	// held is what this very request would be answered from, were it fresh.
	held origins = iota
	// variant is another one of the same caller's.
	variant
	// foreign was fetched for another caller.
	foreign
)

const (
	// maxOffered bounds the bytes of the ETags that are offered for one request, maxETag
	// those of one.
	maxOffered = 4 << 10
	maxETag    = 256
	// maxDigested bounds the bytes that are hashed for one request: so few that their time
	// hardly tells a caller who may not see them that they are there.
	maxDigested = 1 << 20
)

// offers lists what may be the answer to a request with these fields: what is stale,
// and what is held for others and for other variants. A client's own validators go
// upstream where nothing is stale: what they are about it has.
func (g *Gateway) offers(ex *exchange, sent http.Header) []offer {
	now, trust := time.Now(), g.trustIn(ex)
	list := offering{
		ex: ex, dialect: g.Dialect, sent: sent,
		computes: g.computes(ex, sent, now), proofs: trust.proofs.trusted(now), links: trust.links.trusted(now),
	}
	if ex.stale != nil {
		list.add(ex.stale, held)
		if len(list.offers) == 0 {
			return nil // it is asked about by its date
		}
	} else if !isUnconditional(ex.header) {
		return nil
	}
	if ex.skipShared {
		return list.offers
	}
	own, others := g.Cache.Candidates(ex.in.Context(), ex.key, g.about(ex))
	for _, e := range own {
		list.add(e, variant)
	}
	for _, e := range others {
		list.add(e, foreign)
	}
	return list.offers
}

// offering is a list of offers that is being made.
type offering struct {
	ex      *exchange
	dialect *policy.Dialect
	sent    http.Header
	// computes is whether ETags can be computed; proofs and links are what is trusted.
	computes, proofs, links bool
	offers                  []offer
	digested, offered       int
}

// add offers an entry by the ETag that it came with, and by the one that it would
// have now. That of what is not held for this very request must be computed, or strong:
// a weak one may say of two that differ that they are as good as the same (RFC 9110
// section 8.8.1).
func (l *offering) add(e *cache.Entry, from origins) {
	if from != held && (e.Status != http.StatusOK || e == l.ex.stale || !l.proofs) ||
		from == foreign && (l.ex.match.Operation.Paged() || len(e.Header["Link"]) > 0) && !l.links {
		return
	}
	known := l.computes && e.Status == http.StatusOK
	if etag := e.ETag(); from == held || from == variant && !isWeak(etag) || from == foreign && !known && !isWeak(etag) {
		l.offer(offer{e, etag, from, false})
	}
	same := func(o offer) bool { return o.computed && bytes.Equal(o.entry.Body, e.Body) }
	if known && !slices.ContainsFunc(l.offers, same) && l.digested+len(e.Body) <= maxDigested {
		l.digested += len(e.Body)
		l.offer(offer{e, l.dialect.EntityTag(l.sent.Get, e.Body), from, true})
	}
}

// offer takes one in, unless its ETag is none, is there, or is too much.
func (l *offering) offer(o offer) {
	there := slices.ContainsFunc(l.offers, func(other offer) bool { return opaque(other.etag) == opaque(o.etag) })
	if there || o.etag == "" || len(o.etag) > maxETag || l.offered+len(o.etag) > maxOffered {
		return
	}
	l.offered += len(o.etag)
	l.offers = append(l.offers, o)
}

// onlyHeld reports whether all that was offered is held for the request itself.
func onlyHeld(offers []offer) bool {
	return !slices.ContainsFunc(offers, func(o offer) bool { return o.from != held })
}

// opaque is an ETag without what says that it is weak (RFC 9110 section 8.8.3.2).
func opaque(etag string) string { return strings.TrimPrefix(etag, "W/") }

func isWeak(etag string) bool { return strings.HasPrefix(etag, "W/") }

// validate asks whether what is held is the answer, in place of what the client asked
// by its own validators, and reports whether it did.
func (g *Gateway) validate(ex *exchange, out *http.Request) bool {
	ex.offers = nil
	for _, name := range validators {
		if values := ex.header[name]; len(values) > 0 {
			out.Header[name] = values
		} else {
			out.Header.Del(name)
		}
	}
	if !ex.cacheable || ex.unconditional {
		return false
	}
	ex.offers = g.offers(ex, out.Header)
	modified := ""
	if ex.stale != nil && onlyHeld(ex.offers) && (len(ex.offers) > 0 || ex.stale.ETag() == "") { // never without its ETag (RFC 9111 section 4.3.1)
		modified = ex.stale.Header.Get("Last-Modified")
	}
	if len(ex.offers) == 0 && modified == "" {
		return false
	}
	out.Header.Del("If-None-Match")
	out.Header.Del("If-Modified-Since")
	var tags []string
	for _, o := range ex.offers {
		tags = append(tags, o.etag)
	}
	if len(tags) > 0 {
		out.Header.Set("If-None-Match", strings.Join(tags, ", "))
	}
	if modified != "" {
		out.Header.Set("If-Modified-Since", modified)
	}
	return true
}

// validators are the fields by which a request asks whether something has changed.
var validators = []string{"If-None-Match", "If-Modified-Since"}

func isUnconditional(h http.Header) bool {
	return !slices.ContainsFunc(validators, func(name string) bool { return len(h[name]) > 0 })
}

// proven is what a 304 says to be the answer (RFC 9111 section 4.3.4). It is not ok
// where the 304 tells of nothing that was offered, or is no proof.
func (g *Gateway) proven(ex *exchange, sent, answer http.Header) (o offer, ok bool) {
	etag, now, trust := answer.Get("Etag"), time.Now(), g.trustIn(ex)
	if len(answer["Link"]) > 0 {
		trust.links.told(true, now)
	}
	alone := len(ex.offers) == 1 || ex.stale != nil && onlyHeld(ex.offers)
	for _, o := range ex.offers {
		switch {
		case (etag != "" || !alone) && opaque(o.etag) != opaque(etag):
			continue
		case o.from == held:
			return o, true
		case !o.computed && etag != o.etag:
			trust.proofs.told(false, now)
			return offer{}, false // it is weak now, or not told
		case o.from == foreign && len(o.entry.Header["Link"]) > len(answer["Link"]):
			trust.links.told(false, now)
			return offer{}, false // where its pages are was for its own caller
		}
		trust.proofs.told(true, now)
		return o, true
	}
	if alone && ex.stale != nil { // nothing else was asked about; who judges by a date alone may mean another answer
		return offer{entry: ex.stale}, etag == "" || len(sent["If-Modified-Since"]) == 0
	}
	trust.proofs.told(false, now)
	return offer{}, false
}

// digest is what an ETag that is computed looks like.
var digest = regexp.MustCompile(`^"[0-9a-f]{64}"$`)

// computes reports whether the ETag of an answer to a request with these fields can be
// computed. How a field of several lines is counted nobody has seen.
func (g *Gateway) computes(ex *exchange, sent http.Header, now time.Time) bool {
	several := func(name string) bool { return len(sent[http.CanonicalHeaderKey(name)]) > 1 }
	return len(g.Dialect.ETag) > 0 && !slices.ContainsFunc(g.Dialect.ETag, several) && g.about(ex) != cache.Key{} && g.digests.trusted(now)
}

// compare learns from a whole answer whether its ETag is what it was computed to be.
func (g *Gateway) compare(ex *exchange, sent http.Header, e *cache.Entry) {
	now, etag := time.Now(), opaque(e.Header.Get("Etag"))
	if e.Status != http.StatusOK || len(e.Body) > maxDigested || !digest.MatchString(etag) || !g.computes(ex, sent, now) {
		return
	}
	switch g.digests.told(etag == g.Dialect.EntityTag(sent.Get, e.Body), now) {
	case fellBack:
		g.Log.Warn("ETags are not what they were computed to be: for an hour what one token has fetched helps no other")
	case resumed:
		g.Log.Info("ETags are again what they were computed to be")
	}
}

// about is the question whoever asks it, zero where all callers share the answer, or
// where nothing documents that their ETags are comparable.
func (g *Gateway) about(ex *exchange) cache.Key {
	if op := ex.match.Operation; op.Cache.Class == policy.Shared || !op.Known() {
		return cache.Key{}
	}
	return g.keyOf(&ex.question, "whoever asks")
}

// trustIn is what is trusted in of the question's operation. Not more of them are
// remembered than the catalogue has.
func (g *Gateway) trustIn(ex *exchange) *reliance {
	g.reliance.Lock()
	defer g.reliance.Unlock()
	id := ex.match.Operation.ID
	r := g.reliance.on[id]
	if r == nil {
		if g.reliance.on == nil {
			g.reliance.on = map[string]*reliance{}
		}
		r = &reliance{links: trust{unearned: true}}
		g.reliance.on[id] = r
	}
	return r
}

// reliance is what is relied on of one operation: a 304 repeats the Link field, and
// tells a strong ETag.
type reliance struct {
	links, proofs trust
}

// trust is in something that the upstream does and nobody promises: it ends for an
// hour after some mistakes within a minute, with nothing right between them.
type trust struct {
	mu       sync.Mutex
	unearned bool // it is given only once something was right
	mistakes int
	since    time.Time // of the first of them
	until    time.Time // of the distrust
	lost     bool
}

const (
	maxMistakes = 3
	mistakesIn  = time.Minute
	distrustFor = time.Hour
)

// learned is what an observation has changed.
type learned int

const (
	unchanged learned = iota
	fellBack
	resumed
)

func (t *trust) trusted(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.unearned && !now.Before(t.until)
}

// told takes in one observation.
func (t *trust) told(right bool, now time.Time) learned {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case right:
		was := t.lost
		t.unearned, t.lost, t.mistakes = false, false, 0
		if was {
			return resumed
		}
		return unchanged
	case now.Before(t.until):
		return unchanged
	case now.Sub(t.since) > mistakesIn:
		t.mistakes, t.since = 0, now
	}
	if t.mistakes++; t.mistakes < maxMistakes {
		return unchanged
	}
	t.mistakes, t.until, t.lost = 0, now.Add(distrustFor), true
	return fellBack
}
