package proxy

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// silent returns an upstream that pauses before the response header, and between the two parts of a body of this type.
func silent(mediaType string, before, between time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if sleep(r.Context(), before) != nil {
			return
		}
		w.Header().Set("Content-Type", mediaType)
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		if sleep(r.Context(), between) != nil {
			return
		}
		_, _ = io.WriteString(w, "second\n")
	}
}

// openOver sends a request over a protocol, and returns the response when its header fields have arrived.
func (w *world) openOver(protocol, method, path string, body io.Reader) *http.Response {
	w.Helper()
	client, scheme := w.client, "http"
	if protocol == http2 {
		client, scheme = w.http2Client(), "https"
	}
	return testservers.Must(client.Do(w.newRequest(context.Background(), method, scheme+"://gateway.test"+path, body, owner)))
}

// Long polls, event streams and slow downloads pass with the usual timeout of 30 seconds, over both protocols on both sides.
func TestSilentUpstreamsPass(t *testing.T) {
	files := func(c *Config) { c.Catalogue, c.Host = policy.Files, "files.test" }
	api := func(*Config) {}
	for _, c := range []struct {
		name, method, path string
		host               option
		mediaType          string
		before, between    time.Duration
		whole              bool
	}{
		{"long poll", "GET", "/message", api, "application/json", 50 * time.Second, 0, true},
		{"long poll of a host", "GET", "/message", files, "application/json", 50 * time.Second, 0, true},
		{"answer to a call of MCP", "POST", "/mcp", files, "text/event-stream", time.Second, time.Minute, true},
		{"events of MCP", "GET", "/mcp", files, "text/event-stream; charset=utf-8", 0, 40 * time.Minute, true},
		{"events of a known operation", "GET", "/gitignore/templates/Go", api, "text/event-stream", 0, 10 * time.Minute, true},
		{"lines of JSON", "GET", "/gitignore/templates/Go", api, "application/x-ndjson", 0, 10 * time.Minute, true},
		{"download", "GET", "/archive", files, "application/octet-stream", 0, 50 * time.Second, true},
		{"dead upstream of a known operation", "GET", "/gitignore/templates/Go", api, "application/json", 31 * time.Second, 0, false},
		{"dead body of a known operation", "GET", "/gitignore/templates/Go", api, "application/octet-stream", 0, 31 * time.Second, false},
		{"dead upstream of a host", "GET", "/archive", files, "application/octet-stream", 3 * time.Minute, 0, false},
	} {
		for _, protocol := range []string{http1, http2} {
			bubble(t, c.name+" "+protocol, func(t *testing.T) {
				w := newWorldOver(t, protocol, silent(c.mediaType, c.before, c.between), c.host)
				var body io.Reader
				if c.method == http.MethodPost {
					body = strings.NewReader("{}")
				}
				began := time.Now()
				resp := w.openOver(protocol, c.method, c.path, body)
				first := make([]byte, 6)
				_, err := io.ReadFull(resp.Body, first)
				if c.whole {
					failIf(t, err != nil || time.Since(began) > c.before+time.Second, "first part: %q, %v after %v", first, err, time.Since(began))
				}
				r := receive(resp, nil)
				w.want("complete", r.StatusCode == http.StatusOK && r.err == nil && r.body == "second\n", c.whole)
			})
		}
	}
}

// A long poll does no work at the upstream while it waits, so it leaves CPU time to other requests.
func TestLongPollsLeaveCPUTime(t *testing.T) {
	upstream := byPath(replies("{}"), map[string]http.HandlerFunc{"/message": silent("text/plain", 28*time.Second, 0)})
	setup(upstream).run(t, func(w *world) {
		for i := range 40 { // the account is no longer new
			w.wantReply("first reads", w.get("/gitignore/templates/"+strconv.Itoa(i), owner), http.StatusOK)
		}
		var polls sync.WaitGroup
		for range 6 {
			polls.Go(func() { w.wantReply("poll", w.get("/message", owner, "Prefer: wait=60"), http.StatusOK) })
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		w.wantReply("read during the polls", w.get("/gitignore/templates/a", owner, "Prefer: wait=0"), http.StatusOK)
		polls.Wait()
		w.wantReply("read after the polls", w.get("/gitignore/templates/b", owner, "Prefer: wait=0"), http.StatusOK)
	})
}

// A client that leaves a silent stream ends the request upstream at once. Its slot is free after the 10 seconds during which
// the upstream may still count the request.
func TestLeavingASilentStreamFreesTheSlot(t *testing.T) {
	for _, protocol := range []string{http1, http2} {
		bubble(t, protocol, func(t *testing.T) {
			ended := make(chan struct{})
			upstream := byPath(replies("{}"), map[string]http.HandlerFunc{"/events": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				close(ended)
			}})
			w := newWorldOver(t, protocol, upstream, oneSlot)
			resp := w.openOver(protocol, http.MethodGet, "/events", http.NoBody)
			time.Sleep(5 * time.Minute)
			_ = resp.Body.Close()
			began := time.Now()
			<-ended
			w.want("end upstream at once", time.Since(began) < time.Second, true)
			time.Sleep(11 * time.Second)
			w.wantReply("next request", w.get("/repos/a/b", owner, "Prefer: wait=0"), http.StatusOK)
		})
	}
}

// Identical requests that may be long polls do not wait for each other. They share a body whose header arrived in time.
func TestLongPollsDoNotWaitForEachOther(t *testing.T) {
	upstream := byPath(nil, map[string]http.HandlerFunc{
		"/message": silent("text/plain", 50*time.Second, 0), "/gitignore/templates/Go": silent("text/plain", 25*time.Second, 0),
		"/archive": func(w http.ResponseWriter, r *http.Request) {
			setFields(w, "Cache-Control: max-age=60", "Content-Length: 13")
			silent("text/plain", time.Second, 25*time.Second)(w, r)
		},
	})
	api, files := func(*Config) {}, func(c *Config) { c.Catalogue, c.Host = policy.Files, "files.test" }
	for _, c := range []struct {
		name, path     string
		host           option
		replicas, sent int
		took           time.Duration
	}{
		{"polls", "/message", api, 1, 3, 50*time.Second + pollPatience},
		{"polls of a host", "/message", files, 1, 3, 50*time.Second + pollPatience},
		{"polls of replicas", "/message", api, 2, 3, 50*time.Second + 2*pollPatience},
		{"slow bodies", "/archive", files, 1, 1, 26 * time.Second},
		{"known operation", "/gitignore/templates/Go", api, 2, 1, 25 * time.Second},
	} {
		setup(upstream, c.host).sub(t, c.name, func(w *world) {
			list, _ := w.replicas(c.replicas)
			var clients sync.WaitGroup
			for i := range 3 {
				clients.Go(func() {
					began := time.Now()
					w.want("status", sendTo(list[i%len(list)], c.path).Code, http.StatusOK)
					failIf(w, time.Since(began) > c.took+time.Second, "request %d took %v", i, time.Since(began))
				})
				time.Sleep(2 * time.Second)
			}
			clients.Wait()
			w.want("requests upstream", w.upstreamSaw(), c.sent)
		})
	}
}
