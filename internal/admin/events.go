package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weirgate/weir/internal/history"
)

const (
	// heartbeatInterval is the interval of comments that keep the connection alive.
	heartbeatInterval = 15 * time.Second
	// eventWriteTimeout is the time in which a watcher must read an event.
	eventWriteTimeout = 10 * time.Second
	// maxLines bounds the accounts of one request for lines.
	maxLines = 100
)

// events streams server-sent events (HTML Living Standard section 9.2). The stream ends when the client disconnects,
// the session ends or the gateway shuts down.
func (g *guard) events(s Sources, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	q := r.URL.Query()
	options := history.WatchOptions{Event: q.Get("only")}
	options.MaxPerSecond, _ = strconv.Atoi(q.Get("rate"))
	options.After, _ = strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 64) // an invalid ID counts as a missing ID
	watcher, err := s.History.Watch(options)
	if errors.Is(err, history.ErrTooMany) {
		w.Header().Set("Retry-After", "10")
	}
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	defer watcher.Close()
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	for text := []byte("retry: 1000\n\n"); ; {
		_ = stream.SetWriteDeadline(time.Now().Add(eventWriteTimeout))
		if _, err := w.Write(text); err != nil {
			return
		}
		if err := stream.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			if _, err := g.authenticate(r); err != nil && !errors.Is(err, errGuesses) {
				return // the session has ended
			}
			text = []byte(":\n\n")
		case e, ok := <-watcher.Events():
			if !ok {
				return
			}
			data, err := json.Marshal(e.Data) // without line breaks
			if err != nil {
				return
			}
			text = fmt.Appendf(nil, "event: %s\nid: %d\ndata: %s\n\n", e.Name, e.ID, data)
		}
	}
}

// series responds with the last hour, or with the budgets of accounts over the last hour.
func (s Sources) series(w http.ResponseWriter, r *http.Request) {
	accounts := r.URL.Query()["account"]
	if len(accounts) > maxLines {
		fail(w, http.StatusBadRequest, fmt.Errorf("account: %d names given; send at most %d", len(accounts), maxLines))
		return
	}
	if len(accounts) > 0 {
		writeJSON(w, s.History.Lines(accounts), "")
		return
	}
	writeJSON(w, struct {
		history.Series
		history.Costs
	}{s.History.Series(), s.History.Costs()}, "")
}
