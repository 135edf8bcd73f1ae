package proxy

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// computing is an upstream whose statistics are ready after a while.
func computing(ready time.Duration) http.HandlerFunc {
	var began time.Time
	return func(w http.ResponseWriter, r *http.Request) {
		if began.IsZero() {
			began = time.Now()
		}
		if time.Since(began) < ready {
			w.WriteHeader(http.StatusAccepted)
			_, _ = fmt.Fprint(w, "{}")
			return
		}
		_, _ = fmt.Fprint(w, `{"all":[1]}`)
	}
}

func TestStatisticsAreAskedForAgain(t *testing.T) {
	const participation = "/repos/acme/widgets/stats/participation"
	for _, c := range []struct {
		name, path, prefer string
		ready              time.Duration
		status, attempts   int
		takes              time.Duration
		retry              string
	}{
		{"ready at the second poll", participation, "", 2 * time.Second, 200, 3, 3 * time.Second, ""},
		{"ready at once", participation, "", 0, 200, 1, 0, ""},
		{"not ready in the default wait", participation, "", time.Hour, 202, 5, 10 * time.Second, "15"},
		{"the client waits longer", participation, "wait=20", 16 * time.Second, 200, 6, 20 * time.Second, ""},
		{"the client does not wait", participation, "respond-async", time.Second, 202, 1, 0, "1"},
		{"another operation's 202 is final", "/repos/acme/widgets/forks", "", time.Second, 202, 1, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, computing(c.ready))
				began := time.Now()
				r := w.get(c.path, "Prefer: "+c.prefer)
				w.want("status", r.StatusCode, c.status)
				w.want("attempts", w.upstreamSaw(), c.attempts)
				w.want("takes", time.Since(began), c.takes)
				w.want("retry-after", r.Header.Get("Retry-After"), c.retry)
			})
		})
	}
}

func TestClientThatLeavesEndsItsPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, computing(time.Hour))
		c := w.dial()
		_, _ = fmt.Fprint(c, "GET /repos/acme/widgets/stats/participation HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
		time.Sleep(2 * time.Second)
		_ = c.Close()
		time.Sleep(time.Minute)
		w.want("attempts", w.upstreamSaw(), 2)
		w.want("logged", w.gateway.Recent()[0].Status, statusClientGone)
	})
}
