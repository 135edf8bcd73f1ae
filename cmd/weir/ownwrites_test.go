package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// TestClientSeesItsWriteThroughTheOtherReplica writes through one gateway and reads at once through another gateway,
// whose connections to Redis are slower. Other clients read through the other gateway at the same time.
func TestClientSeesItsWriteThroughTheOtherReplica(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (address, overLink string, link *testservers.Link){
		"redis-server": func(t *testing.T) (address, overLink string, link *testservers.Link) {
			socket := testservers.Redis(t)
			link = testservers.NewSocketLink(t, socket)
			return "unix://" + socket, "unix://" + link.Address, link
		},
		"miniredis": func(t *testing.T) (address, overLink string, link *testservers.Link) {
			server := miniredis.RunT(t)
			link = testservers.NewLink(t, server.Addr())
			return "redis://" + server.Addr(), "redis://" + link.Address, link
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var written atomic.Int64
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private, max-age=600")
				if r.Method == http.MethodPatch {
					written.Add(1)
				}
				_, _ = fmt.Fprint(w, written.Load())
				if r.Method == http.MethodPatch && written.Load()%2 == 0 { // a body without a length
					_ = http.NewResponseController(w).Flush()
				}
			}))
			t.Cleanup(up.Close)
			address, overLink, link := start(t)
			open := func(store string) http.Handler {
				cfg := config.Default()
				cfg.Upstream.URL, cfg.Store.URL, cfg.Limits.Inbound.Rate, cfg.Upstream.Limits = up.URL, store, 0, false
				g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(g.close)
				return g
			}
			near, far := open(address), open(overLink)
			link.Delay(time.Millisecond)
			send := func(g http.Handler, method string) string {
				r := httptest.NewRequest(method, "/repos/acme/widgets/issues/3", strings.NewReader("{}"))
				if method == http.MethodGet {
					r.Body = http.NoBody
				}
				r.Header.Set("Authorization", "Bearer caller-token")
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				body, err := io.ReadAll(w.Body)
				if err != nil || w.Code != http.StatusOK {
					t.Errorf("%s: %d, %v", method, w.Code, err)
				}
				return string(body)
			}
			took, stale := make([]time.Duration, map[string]int{"redis-server": 1000, "miniredis": 200}[name]), 0
			for i := range took {
				reader := make(chan struct{})
				go func() { // this read may fetch the old response during the write
					defer close(reader)
					send(far, http.MethodGet)
				}()
				began := time.Now()
				send(near, http.MethodPatch)
				took[i] = time.Since(began)
				if got := send(far, http.MethodGet); got != fmt.Sprint(i+1) && took[i] < 250*time.Millisecond { // the bound of the wait
					stale++
				}
				<-reader
			}
			slices.Sort(took)
			t.Logf("a write took %v (median), %v (99th percentile)", took[len(took)/2], took[len(took)*99/100])
			if stale > 0 {
				t.Errorf("%d of %d reads did not see the write before", stale, len(took))
			}
		})
	}
}
