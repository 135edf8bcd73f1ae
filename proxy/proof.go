package proxy

import (
	"bytes"
	"net/http"
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
	// foreign is set where it was fetched for another caller; computed where the ETag
	// is a digest of the body, and of this request.
	foreign, computed bool
}

const (
	// maxOffers bounds the ETags that are offered for one request.
	maxOffers = 16
	// maxDigested bounds the bytes that are hashed for one request: so few that their time
	// hardly tells a caller who may not see them that they are there.
	maxDigested = 1 << 20
)

// offers lists what may be the answer to a request with these fields: what is stale;
// else what is held for others and for other variants. A client's own validators go
// upstream where nothing is held for it: what they are about it has.
func (g *Gateway) offers(x *exchange, sent http.Header) []offer {
	list := offering{g: g, sent: sent}
	switch {
	case x.stale != nil:
		list.add(x.stale, false)
	case x.unproven, !isUnconditional(sent):
	default:
		own, others := g.Cache.Nominees(x.in.Context(), x.key, g.about(x))
		for _, e := range own {
			list.add(e, false)
		}
		for _, e := range others {
			list.add(e, true)
		}
	}
	return list.offers
}

// offering is a list of offers that is being made.
type offering struct {
	g        *Gateway
	sent     http.Header
	offers   []offer
	digested int
}

// add offers an entry by the ETag that it came with, and by the one that it would
// have now. That of another caller's must be computed, or strong: a weak one may say
// of two that differ that they are as good as the same (RFC 9110 section 8.8.1).
func (l *offering) add(e *cache.Entry, foreign bool) {
	if foreign && (e.Status != http.StatusOK || len(e.Header["Link"]) > 0 && !l.g.links.trusted(time.Now())) || len(l.offers) >= maxOffers {
		return
	}
	known := l.g.computes(l.sent, time.Now())
	if etag := e.Header.Get("Etag"); etag != "" && (!foreign || !known && !strings.HasPrefix(etag, "W/")) {
		l.offer(offer{e, etag, foreign, false})
	}
	same := func(o offer) bool { return o.computed && bytes.Equal(o.entry.Body, e.Body) }
	if !known || e.Status != http.StatusOK || slices.ContainsFunc(l.offers, same) || l.digested+len(e.Body) > maxDigested {
		return
	}
	l.digested += len(e.Body)
	l.offer(offer{e, l.g.Dialect.EntityTag(l.sent.Get, e.Body), foreign, true})
}

func (l *offering) offer(o offer) {
	if !slices.ContainsFunc(l.offers, func(other offer) bool { return opaque(other.etag) == opaque(o.etag) }) {
		l.offers = append(l.offers, o)
	}
}

// opaque is an ETag without what says that it is weak (RFC 9110 section 8.8.3.2).
func opaque(etag string) string { return strings.TrimPrefix(etag, "W/") }

// validate asks whether what is held is the answer, in place of what the client asked
// by its own validators, and reports whether it did.
func (g *Gateway) validate(x *exchange, out *http.Request) bool {
	if !x.kept {
		return false
	}
	x.offers = g.offers(x, out.Header)
	modified := ""
	if x.stale != nil {
		modified = x.stale.Header.Get("Last-Modified")
	}
	if len(x.offers) == 0 && modified == "" {
		return false
	}
	unconditional(out.Header)
	var tags []string
	for _, o := range x.offers {
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

func unconditional(h http.Header) {
	h.Del("If-None-Match")
	h.Del("If-Modified-Since")
}

func isUnconditional(h http.Header) bool {
	return len(h["If-None-Match"]) == 0 && len(h["If-Modified-Since"]) == 0
}

// proven is what a 304 says to be the answer (RFC 9111 section 4.3.4). It is not ok
// where the 304 tells of nothing that was offered, or is no proof.
func (g *Gateway) proven(x *exchange, answer http.Header) (o offer, ok bool) {
	etag := answer.Get("Etag")
	if x.stale != nil && etag == "" {
		return offer{entry: x.stale}, true // nothing else was asked about
	}
	for _, o := range x.offers {
		switch only := etag == "" && len(x.offers) == 1; {
		case !only && opaque(o.etag) != opaque(etag):
			continue
		case o.foreign && !o.computed && etag != o.etag:
			return offer{}, false // it is weak now, or not told
		case o.foreign && len(o.entry.Header["Link"]) > 0:
			repeated := len(answer["Link"]) > 0
			g.links.told(repeated, time.Now())
			return o, repeated // else where its pages are was for its own caller
		}
		return o, true
	}
	return offer{}, false
}

// computes reports whether the ETag of an answer to a request with these fields can be
// computed. How a field of several lines is counted nobody has seen.
func (g *Gateway) computes(sent http.Header, now time.Time) bool {
	several := func(name string) bool { return len(sent[http.CanonicalHeaderKey(name)]) > 1 }
	return len(g.Dialect.ETag) > 0 && !slices.ContainsFunc(g.Dialect.ETag, several) && g.digests.trusted(now)
}

// compare learns from a whole answer whether its ETag is what it was computed to be.
func (g *Gateway) compare(sent http.Header, e *cache.Entry) {
	now := time.Now()
	etag := e.Header.Get("Etag")
	if etag == "" || e.Status != http.StatusOK || len(e.Body) > maxDigested || !g.computes(sent, now) {
		return
	}
	switch g.digests.told(opaque(etag) == g.Dialect.EntityTag(sent.Get, e.Body), now) {
	case fellBack:
		g.Log.Warn("ETags are not what they were computed to be: for an hour what one token has fetched helps no other")
	case resumed:
		g.Log.Info("ETags are again what they were computed to be")
	}
}

// about is the question whoever asks it, zero where all callers share the answer, or
// where nothing documents that their ETags are comparable.
func (g *Gateway) about(x *exchange) cache.Key {
	if op := x.match.Operation; op.Cache.Class == policy.Shared || !op.Known() {
		return cache.Key{}
	}
	return g.keyOf(&x.question, "whoever asks")
}

// trust is in something that the upstream does and nobody promises: it ends for an
// hour after some mistakes within a minute, and then with the first one.
type trust struct {
	mu       sync.Mutex
	mistakes int
	since    time.Time // of the first of them
	until    time.Time // of the distrust
	probing  bool
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
	return !now.Before(t.until)
}

// told takes in one observation.
func (t *trust) told(right bool, now time.Time) learned {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case right && t.probing:
		t.probing, t.mistakes = false, 0
		return resumed
	case right || now.Before(t.until):
		return unchanged
	}
	if now.Sub(t.since) > mistakesIn {
		t.mistakes, t.since = 0, now
	}
	t.mistakes++
	if t.mistakes < maxMistakes && !t.probing {
		return unchanged
	}
	t.mistakes, t.until, t.probing = 0, now.Add(distrustFor), true
	return fellBack
}
