package proxy

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// allLines is how many requests a second have an access line each; of the others of
	// that second one in someLines has. A line takes as long as two hits and more.
	allLines  = 100
	someLines = 1000
)

// lines chooses the requests that have an access line: all unless it is busy, and those
// that failed always. It is safe for concurrent use; where two seconds meet, a few more
// may have one.
type lines struct {
	second  atomic.Int64 // since 1970
	count   atomic.Int64 // of requests in that second
	omitted atomic.Int64 // since the last line
}

// admit reports whether a request has a line, and how many had none since the last.
func (l *lines) admit(now time.Time, failed bool) (omitted int64, ok bool) {
	if second := now.Unix(); l.second.Swap(second) != second {
		l.count.Store(0)
	}
	n := l.count.Add(1)
	if !failed && n > allLines && n%someLines != 0 {
		l.omitted.Add(1)
		return 0, false
	}
	return l.omitted.Swap(0), true
}

// logAccess writes the request's access line.
func (g *Gateway) logAccess(ex *exchange) {
	r := &ex.record
	omitted, ok := g.lines.admit(r.Start.Add(r.Elapsed), r.Error != "" || r.Status >= http.StatusInternalServerError && r.Attempts > 0)
	if !ok {
		return
	}
	attrs := r.attrs()
	if omitted > 0 {
		attrs = append(attrs, slog.Int64("omitted", omitted))
	}
	g.Log.LogAttrs(ex.detach(), slog.LevelInfo, "request", attrs...)
}
