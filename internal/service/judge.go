package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Read is a response to a GET request, for [Service.Check].
type Read struct {
	Target        string  `json:"target"`        // the path and query
	Authorization string  `json:"authorization"` // of the request
	Revision      int64   `json:"revision"`      // of the response
	Written       []int64 `json:"written"`       // the revisions of own writes that were answered before the request was sent
}

// Verdict is the result of [Service.Check]. Missing are the own writes that the response had to show and did not.
type Verdict struct {
	Operation string  `json:"operation"`
	Missing   []int64 `json:"missing"`
}

// Check decides whether a read is stale: an own write had been answered before the read was sent, it changed what the
// read shows, and the response is older. Check counts stale reads in [Violations].
func (s *Service) Check(read Read) (Verdict, error) {
	u, err := url.ParseRequestURI(read.Target)
	if err != nil {
		return Verdict{}, fmt.Errorf("judge read of %q: %w", read.Target, err)
	}
	r := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}
	if read.Authorization != "" {
		r.Header.Set("Authorization", read.Authorization)
	}
	changes := s.changedSince(r, read.Revision)
	op := s.Match(http.MethodGet, u.EscapedPath())
	if op == nil {
		return Verdict{}, nil
	}
	v := Verdict{Operation: op.ID}
	for _, n := range changes {
		if slices.Contains(read.Written, n) && !slices.Contains(v.Missing, n) {
			v.Missing = append(v.Missing, n)
		}
	}
	slices.Sort(v.Missing)
	if v.Missing != nil {
		s.meter.recordStale()
	}
	return v, nil
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

// Judge finds stale reads on the client's side of a gateway. It records the writes that pass through its transports,
// and checks the reads. It is safe for concurrent use.
type Judge struct {
	// Lag is the time after a write for which reads may be older. Set it before the first request.
	Lag   time.Duration
	check func(context.Context, Read) (Verdict, error)

	mu       sync.Mutex
	at       map[int64]time.Time // of the responses to these writes
	written  map[string][]int64 // the revisions of answered writes by caller, ascending
	requests map[int64]string   // the requests of these writes
	tags     map[string]int64   // the revision of the representation with an ETag
	stale    []string
	judged   int
	unjudged int
}

// NewJudge returns a judge for a service in the same process.
func NewJudge(s *Service) *Judge {
	return newJudge(func(_ context.Context, r Read) (Verdict, error) { return s.Check(r) })
}

// NewRemoteJudge returns a judge for the service at a base URL.
func NewRemoteJudge(base string, client *http.Client) *Judge {
	return newJudge(func(ctx context.Context, read Read) (v Verdict, err error) {
		body, err := json.Marshal(read)
		if err != nil {
			return v, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+controlPrefix+"judge", bytes.NewReader(body))
		if err != nil {
			return v, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return v, err
		}
		defer func() { err = errors.Join(err, resp.Body.Close()) }()
		if resp.StatusCode != http.StatusOK {
			return v, fmt.Errorf("judge read of %s: status %d", read.Target, resp.StatusCode)
		}
		return v, json.NewDecoder(resp.Body).Decode(&v)
	})
}

func newJudge(check func(context.Context, Read) (Verdict, error)) *Judge {
	return &Judge{check: check, written: map[string][]int64{}, requests: map[int64]string{}, at: map[int64]time.Time{}, tags: map[string]int64{}}
}

// Transport returns a transport that sends requests with next and judges the responses. Writes of one caller are the
// own writes of its reads. The name is free; it is usually the client's token.
func (j *Judge) Transport(caller string, next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		written := j.answered(caller)
		resp, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if !isRead(r.Method) {
			j.record(caller, r, resp)
			return resp, nil
		}
		return resp, j.judge(r, resp, body, written)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answered returns the writes of a caller that its reads must show now.
func (j *Judge) answered(caller string) []int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.Lag == 0 {
		return j.written[caller]
	}
	return slices.DeleteFunc(slices.Clone(j.written[caller]), func(n int64) bool { return time.Since(j.at[n]) < j.Lag })
}

// record records an answered write. A refused write has no revision.
func (j *Judge) record(caller string, r *http.Request, resp *http.Response) {
	n, err := strconv.ParseInt(resp.Header.Get(RevisionHeader), 10, 64)
	if err != nil || n == 0 || resp.StatusCode >= 400 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests[n], j.at[n] = fmt.Sprintf("%d: %s %s", n, r.Method, r.URL.RequestURI()), time.Now()
	list := slices.Clone(j.written[caller])
	at, _ := slices.BinarySearch(list, n)
	j.written[caller] = slices.Insert(list, at, n)
}

// judge checks the response to a read.
func (j *Judge) judge(r *http.Request, resp *http.Response, body []byte, written []int64) error {
	revision, ok := j.revision(r, resp, body)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusFound, http.StatusNotModified, http.StatusNotFound, http.StatusAccepted:
	default:
		return nil // no statement about the state
	}
	j.mu.Lock()
	if ok {
		j.judged++
	} else {
		j.unjudged++
	}
	j.mu.Unlock()
	at, found := slices.BinarySearch(written, revision)
	if found {
		at++
	}
	if !ok || at == len(written) {
		return nil
	}
	v, err := j.check(r.Context(), Read{r.URL.RequestURI(), r.Header.Get("Authorization"), revision, written[at:]})
	if err != nil || v.Missing == nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var missing []string
	for _, n := range v.Missing {
		missing = append(missing, j.requests[n])
	}
	j.stale = append(j.stale, fmt.Sprintf("%s %s (%s): status %d, revision %d, but these writes of the caller were answered before: %s; Cache-Status: %s; at %s",
		r.Method, r.URL.RequestURI(), v.Operation, resp.StatusCode, revision, strings.Join(missing, ", "), resp.Header.Get("Cache-Status"), time.Now().UTC().Format(time.StampMilli)))
	return nil
}

// revision returns the revision of a response. A 304 has the revision of the representation that the client holds.
func (j *Judge) revision(r *http.Request, resp *http.Response, body []byte) (int64, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	tag := resp.Header.Get("Etag")
	if resp.StatusCode == http.StatusNotModified {
		if tag == "" {
			tag = r.Header.Get("If-None-Match")
		}
		n, ok := j.tags[tag]
		return n, ok
	}
	n, ok := Revision(body)
	if !ok { // without a body, or no JSON
		var err error
		n, err = strconv.ParseInt(resp.Header.Get(RevisionHeader), 10, 64)
		ok = err == nil
	}
	if ok && tag != "" {
		j.tags[tag] = n
	}
	return n, ok
}

// Stale returns a description of each stale read.
func (j *Judge) Stale() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.stale)
}

// Judged returns the numbers of judged reads, and of reads without a revision. The latter should be 0, except for
// responses that the gateway generates.
func (j *Judge) Judged() (judged, unjudged int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.judged, j.unjudged
}
