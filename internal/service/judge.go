package service

import (
	"net/http"
	"slices"
)

// Missing returns which of the writes a GET request had to show, if its response has the revision. It counts such a stale
// read in [Violations].
func (s *Service) Missing(read *http.Request, revision int64, written []int64) []int64 {
	missing := slices.DeleteFunc(s.changedSince(read, revision), func(n int64) bool { return !slices.Contains(written, n) })
	slices.Sort(missing)
	if len(missing) > 0 {
		s.meter.recordStale()
	}
	return slices.Compact(missing)
}

// changedSince returns the writes after a revision that changed what a read shows.
func (s *Service) changedSince(read *http.Request, revision int64) []int64 {
	r := &request{Request: read, query: read.URL.Query()}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.op, r.params = s.route(http.MethodGet, read.URL.EscapedPath())
	var ok bool
	if r.caller, ok = s.authenticate(r.Request); !ok || r.op == nil {
		return nil
	}
	s.resolve(r)
	return s.changes.since(s.topicsOf(r), revision)
}
