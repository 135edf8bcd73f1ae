package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// These are the values of the setting telemetry.access_log. [AccessLogErrors] selects refusals by Weir, limit errors of the
// upstream, responses with status 500 and above, requests with an error in their record, and numbers outside their range.
const (
	AccessLogAll    = "all"
	AccessLogErrors = "errors"
	AccessLogOff    = "off"
)

// failed reports whether [AccessLogErrors] selects a request. The access line of such a request is written at once.
func failed(r *record.Record) bool {
	return r.Error != "" || r.OutsideRange != "" || r.Outcome == record.OutcomeRefused || r.Limited != policy.NotLimited || r.Status >= http.StatusInternalServerError
}

// accessLog writes one line for each request. It is not safe for concurrent use.
type accessLog struct {
	handler    slog.Handler // nil without access lines
	onlyFailed bool
	attrs      []slog.Attr // of the last line
}

// newAccessLog returns an access log that writes to out, and exports to remote if it is not nil.
func newAccessLog(c Config, out io.Writer, remote slog.Handler) accessLog {
	if c.AccessLog == AccessLogOff || c.Level > slog.LevelInfo {
		return accessLog{}
	}
	return accessLog{handler: &logs{local: newHandler(out, c), remote: remote}, onlyFailed: c.AccessLog == AccessLogErrors}
}

// write writes the line of a request.
func (a *accessLog) write(r *record.Record) {
	if a.handler == nil || a.onlyFailed && !failed(r) {
		return
	}
	a.attrs = append(a.attrs[:0],
		slog.String("request", r.ID),
		slog.String("method", r.Method),
		slog.String("route", r.Route),
		slog.String("operation", r.Operation),
		slog.String("account", r.Account),
		slog.String("path", r.Path),
		slog.String("target", r.Target),
		slog.Int("status", r.Status),
		slog.Int64("bytes", r.Bytes),
		slog.Duration("elapsed", r.Elapsed),
		slog.String("cache", r.Cache.String()),
		slog.Int("attempts", r.Sent),
		slog.Int("spent", r.Spent),
		slog.Duration("waited", r.Waited),
	)
	if r.Background {
		a.attrs = append(a.attrs, slog.Bool("background", true))
	}
	if r.Limited != policy.NotLimited {
		a.attrs = append(a.attrs, slog.String("limited", string(r.Limited)))
	}
	for _, optional := range [...]slog.Attr{
		slog.String("limit_answer", r.LimitAnswer), slog.String("query_failure", r.QueryFailure), slog.String("api_version", r.Version), slog.String("client", r.Client), slog.String("tag", r.Tag),
		slog.String("outside_range", r.OutsideRange), slog.String("error", r.Error),
	} {
		if optional.Value.String() != "" {
			a.attrs = append(a.attrs, optional)
		}
	}
	line := slog.NewRecord(r.Start.Add(r.Elapsed), slog.LevelInfo, "request", 0)
	line.AddAttrs(slog.Attr{Value: slog.GroupValue(a.attrs...)}) // inlined, because it has no name
	_ = a.handler.Handle(exemplarContext(r), line)               // the lineWriter counts lost lines
}

// maxUnwritten bounds the bytes of access lines that wait for a slow writer.
const maxUnwritten = 4 << 20

// lineWriter writes lines in the background. It drops and counts lines above maxUnwritten, and lines that cannot be
// written.
type lineWriter struct {
	out     io.Writer
	dropped *atomic.Int64

	mu     sync.Mutex
	buffer []byte // lines that are not written

	writing sync.Mutex // held while lines leave the buffer and are written, so that they stay in order
	spare   []byte     // an empty buffer; guarded by writing

	wake, stop, done chan struct{}
}

// open starts the goroutine of the writer.
func (w *lineWriter) open(out io.Writer, dropped *atomic.Int64) {
	w.out, w.dropped = out, dropped
	w.wake, w.stop, w.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go w.run()
}

// Write adds a line to the buffer.
func (w *lineWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buffer)+len(line) > maxUnwritten {
		w.dropped.Add(1)
	} else {
		w.buffer = append(w.buffer, line...)
	}
	return len(line), nil
}

func (w *lineWriter) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default: // already requested
	}
}

func (w *lineWriter) run() {
	defer close(w.done)
	for {
		select {
		case <-w.wake:
			w.flush()
		case <-w.stop:
			w.flush()
			return
		}
	}
}

// flush writes the buffer in one call.
func (w *lineWriter) flush() {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	lines := w.buffer
	w.buffer = w.spare
	w.mu.Unlock()
	if len(lines) > 0 {
		if n, err := w.out.Write(lines); err != nil {
			w.dropped.Add(int64(bytes.Count(lines[n:], []byte("\n"))))
		}
	}
	w.spare = lines[:0]
}

// close writes the buffer, and blocks until that is done, for at most closeTimeout.
func (w *lineWriter) close() {
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(closeTimeout):
	}
}
