//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestFullProcessShedsLoad sends more requests than a process with a memory limit of 64 MiB can hold, while the
// upstream does not respond. Further requests must get 503 with Retry-After immediately. The admitted requests must
// complete when the upstream responds.
func TestFullProcessShedsLoad(t *testing.T) {
	t.Parallel()
	const clients = 1500
	var admitted, shed atomic.Int32
	release := make(chan struct{})
	upstream := serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		admitted.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	r := serveText(t, `upstream: {url: "`+upstream+`", timeout: 3m}`+"\nlimits: {inbound: {rate: 0}, cold_start: trust}\n"+
		"cache: {memory: 8MiB}", "GOMEMLIMIT=64MiB")
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
	var mu sync.Mutex
	succeeded, failures := 0, map[string]int{}
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			outcome := tryRequest(t.Context(), client, r.url, i)
			mu.Lock()
			defer mu.Unlock()
			switch outcome {
			case "200":
				succeeded++
			case "shed":
				shed.Add(1)
			default:
				failures[outcome]++
			}
		})
		sleep(t.Context(), 500*time.Microsecond)
	}
	testservers.Eventually(t, "each request is admitted or shed", func(context.Context) bool { return admitted.Load()+shed.Load() == clients })
	waiting, refused := int(admitted.Load()), shed.Load()
	close(release)
	group.Wait()
	failIf(t, waiting < 100 || refused < 100 || succeeded != waiting || len(failures) > 0, "%d admitted, %d shed, %d succeeded, other outcomes %v", waiting, refused, succeeded, failures)
}

// tryRequest sends one request with its own token, and classifies the response.
func tryRequest(ctx context.Context, client *http.Client, url string, n int) (outcome string) {
	resp, _, err := do(client, newRequest(ctx, http.MethodGet, fmt.Sprint(url, "/users/", n), "", fmt.Sprint("Authorization: Bearer ", n)))
	if err != nil {
		return err.Error()
	}
	switch status := resp.Header.Get("Cache-Status"); {
	case resp.StatusCode == http.StatusOK:
		return "200"
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "1" && strings.HasSuffix(status, "detail=overload"):
		return "shed"
	default:
		return resp.Status + " " + status
	}
}
