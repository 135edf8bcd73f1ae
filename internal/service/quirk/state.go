package quirk

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Hooks connect the quirks to a service. All hooks may be nil.
type Hooks struct {
	// RevisionHeader is the response header with the number of a write, and of the last write that a read shows.
	// ChangedSince returns the numbers of the later writes that changed what a read shows. Without these hooks, each write
	// may have changed all reads, so that ReplicaLag affects fewer of them.
	RevisionHeader string
	ChangedSince   func(r *http.Request, revision int64) []int64
	// Mark returns a body with a revision.
	Mark func(body []byte, revision int64) []byte
}

// State applies a set of quirks. It is safe for concurrent use.
type State struct {
	hooks   Hooks
	refused sync.Map // streams that the service refused

	mu       sync.Mutex // guards the fields below
	set      Set
	active   bool // any quirk is set
	random   *rand.Rand
	counts   map[string]int       // candidates for the quirks that occur every N times
	episodes map[string]time.Time // the ends, by scope and credential
	minted   map[string]time.Time // installation tokens
	granted  time.Time            // when PermissionSnapshot was set
	journal  journal
}

// New returns the state for a set. The seed determines all random choices.
func New(seed uint64, set Set, hooks Hooks) *State {
	s := &State{
		hooks: hooks, random: rand.New(rand.NewPCG(seed, 2)),
		counts: map[string]int{}, episodes: map[string]time.Time{}, minted: map[string]time.Time{},
		journal: journal{written: map[int64]time.Time{}, born: map[string]int64{}, reads: map[string]*response{}, seen: map[string]time.Time{}},
	}
	s.Put(set)
	return s
}

// Current returns the set in force.
func (s *State) Current() Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// Put replaces the set in force.
func (s *State) Put(set Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(set)
}

// Change changes the quirks that a JSON object names, and returns the set in force.
func (s *State) Change(text []byte) (Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, err := Parse(text, s.set)
	if err == nil {
		s.put(set)
	}
	return set, err
}

// put replaces the set in force. The caller must hold the lock.
func (s *State) put(set Set) {
	if !reflect.DeepEqual(set.PermissionSnapshot, s.set.PermissionSnapshot) {
		s.granted = time.Now()
	}
	s.set, s.active = set, !reflect.ValueOf(set).IsZero()
}

// UpTo returns a random number from 0 to n.
func (s *State) UpTo(n int64) int64 {
	if n <= 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.Int64N(n + 1)
}

// Due counts a candidate for a quirk that occurs every n-th time, and reports whether it occurs now.
func (s *State) Due(name string, every int) bool {
	if every == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[name]++
	return s.counts[name]%every == 0
}

// Delay waits for least plus a random part of random, or until ctx ends.
func (s *State) Delay(ctx context.Context, least, random Duration) {
	if d := time.Duration(least) + time.Duration(s.UpTo(int64(random))); d > 0 {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		<-ctx.Done()
	}
}

// maxBody is the number of bytes of a request body that the quirks read.
const maxBody = 1 << 20

// exchange is one request with the set at its arrival.
type exchange struct {
	*http.Request
	Path    string // the escaped path
	state   *State
	set     Set
	now     time.Time // of the arrival
	started int64     // number of the last write at the arrival
	raw     []byte    // the body, once read
}

// body returns the body of the request, which the service can still read.
func (x *exchange) body() []byte {
	if x.raw == nil && x.Body != nil {
		x.raw, _ = io.ReadAll(io.LimitReader(x.Body, maxBody)) // the service gets the error, too
		x.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(x.raw), x.Body), x.Body}
	}
	return x.raw
}

// token returns the token of the request, also if it is the password of Basic authentication.
func (x *exchange) token() string {
	if _, password, ok := x.BasicAuth(); ok {
		return password
	}
	_, token, _ := strings.Cut(x.Header.Get("Authorization"), " ")
	return token
}

// happens reports whether a chance selects the response to a request.
func (x *exchange) happens(c Chance) bool {
	if c.Operations != nil {
		return c.Operations.match(x.Method, x.Path)
	}
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	return x.state.random.Float64() < c.Probability
}

func (c Chance) isZero() bool { return c.Probability == 0 && c.Operations == nil }

// response is a response that no client has seen. It is the [http.ResponseWriter] of the service.
type response struct {
	status int
	header http.Header
	body   []byte
	refund func() // makes the request cost nothing; may be nil
	// limited marks a limit error, which must arrive: otherwise no client could know the limit.
	limited bool
	// revision is the number of the last write before a read.
	revision int64
}

// SetRefund sets a function that makes the request cost nothing, for a quirk that responds with 304.
func (r *response) SetRefund(refund func()) { r.refund = refund }

// becomeNotModified turns a response into a 304.
func (r *response) becomeNotModified(tag string) {
	r.status, r.body = http.StatusNotModified, nil
	r.header.Set("Etag", tag)
	if r.refund != nil {
		r.refund()
	}
}

// newResponse returns an error response, or an empty response without a message.
func newResponse(status int, message string) *response {
	r := &response{status: status, header: http.Header{}}
	if message != "" {
		r.header.Set("Content-Type", "application/json; charset=utf-8")
		r.body = fmt.Appendf(nil, `{"message":%q,"documentation_url":"https://docs.github.com/rest"}`, message)
	}
	return r
}

// Header implements http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

// ServeHTTP writes the response.
func (r *response) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	maps.Copy(w.Header(), r.header)
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body) // the client may be gone
}

func (r *response) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, p...)
	return len(p), nil
}

// Service serves a request of the API. If instead is not nil, the service counts the request as usual, and lets instead
// respond.
type Service func(w http.ResponseWriter, r *http.Request, instead http.Handler)

// Serve serves a request of the API with next, and applies the quirks.
func (s *State) Serve(w http.ResponseWriter, r *http.Request, next Service) {
	stream := r.Header.Get(streamField)
	r.Header.Del(streamField)
	s.mu.Lock()
	set, active, last := s.set, s.active, s.journal.last
	s.mu.Unlock()
	if !active {
		next(w, r, nil)
		return
	}
	x := &exchange{Request: r.Clone(r.Context()), Path: r.URL.EscapedPath(), state: s, set: set, now: time.Now(), started: last}
	if x.happens(set.RefusedStream) {
		s.refuse(stream)
		panic(http.ErrAbortHandler)
	}
	resp := cmp.Or(x.unknownToken(), x.endedVersion(), x.episode("graphql"))
	if resp == nil {
		resp = x.run(next)
		x.limit(resp)
		if !resp.limited && x.happens(set.ResetAfterProcessing) {
			panic(http.ErrAbortHandler)
		}
		x.exceed(resp)
		x.unfinished(resp)
		x.notModified(resp)
	}
	x.rate(resp)
	x.write(w, resp)
}

// run returns the response of the service, or what a quirk or a replica returns at the cost of the service.
func (x *exchange) run(next Service) *response {
	resp := newResponse(0, "")
	if instead := cmp.Or(x.episode("content"), x.oldPermissions(), x.oldName()); instead != nil {
		next(resp, x.Request, instead)
		return resp
	}
	old := x.replica()
	next(resp, x.Request, nil)
	resp.WriteHeader(http.StatusOK)
	x.mint(resp)
	return x.record(resp, old)
}

// write writes the response, and applies the quirks of the connection.
func (x *exchange) write(w http.ResponseWriter, r *response) {
	maps.Copy(w.Header(), r.header)
	if x.state.Due("goaway_every", x.set.GoAwayEvery) {
		w.Header().Set("Connection", "close") // net/http sends GOAWAY over HTTP/2
	}
	truncated := len(r.body) > 1 && !r.limited && x.state.Due("truncate_every", x.set.TruncateEvery)
	half := 0
	if truncated || x.set.SlowBody > 0 && !r.limited {
		half = len(r.body) / 2
	}
	w.Header().Del("Content-Length")
	if len(r.body) > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	w.WriteHeader(r.status)
	if half > 0 {
		_, _ = w.Write(r.body[:half]) // the client may be gone
		_ = http.NewResponseController(w).Flush()
		x.state.Delay(x.Context(), x.set.SlowBody, 0)
	}
	if truncated {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(r.body[half:])
}
