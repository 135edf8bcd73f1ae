package testservers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// revisionHeader is the response header with the revision.
const revisionHeader = "X-Github-Revision"

// Judge finds stale reads on the client's side of a gateway. It records the writes that pass through its transports,
// and checks the reads. A read is stale if an own write had been answered before the read was sent, it changed what the
// read shows, and the response is older. A judge is safe for concurrent use.
type Judge struct {
	// Lag is the time after a write for which reads may be older. Set it before the first request.
	Lag     time.Duration
	missing func(read *http.Request, revision int64, written []int64) []int64

	mu       sync.Mutex
	at       map[int64]time.Time // of the responses to these writes
	written  map[string][]int64  // the revisions of answered writes by caller, ascending
	requests map[int64]string    // the requests of these writes
	tags     map[string]int64    // the revision of the representation with an ETag
	stale    []string
	judged   int
	unjudged int
}

// NewJudge returns a judge. The function is the method Missing of the reference service: it returns which of the writes a
// read had to show, if its response has the revision.
func NewJudge(missing func(read *http.Request, revision int64, written []int64) []int64) *Judge {
	return &Judge{missing: missing, at: map[int64]time.Time{}, written: map[string][]int64{}, requests: map[int64]string{}, tags: map[string]int64{}}
}

// Transport returns a transport that sends requests with next and judges the responses. Writes of one caller are the
// own writes of its reads. The name is free; it is usually the client's token.
func (j *Judge) Transport(caller string, next http.RoundTripper) http.RoundTripper {
	return RoundTripper(func(r *http.Request) (*http.Response, error) {
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
		if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
			j.judge(r, resp, body, written)
		} else {
			j.record(caller, r, resp)
		}
		return resp, nil
	})
}

// RoundTripper is a function that implements http.RoundTripper.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answered returns the writes of a caller that its reads must show now.
func (j *Judge) answered(caller string) []int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.written[caller]), func(n int64) bool { return time.Since(j.at[n]) < j.Lag })
}

// record records an answered write. A refused write has no revision.
func (j *Judge) record(caller string, r *http.Request, resp *http.Response) {
	n, err := strconv.ParseInt(resp.Header.Get(revisionHeader), 10, 64)
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
func (j *Judge) judge(r *http.Request, resp *http.Response, body []byte, written []int64) {
	revision, ok := j.revision(r, resp, body)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusFound, http.StatusNotModified, http.StatusNotFound, http.StatusAccepted:
	default:
		return // no statement about the state
	}
	var missing []int64
	if ok && len(written) > 0 && written[len(written)-1] > revision {
		missing = j.missing(r, revision, written)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !ok {
		j.unjudged++
		return
	}
	j.judged++
	if len(missing) == 0 {
		return
	}
	var writes []string
	for _, n := range missing {
		writes = append(writes, j.requests[n])
	}
	j.stale = append(j.stale, fmt.Sprintf("%s %s: status %d, revision %d, but these writes of the caller were answered before: %s; Cache-Status: %s; at %s",
		r.Method, r.URL.RequestURI(), resp.StatusCode, revision, strings.Join(writes, ", "), resp.Header.Get("Cache-Status"), time.Now().UTC().Format(time.StampMilli)))
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
	if !ok { // without a body, no JSON, or a full page, whose ETag may have several revisions
		n, err := strconv.ParseInt(resp.Header.Get(revisionHeader), 10, 64)
		return n, err == nil
	}
	if tag != "" {
		j.tags[tag] = n
	}
	return n, true
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

// Revision returns the revision that a body carries, and whether it carries one.
func Revision(body []byte) (int64, bool) {
	digits := body[bytes.LastIndexByte(body, '\n')+1:]
	if len(digits) == 0 || len(digits) == len(body) {
		return 0, false
	}
	number := strings.NewReplacer(" ", "0", "\t", "1").Replace(string(digits))
	revision, err := strconv.ParseInt(number, 2, 64)
	return revision, err == nil
}
