package quirk

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// journal holds old representations and the times of writes, for the quirks that return an earlier state.
type journal struct {
	last    int64                // number of the last write
	written map[int64]time.Time  // recent writes by number
	born    map[string]int64     // the write that created an object, by path
	reads   map[string]*response // the last response to each read
	seen    map[string]time.Time // the first read of each state
}

// maxReads bounds the representations of a journal.
const maxReads = 4096

// key returns the key of a read.
func (x *exchange) key() string {
	parts := []string{x.Path, x.URL.RawQuery, x.Header.Get("Accept"), x.Header.Get("Authorization")}
	if x.isGraphQL() {
		sum := sha256.Sum256(x.body())
		parts = append(parts, string(sum[:]))
	}
	return strings.Join(parts, "\n")
}

// isRead reports whether a request is a read that a replica may answer. Replicas know the limits.
func (x *exchange) isRead() bool {
	return x.Method == http.MethodGet || x.isGraphQL() && !x.isWrite() && !bytes.Contains(x.body(), []byte("rateLimit"))
}

func (x *exchange) isWrite() bool {
	if x.isGraphQL() {
		return x.creates()
	}
	return x.Method != http.MethodGet && x.Method != http.MethodHead
}

// replica returns what a replica returns that does not have the last writes yet, or nil. The service must charge the
// request as a 304 if the client has this representation, and otherwise as a 200.
func (x *exchange) replica() *response {
	if x.set.ReplicaLag == 0 || !x.isRead() {
		return nil
	}
	old := x.oldRepresentation()
	if old == nil {
		return nil
	}
	tags := strings.Join(x.Header.Values("If-None-Match"), ",")
	if tag := strings.TrimPrefix(old.header.Get("Etag"), "W/"); tag != "" && strings.Contains(tags, tag) {
		x.Header.Set("If-None-Match", "*")
		return &response{status: http.StatusNotModified, header: old.header}
	}
	x.Header.Del("If-None-Match")
	x.Header.Del("If-Modified-Since")
	return old
}

func (x *exchange) oldRepresentation() *response {
	j := &x.state.journal
	x.state.mu.Lock()
	known, born := j.reads[x.key()], j.born[x.Path]
	isNew := x.lags(j.written[born])
	x.state.mu.Unlock()
	switch {
	case known == nil && isNew:
		return x.state.missing(born - 1)
	case known == nil:
		return nil
	}
	changes := x.changedSince(known.revision)
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	isOld := func(n int64) bool { return !x.lags(j.written[n]) }
	if len(changes) == 0 || slices.ContainsFunc(changes, isOld) {
		return nil
	}
	return known
}

// missing returns the response to a read of an object that does not exist yet.
func (s *State) missing(revision int64) *response {
	r := newResponse(http.StatusNotFound, "Not Found")
	if s.hooks.Mark != nil {
		r.header.Set(s.hooks.RevisionHeader, strconv.FormatInt(revision, 10))
		r.body = s.hooks.Mark(r.body, revision)
	}
	return r
}

// lags reports whether a replica may lack a write.
func (x *exchange) lags(written time.Time) bool {
	return x.now.Sub(written) < time.Duration(x.set.ReplicaLag)
}

// changedSince returns the writes after a revision that changed the read.
func (x *exchange) changedSince(revision int64) []int64 {
	if since := x.state.hooks.ChangedSince; since != nil && !x.isGraphQL() {
		return since(x.Request, revision)
	}
	var all []int64
	for n := revision + 1; n <= x.started; n++ {
		all = append(all, n)
	}
	return all
}

// record records a write, or a read of the current state. It returns the response for the client.
func (x *exchange) record(r, old *response) *response {
	if x.set.ReplicaLag == 0 {
		return r
	}
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	switch {
	case isLimitError(r):
	case x.isWrite():
		x.recordWrite(r)
	case old != nil && slices.Contains([]int{http.StatusOK, http.StatusAccepted, http.StatusNoContent, http.StatusNotFound, http.StatusNotModified}, r.status):
		header := r.header
		for _, name := range []string{"Etag", "Last-Modified", "Link", "Content-Type", "Location", x.state.hooks.RevisionHeader} {
			if header.Del(name); old.header.Get(name) != "" {
				header.Set(name, old.header.Get(name))
			}
		}
		if old.status == http.StatusNotModified && r.refund != nil {
			r.refund() // the object may be gone, and its 404 was charged
		}
		return &response{status: old.status, header: header, body: old.body, refund: r.refund}
	case x.isRead() && (r.status == http.StatusOK || r.status == http.StatusNotFound):
		x.read(r)
	}
	return r
}

// recordWrite records a write and the object that it created.
func (x *exchange) recordWrite(r *response) {
	j := &x.state.journal
	n, _ := strconv.ParseInt(r.header.Get(x.state.hooks.RevisionHeader), 10, 64) // 0 without a number
	if r.status >= http.StatusBadRequest || n == 0 && x.state.hooks.ChangedSince != nil {
		return
	}
	n = x.state.wrote(n)
	if r.status != http.StatusCreated {
		return
	}
	var created struct {
		URL string `json:"url"`
	}
	_ = json.Unmarshal(r.body, &created) // other bodies have no URL
	for _, address := range []string{created.URL, r.header.Get("Location")} {
		if u, err := url.Parse(address); err == nil && u.Path != "" {
			j.born[u.EscapedPath()] = n
		}
	}
}

// Wrote records a change without a request of the API, such as that of an event. Revision is its number, or 0 if the
// service does not number its writes.
func (s *State) Wrote(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote(revision)
}

// wrote records the time of a write, and returns its number. The caller must hold the lock.
func (s *State) wrote(n int64) int64 {
	j, now := &s.journal, time.Now()
	if n == 0 {
		n = j.last + 1
	}
	j.last = max(j.last, n)
	j.written[n] = now
	maps.DeleteFunc(j.written, func(_ int64, at time.Time) bool { return now.Sub(at) >= time.Duration(s.set.ReplicaLag) })
	maps.DeleteFunc(j.born, func(_ string, n int64) bool { return j.written[n].IsZero() })
	return n
}

// read stores the current representation.
func (x *exchange) read(r *response) {
	j := &x.state.journal
	revision := x.started
	if name := x.state.hooks.RevisionHeader; name != "" && !x.isGraphQL() {
		revision, _ = strconv.ParseInt(r.header.Get(name), 10, 64) // 0 before the first write
	}
	for key := range j.reads {
		if len(j.reads) < maxReads {
			break
		}
		delete(j.reads, key)
	}
	j.reads[x.key()] = &response{status: r.status, header: r.header.Clone(), body: slices.Clone(r.body), revision: revision}
}

// isNew reports whether a state was read for the first time less than d ago.
func (x *exchange) isNew(etag string, d time.Duration) bool {
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	seen, key := x.state.journal.seen, x.key()+"\n"+etag
	first, ok := seen[key]
	if !ok {
		if len(seen) >= maxReads {
			maps.DeleteFunc(seen, func(_ string, at time.Time) bool { return x.now.Sub(at) > d })
		}
		first, seen[key] = x.now, x.now
	}
	return x.now.Sub(first) < d
}
