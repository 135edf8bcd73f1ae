package replay

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

const (
	// maxContents bounds the responses whose content the model stores. The model evicts the least recently used content, and
	// treats the next line of its question as unchanged.
	maxContents = 1 << 17
	// maxWindows bounds the number of primary windows, and also the number of computations.
	maxWindows = 1 << 14
	// freshFor is the lifetime of most responses, as max-age.
	freshFor = "60"
	// computeTime is the time that the upstream needs to compute statistics after a change.
	computeTime = 2 * time.Second
	// defaultLatency is the response time of an operation before the log shows one.
	defaultLatency = 100 * time.Millisecond
)

// upstream is the model of the upstream. The log determines its responses and the times of their changes.
type upstream struct {
	limits   policy.Limits
	dialect  *policy.Dialect
	contents *simplelru.LRU[cache.Key, *content]
	windows  *simplelru.LRU[accountResource, *window]
	// computations has the last computation of each path.
	computations *simplelru.LRU[string, computation]
	// latency is the last response time of each operation. The catalogue bounds the number of operations.
	latency map[string]time.Duration
}

type accountResource struct{ account, resource string }

// window is a fixed primary window. Its first request opens it.
type window struct {
	used  int
	reset time.Time
}

// content is the response to a question, as far as the log has shown it.
type content struct {
	status int
	shown  string // the ETag or the size in the log; empty if the log has neither
	bytes  int64
	// changes counts the changes that shown does not contain. They are writes, and replaced responses in a log of Weir.
	// The field since is the generation of the cache at the last line. Later writes are changes.
	changes int
	since   cache.Generation
	// computed is the ETag of the statistics whose computation ends at the time ready. fetched is the time of their last
	// response.
	computed       string
	ready, fetched time.Time
}

// computation is the last computation of statistics, which are the same for all callers.
type computation struct{ started, ready time.Time }

// etag returns the ETag of the content.
func (c *content) etag() string { return fmt.Sprintf(`W/"%x-%d"`, c.shown, c.changes) }

func newUpstream(l policy.Limits, d *policy.Dialect) *upstream {
	contents, _ := simplelru.NewLRU[cache.Key, *content](maxContents, nil) // fails only for a size below 1
	windows, _ := simplelru.NewLRU[accountResource, *window](maxWindows, nil)
	computations, _ := simplelru.NewLRU[string, computation](maxWindows, nil)
	return &upstream{l, d, contents, windows, computations, map[string]time.Duration{}}
}

// computing reports whether the upstream still computes the statistics of a path. The first request for changed statistics
// starts the computation.
func (u *upstream) computing(path string, c *content, now time.Time) bool {
	if c.computed != c.etag() {
		last, _ := u.computations.Get(path)
		if !last.started.After(c.fetched) { // no computation began since the last response
			last = computation{now, now.Add(computeTime)}
			u.computations.Add(path, last)
		}
		c.computed, c.ready = c.etag(), last.ready
	}
	if now.Before(c.ready) {
		return true
	}
	c.fetched = now
	return false
}

// observe updates the content of a question by a line of the log, and reports whether the line shows a change. The
// function written reports whether a write has changed responses with the tags of the question since a generation.
func (u *upstream) observe(r *Request, key cache.Key, now cache.Generation, written func(since cache.Generation) bool) (c *content, changed bool) {
	c, known := u.contents.Get(key)
	if !known {
		c = &content{status: http.StatusOK, since: now}
		u.contents.Add(key, c)
	}
	before := *c
	switch r.Status {
	case 0, http.StatusNotModified, http.StatusTooManyRequests, http.StatusAccepted, clientGone: // shows no content
		return c, false
	}
	c.status = r.Status
	if r.Bytes >= 0 {
		c.bytes = r.Bytes
	}
	switch {
	case r.FromWeir: // the size may be the size after compression
		if r.Changed {
			c.changes++
		}
	case r.ETag != "":
		c.shown = r.ETag
	case r.Bytes >= 0:
		c.shown = strconv.FormatInt(r.Bytes, 10)
	case written(c.since):
		c.changes++
	}
	c.since = now
	return c, known && (c.status != before.status || c.shown != before.shown || c.changes != before.changes)
}

// clientGone is the status in a log for a client that disconnected before the response.
const clientGone = 499

// latencyOf returns the response time for a request, and remembers it for requests of the operation without one.
func (u *upstream) latencyOf(r *Request, operation string) time.Duration {
	if r.Latency > 0 {
		u.latency[operation] = r.Latency
		return r.Latency
	}
	if known, ok := u.latency[operation]; ok {
		return known
	}
	return defaultLatency
}

// count charges a request to its primary window, and returns the rate headers of its response.
func (u *upstream) count(p *proxy.Plan, cost int, now time.Time) policy.Rate {
	limit := u.limits.For(p.Caller.Kind, p.Claim.Resource)
	key := accountResource{p.Caller.Account, p.Claim.Resource}
	w, ok := u.windows.Get(key)
	if !ok || !now.Before(w.reset) {
		w = &window{reset: now.Add(limit.Window).Truncate(time.Second)}
		u.windows.Add(key, w)
	}
	w.used += cost
	return policy.Rate{Limit: limit.Max, Used: w.used, Reset: w.reset, Date: now.Truncate(time.Second), Resource: p.Claim.Resource}
}

// header returns the header of a response.
func (u *upstream) header(p *proxy.Plan, c *content) http.Header {
	h := http.Header{"Cache-Control": {"private, max-age=" + freshFor + ", s-maxage=" + freshFor}}
	search := p.Claim.Resource == policy.Search || p.Claim.Resource == policy.CodeSearch
	switch {
	case search || c.status >= http.StatusBadRequest:
		h.Set("Cache-Control", "no-cache")
	case p.Caller.Kind == policy.Unauthenticated:
		h.Set("Cache-Control", "public, max-age="+freshFor+", s-maxage="+freshFor)
	}
	if c.status == http.StatusOK && (!search || u.dialect.Name != "github") { // its searches have no validators
		h.Set("Etag", c.etag())
	}
	return h
}
