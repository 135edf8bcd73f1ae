package cache

import "time"

// Staleness is by how much the entry is older than fresh; below zero, how long it
// will be fresh.
func (e *Entry) Staleness(now time.Time) time.Duration { return e.Age(now) - e.Lifetime }

// NeverStale reports whether the entry may never be used stale, whatever happened
// (RFC 9111 section 4.2.4): its answer says must-revalidate or no-cache, or, to a
// cache that several callers share, proxy-revalidate or s-maxage (sections 5.2.2.8
// and 5.2.2.10).
func (e *Entry) NeverStale(rule Rule) bool {
	d, _ := governing(e.Header())
	return d.Has("must-revalidate") || d.Has("no-cache") || !rule.OneCaller && (d.Has("proxy-revalidate") || d.Has("s-maxage"))
}

// SingleUse reports whether no other request may be answered with the entry before it
// is validated, be it one that waits for it: its answer says no-cache, or that it is stale
// from the beginning (RFC 9111 sections 4 and 5.2.2.4).
func (e *Entry) SingleUse(rule Rule) bool {
	h := e.Header()
	d, targeted := governing(h)
	_, explicit := freshness(Response{Header: h, Answered: e.Answered}, d, targeted, rule)
	return d.Has("no-cache") || explicit && !e.Fresh(e.Answered)
}

// UsableOnError reports whether the entry may be used in the place of an error of
// the upstream's (RFC 5861 section 4): its answer or the request allows it for so
// long.
func (e *Entry) UsableOnError(now time.Time, request Directives) bool {
	d, _ := governing(e.Header())
	for _, directives := range []Directives{d, request} {
		if most, ok := directives.Seconds("stale-if-error"); ok && e.Staleness(now) <= most {
			return true
		}
	}
	return false
}

// UsableWhileRevalidating reports whether the entry may be used while it is validated (RFC
// 5861 section 3).
func (e *Entry) UsableWhileRevalidating(now time.Time) bool {
	d, _ := governing(e.Header())
	most, ok := d.Seconds("stale-while-revalidate")
	return ok && e.Staleness(now) <= most
}

// AllowedByMaxStale reports whether the request takes the entry as stale as it is (max-stale,
// RFC 9111 section 5.2.1.2).
func (e *Entry) AllowedByMaxStale(now time.Time, request Directives) bool {
	argument, ok := request["max-stale"]
	if !ok {
		return false
	}
	most, _ := request.Seconds("max-stale")
	return argument == "" || e.Staleness(now) <= most
}
