package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// lateLimit is a GraphQL response that is too long for a peek. Its errors follow the data, so a limit error is recognized at
// the end of the body.
type lateLimit struct {
	io.ReadCloser
	header http.Header
	found  func(limits.LimitError)
	// ended returns the failure of the query that the errors of the response show.
	ended func(policy.UpstreamAnswer) string

	tail []byte // the last bytes of the body, at most maxPeek; nil after the end

	mu      sync.Mutex // the body may be read ahead in another goroutine
	limit   limits.LimitError
	failure string
}

// watchEnd replaces the body of a response. A limit error in the last bytes of the body then counts for the account.
func (g *Gateway) watchEnd(a *attempt, resp *http.Response, permit limits.Permit) *lateLimit {
	l := &lateLimit{ReadCloser: resp.Body, header: resp.Header.Clone(), tail: make([]byte, 0, maxPeek)}
	retryAfter, _ := limits.ReadRetryAfter(resp.Header, a.sent)
	ctx := a.detach()
	l.found = func(e limits.LimitError) {
		if err := g.Limiter.SettleLate(ctx, permit, e.Kind, retryAfter); err != nil {
			g.Log.DebugContext(ctx, "limit error not settled", "request", a.record.ID, "error", err)
		}
	}
	q := a.question
	l.ended = func(answer policy.UpstreamAnswer) string { return g.observeQuery(q, permit.Account, answer, 0) }
	resp.Body = l
	return l
}

func (l *lateLimit) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.tail != nil {
		l.keep(p[:n])
	}
	if err == io.EOF && l.tail != nil {
		l.end()
	}
	return n, err
}

// Close also ends a body whose reader has read all bytes without io.EOF.
func (l *lateLimit) Close() error {
	if l.tail != nil {
		l.end()
	}
	return l.ReadCloser.Close()
}

// keep adds bytes to the tail.
func (l *lateLimit) keep(p []byte) {
	p = p[max(0, len(p)-maxPeek):]
	if over := len(l.tail) + len(p) - maxPeek; over > 0 {
		l.tail = l.tail[:copy(l.tail, l.tail[over:])]
	}
	l.tail = append(l.tail, p...)
}

// end looks for the list of errors of the outermost object in the tail. After any other list, further closing brackets follow,
// so the text from such a list on is no valid object.
func (l *lateLimit) end() {
	tail, answer := l.tail, policy.UpstreamAnswer{Status: http.StatusOK, Header: l.header, GraphQL: true}
	l.tail = nil
	defer func() {
		failure := l.ended(answer)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failure = failure
	}()
	name := []byte(`"errors"`)
	for at := bytes.LastIndex(tail, name); at > 0; at = bytes.LastIndex(tail[:at], name) {
		object := append([]byte("{"), tail[at:]...)
		if !json.Valid(object) {
			continue
		}
		answer.Body = object
		e := limits.ReadLimitError(answer)
		if e.Kind != limits.NotLimited {
			l.mu.Lock()
			l.limit = e
			l.mu.Unlock()
			l.found(e)
		}
		return
	}
}

// result returns the limit error of the body, and the failure of the query, as far as the body has been read.
func (l *lateLimit) result() (e limits.LimitError, failure string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit, l.failure
}
