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

// How often a watcher hears that the connection stands, and how long it may take to take
// in what it is told.
const (
	heartbeat       = 15 * time.Second
	watcherPatience = 10 * time.Second
)

// maxLines bounds of how many accounts one request gets the lines.
const maxLines = 100

// events tells what happens as server-sent events (HTML Living Standard, section 9.2),
// until the client leaves, may know it no longer, or the gateway is shut down.
func (g *guard) events(s Sources, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	q := r.URL.Query()
	want := history.WatchOptions{Event: q.Get("only")}
	want.MaxPerSecond, _ = strconv.Atoi(q.Get("most"))
	want.After, _ = strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 64) // what is no ID is none
	watcher, err := s.History.Watch(want)
	switch {
	case errors.Is(err, history.ErrTooMany):
		w.Header().Set("Retry-After", "10")
		fail(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	defer watcher.Close()
	stream := http.NewResponseController(w)
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for text := []byte("retry: 1000\n\n"); ; {
		_ = stream.SetWriteDeadline(time.Now().Add(watcherPatience))
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
			if _, ok := g.who(r); !ok {
				return // its session has ended
			}
			text = []byte(":\n\n")
		case e, ok := <-watcher.Events():
			if !ok {
				return
			}
			if text, err = written(e); err != nil {
				return
			}
		}
	}
}

// written is an event as it is sent; JSON has no line break that is not escaped.
func written(e history.Event) ([]byte, error) {
	data, err := json.Marshal(e.Data)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "event: %s\nid: %d\ndata: %s\n\n", e.Name, e.ID, data), nil
}

// series answers with the last hour, or with what budgets of accounts had left in it.
func (s Sources) series(w http.ResponseWriter, r *http.Request) {
	accounts := r.URL.Query()["account"]
	if len(accounts) > maxLines {
		fail(w, http.StatusBadRequest, fmt.Errorf("account: %d are too many: at most %d", len(accounts), maxLines))
		return
	}
	if len(accounts) > 0 {
		tell(w, s.History.Lines(accounts))
		return
	}
	tell(w, struct {
		history.Series
		history.Costs
	}{s.History.Series(), s.History.Costs()})
}
