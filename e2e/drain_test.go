//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// busyReplica starts a replica and sends one request for /user to it. The upstream responds to this request after
// respond is closed. The response arrives on result.
func busyReplica(t *testing.T, method, config string) (r *replica, respond chan<- struct{}, result <-chan string) {
	t.Helper()
	arrived, may := make(chan struct{}, 1), make(chan struct{})
	upstream := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/user" {
			return
		}
		arrived <- struct{}{}
		select {
		case <-may:
			_, _ = io.WriteString(w, "body")
		case <-r.Context().Done():
		}
	}))
	r = serveText(t, `upstream: {url: "`+upstream+`"}`+"\n"+config)
	got := make(chan string, 1)
	go func() {
		resp, text, err := do(http.DefaultClient, newRequest(context.Background(), method, r.url+"/user", ""))
		if err != nil {
			got <- err.Error()
			return
		}
		got <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"), " ", resp.Header.Get("Cache-Status"), " ", resp.Close, " ", text)
	}()
	<-arrived
	return r, may, got
}

// awaitUnready waits until the readiness probe of a replica fails.
func (r *replica) awaitUnready() {
	r.Helper()
	testservers.Eventually(r, "the readiness probe fails", func(ctx context.Context) bool {
		status, text := readiness(ctx, r.admin)
		return status == http.StatusServiceUnavailable && text == "stopping\n"
	})
}

// TestDrainFinishesOpenRequests checks the order of a shutdown. First, readiness fails. New requests get a response
// with "Connection: close". Then the listener closes, and open requests complete.
func TestDrainFinishesOpenRequests(t *testing.T) {
	t.Parallel()
	r, respond, result := busyReplica(t, "GET", "drain: {delay: 2s, timeout: 20s}")
	r.signal(syscall.SIGTERM)
	r.awaitUnready()
	resp, _ := get(t, r.url+"/zen")
	failIf(t, !resp.Close || resp.StatusCode != http.StatusOK, "new request during the delay: %s, connection closed: %v", resp.Status, resp.Close)
	testservers.Eventually(t, "the listener refuses connections", func(ctx context.Context) bool {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", r.address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	status, _ := readiness(t.Context(), r.admin)
	want(t, "readiness while a request is open", status, http.StatusServiceUnavailable)
	close(respond)
	got := <-result
	failIf(t, !strings.HasPrefix(got, "200  weir; fwd=") || !strings.HasSuffix(got, " true body"), "open request got %s", got)
	must(t, r.exited())
}

// TestDrainTimeoutAnswersOpenRequests checks the response after drain.timeout. A safe method gets 503 and Retry-After.
// Another method gets 504, because the upstream may have acted.
func TestDrainTimeoutAnswersOpenRequests(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{"GET": "503 1 weir; detail=drain true {", "PATCH": "504  weir; detail=drain true {"} {
		r, _, result := busyReplica(t, method, "drain: {timeout: 1s}")
		r.signal(syscall.SIGTERM)
		got := <-result
		failIf(t, !strings.HasPrefix(got, want), "%s got %s, want %s", method, got, want)
		must(t, r.exited())
	}
}

func TestSecondSignalStopsWithoutDraining(t *testing.T) {
	t.Parallel()
	r, _, _ := busyReplica(t, "GET", "drain: {delay: 1m, timeout: 1m}")
	r.signal(syscall.SIGINT)
	r.awaitUnready()
	r.signal(syscall.SIGINT)
	err := r.exited()
	failIf(t, err == nil, "exit code 0, want an error")
}

// TestReloadKeepsState checks that a reload keeps open requests, connections, the cache and
// the ledger.
func TestReloadKeepsState(t *testing.T) {
	t.Parallel()
	r, respond, result := busyReplica(t, "GET", "limits: {wait: 9s}")
	var dials atomic.Int32
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}}
	defer client.CloseIdleConnections()
	wantCacheStatus := func(want string) {
		t.Helper()
		resp, _ := sendWith(t, client, http.MethodGet, r.url+"/gitignore/templates", "")
		got := resp.Header.Get("Cache-Status")
		failIf(t, !strings.HasPrefix(got, want), "Cache-Status: %s, want %s", got, want)
	}
	spent := func() (used int) {
		list, err := accounts(t.Context(), r.admin)
		must(t, err)
		for _, a := range list {
			for _, b := range a.Budgets {
				used += b.Used
			}
		}
		return used
	}
	wantCacheStatus("weir; fwd=uri-miss")
	wantCacheStatus("weir; hit")
	before := spent()
	file := r.cmd.Args[3]
	write(t, file, strings.Replace(readFile(t, file), "wait: 9s", "wait: 11s", 1))
	r.signal(syscall.SIGHUP)
	testservers.Eventually(t, "the new configuration is active", func(context.Context) bool {
		_, text := get(t, "http://"+r.admin+"/api/v1/config")
		return strings.Contains(text, "11s")
	})
	wantCacheStatus("weir; hit")
	want(t, "connections", dials.Load(), 1)
	after := spent()
	failIf(t, before == 0 || after != before, "%d spent before the reload, %d after", before, after)
	close(respond)
	got := <-result
	failIf(t, !strings.HasSuffix(got, " false body"), "open request got %s", got)
}
