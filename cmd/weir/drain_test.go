package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
)

// drains is how the replicas of a test end.
const drains = "\ndrain: {delay: 1s, timeout: 8s}\n"

// replicaAt starts a replica at addresses that another may have had before.
func (f *fleet) replicaAt(url, admin string) *replica {
	config := f.file("gateway.yaml", `upstream: {url: "`+f.service+`"}`+"\n"+`store: {url: "`+f.store+`"}`+"\nlimits: {inbound: {rate: 0}}"+drains)
	r := &replica{url: url, admin: admin}
	r.process = f.start("serve", "--config", config, "--listen", strings.TrimPrefix(url, "http://"), "--admin", admin)
	f.answers(url + "/_weir/")
	return r
}

// ready reports what a replica says of itself to a load balancer.
func ready(ctx context.Context, admin string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", http.NoBody)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// steady is load that no limit is near to: whatever it gets but an answer is a failure.
type steady struct {
	mu       sync.Mutex
	sent     map[string]int
	failures []string
}

// steadyAsks are what its clients send, each over connections of its own: what is kept and what
// is not, what the API computes for a while, and what must not be sent twice.
var steadyAsks = []struct {
	name, method, path, body string
	fields                   map[string]string
	every                    time.Duration
}{
	{"kept", "GET", "/gitignore/templates", "", nil, time.Millisecond},
	{"read", "GET", "/repos/acme/widgets/subscribers", "", map[string]string{"Cache-Control": "no-store"}, 200 * time.Millisecond},
	{"computed", "GET", "/repos/acme/widgets/stats/contributors", "", map[string]string{"Prefer": "wait=6", "Cache-Control": "no-cache"}, 500 * time.Millisecond},
	{"write", "PUT", "/repos/acme/widgets/subscription", `{"subscribed":true}`, nil, 300 * time.Millisecond},
}

// load sends until ctx ends.
func (s *steady) load(ctx context.Context, group *sync.WaitGroup, url string) {
	for _, token := range []string{"tok-owner", "tok-owner-2", "tok-member", "tok-security-manager"} {
		for _, a := range steadyAsks {
			group.Go(func() {
				transport := &http.Transport{}
				defer transport.CloseIdleConnections()
				client := &http.Client{Timeout: 20 * time.Second, Transport: transport}
				for ctx.Err() == nil {
					body := struct{ io.Reader }{strings.NewReader(a.body)} // a transport cannot read it twice, and sends nothing again
					req, err := http.NewRequest(a.method, url+a.path, body)
					if err != nil {
						panic(err) // the list above
					}
					req.Header.Set("Authorization", "Bearer "+token)
					for name, value := range a.fields {
						req.Header.Set(name, value)
					}
					s.note(a.name, client, req)
					pass(ctx, a.every)
				}
			})
		}
	}
}

func (s *steady) note(name string, client *http.Client, req *http.Request) {
	resp, err := client.Do(req)
	failure := ""
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode >= 300 {
			failure = fmt.Sprintf("%s: %s, %s", name, resp.Status, resp.Header.Get("Cache-Status"))
		}
	}
	if err != nil {
		failure = fmt.Sprintf("%s: %v", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil {
		s.sent = map[string]int{}
	}
	if s.sent[name]++; failure != "" {
		s.failures = append(s.failures, failure)
	}
}

// TestARollingRestartFailsNoRequest: three replicas behind a TCP balancer, which looks every
// tenth of a second who is ready, end and start again, one after the other, under load.
// Nobody gets an error, no limit is broken, and nothing is left behind: no permit, no
// share, no registration.
func TestARollingRestartFailsNoRequest(t *testing.T) {
	f := emptyFleet(t)
	f.store, f.service = oneRedis(f), "http://"+freeAddress(t)
	config := f.file("service.yaml", `upstream: {url: "`+f.service+`"}`)
	f.start("service", "--config", config, "--listen", strings.TrimPrefix(f.service, "http://"))
	f.answers(f.service + "/_service/violations")
	var addresses []string
	for range 3 {
		r := f.replicaAt("http://"+freeAddress(t), freeAddress(t))
		f.replicas, addresses = append(f.replicas, r), append(addresses, strings.TrimPrefix(r.url, "http://"))
	}
	balancer := testservers.NewBalancer(t, addresses...)
	ctx, stop := context.WithCancel(t.Context())
	var looking, clients sync.WaitGroup
	defer looking.Wait()
	defer stop()
	admins := []string{f.replicas[0].admin, f.replicas[1].admin, f.replicas[2].admin}
	looking.Go(func() {
		for ctx.Err() == nil {
			for i, admin := range admins {
				status, _ := ready(ctx, admin)
				balancer.SetOut(i, status != http.StatusOK)
			}
			pass(ctx, 100*time.Millisecond)
		}
	})
	var load steady
	loading, enough := context.WithCancel(ctx)
	defer clients.Wait()
	defer enough()
	load.load(loading, &clients, fmt.Sprintf("http://127.0.0.1:%d", balancer.Port()))
	pass(ctx, time.Second)
	for i, r := range f.replicas {
		_ = r.process.Process.Signal(syscall.SIGTERM)
		if err := r.process.Wait(); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
		f.replicas[i] = f.replicaAt(r.url, r.admin)
		testservers.Eventually(t, "it is ready", func(ctx context.Context) bool { status, _ := ready(ctx, r.admin); return status == http.StatusOK })
		pass(ctx, 500*time.Millisecond)
	}
	enough()
	clients.Wait()
	if len(load.failures) > 0 {
		t.Errorf("%d failed: %q", len(load.failures), load.failures[:min(10, len(load.failures))])
	}
	t.Logf("sent: %v", load.sent)
	for _, a := range steadyAsks {
		if load.sent[a.name] < 5 {
			t.Errorf("%s was sent %d times only", a.name, load.sent[a.name])
		}
	}
	f.judge("all have started again")
	f.leftNothing()
}

// leftNothing wants the store to know of no permit in flight, and of no replica but those that
// run.
func (f *fleet) leftNothing() {
	f.Helper()
	began := time.Now()
	testservers.Eventually(f.T, "no permit is in flight", func(ctx context.Context) bool {
		l, err := (&adminClient{http.DefaultTransport, "http://" + f.replicas[0].admin, ""}).accounts(ctx)
		return err == nil && !slices.ContainsFunc(l.accounts, func(a history.Account) bool { return a.InUse > 0 })
	})
	if took := time.Since(began); took > 15*time.Second { // half the life of a permit that nobody gives back
		f.Errorf("permits were in flight for %v", took)
	}
	client := redis.NewClient(&redis.Options{Addr: f.address})
	defer func() { _ = client.Close() }()
	registered := client.ZRange(f.Context(), "weir:{weir}:replicas", 0, -1).Val()
	if len(registered) != len(f.replicas) {
		f.Errorf("%d replicas are registered", len(registered))
	}
	for _, key := range client.Keys(f.Context(), "weir:account:*").Val() {
		for name := range client.HGetAll(f.Context(), key).Val() {
			if rest, ok := strings.CutPrefix(name, "x:~"); ok {
				if replica, _, _ := strings.Cut(rest, "~"); !slices.Contains(registered, replica) {
					f.Errorf("replica %s is gone, and %s is set aside for it", replica, name)
				}
			}
		}
	}
}

// busyReplica starts a replica before an API that answers /user when it is told to, and has
// one client wait for it.
func busyReplica(t *testing.T, method, config string) (f *fleet, r *replica, answer chan<- struct{}, waiting <-chan string) {
	t.Helper()
	reached, may := make(chan struct{}, 1), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/user" {
			return
		}
		reached <- struct{}{}
		select {
		case <-may:
			_, _ = io.WriteString(w, "answer")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(api.Close)
	f = emptyFleet(t)
	path := f.file("weir.yaml", `upstream: {url: "`+api.URL+`"}`+"\n"+config)
	r = &replica{url: "http://" + freeAddress(t), admin: freeAddress(t)}
	r.process = f.start("serve", "--config", path, "--listen", strings.TrimPrefix(r.url, "http://"), "--admin", r.admin)
	f.answers(r.url + "/_weir/")
	got := make(chan string, 1)
	go func() {
		req, err := http.NewRequest(method, r.url+"/user", http.NoBody)
		if err != nil {
			panic(err) // methods are
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		got <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"), " ", resp.Header.Get("Cache-Status"), " ", resp.Close, " ", string(text), cmp.Or(err, errors.New("")))
	}()
	<-reached
	return f, r, may, got
}

// TestDrain: readiness goes first; who comes all the same is answered, and told to come back
// elsewhere; then nobody can; what is in flight ends.
func TestDrain(t *testing.T) {
	f, r, answer, waiting := busyReplica(t, "GET", "drain: {delay: 2s, timeout: 20s}")
	_ = r.process.Process.Signal(syscall.SIGTERM)
	testservers.Eventually(t, "readiness goes", func(ctx context.Context) bool {
		status, text := ready(ctx, r.admin)
		return status == http.StatusServiceUnavailable && text == "stopping\n"
	})
	resp, err := http.Get(r.url + "/zen")
	if err != nil {
		t.Fatalf("who comes meanwhile: %v", err)
	}
	_ = resp.Body.Close()
	if !resp.Close || resp.StatusCode != http.StatusOK {
		t.Errorf("who comes meanwhile: %s, its connection ends: %v", resp.Status, resp.Close)
	}
	testservers.Eventually(t, "nobody can come", func(ctx context.Context) bool {
		c, err := (&http.Transport{}).RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, r.url+"/zen", http.NoBody))
		if err == nil {
			_ = c.Body.Close()
		}
		return err != nil
	})
	if status, text := ready(t.Context(), r.admin); status != http.StatusServiceUnavailable {
		t.Errorf("while requests are in flight the operator gets %d %s", status, text)
	}
	close(answer)
	if got := <-waiting; !strings.HasPrefix(got, "200  weir; fwd=") || !strings.HasSuffix(got, " true answer") {
		t.Errorf("what was in flight got %s", got)
	}
	if err := r.process.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + r.admin + "/readyz"); err == nil {
		f.Error("it answers its operator still")
	}
}

// TestDrainHasAnEnd: who is in flight still gets an answer by which it can come back, unless
// the API may have done what it asked for.
func TestDrainHasAnEnd(t *testing.T) {
	for method, want := range map[string]string{"GET": "503 1 weir; detail=drain true {", "PATCH": "504  weir; detail=drain true {"} {
		_, r, _, waiting := busyReplica(t, method, "drain: {timeout: 1s}")
		_ = r.process.Process.Signal(syscall.SIGTERM)
		if got := <-waiting; !strings.HasPrefix(got, want) {
			t.Errorf("%s got %s, want %s", method, got, want)
		}
		if err := r.process.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestASecondSignalEndsAtOnce whatever the first waits for.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	_, r, _, _ := busyReplica(t, "GET", "drain: {delay: 1m, timeout: 1m}")
	_ = r.process.Process.Signal(syscall.SIGINT)
	testservers.Eventually(t, "it stops", func(ctx context.Context) bool {
		status, _ := ready(ctx, r.admin)
		return status == http.StatusServiceUnavailable
	})
	_ = r.process.Process.Signal(syscall.SIGINT)
	if err := r.process.Wait(); err == nil {
		t.Error("it ended as if all were well")
	}
}

// TestAReloadLosesNothing: not what is in flight, no connection, nothing of the cache or of
// the ledger.
func TestAReloadLosesNothing(t *testing.T) {
	f, r, answer, waiting := busyReplica(t, "GET", "limits: {wait: 9s}")
	var dialled atomic.Int32
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}}
	defer client.CloseIdleConnections()
	get := func(want string) {
		t.Helper()
		resp, err := client.Get(r.url + "/gitignore/templates")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if told := resp.Header.Get("Cache-Status"); !strings.HasPrefix(told, want) {
			t.Errorf("got %s, want %s", told, want)
		}
	}
	spent := func() (used int) {
		l, err := (&adminClient{http.DefaultTransport, "http://" + r.admin, ""}).accounts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range l.accounts {
			for _, b := range a.Budgets {
				used += b.Used
			}
		}
		return used
	}
	get("weir; fwd=uri-miss")
	get("weir; hit")
	before := spent()
	text, err := os.ReadFile(filepath.Join(f.dir, "weir.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	f.file("weir.yaml", strings.Replace(string(text), "wait: 9s", "wait: 11s", 1))
	_ = r.process.Process.Signal(syscall.SIGHUP)
	testservers.Eventually(t, "the new configuration is in force", func(ctx context.Context) bool {
		admin := &adminClient{http.DefaultTransport, "http://" + r.admin, ""}
		text, _, err := admin.call(ctx, http.MethodGet, "/api/v1/config", nil)
		return err == nil && strings.Contains(string(text), "11s")
	})
	get("weir; hit")
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
	if after := spent(); before == 0 || after != before {
		t.Errorf("%d was spent before, %d is after", before, after)
	}
	close(answer)
	if got := <-waiting; !strings.HasSuffix(got, " false answer") {
		t.Errorf("what was in flight got %s", got)
	}
}

// TestDrainEndsConnectionsOfHTTP2 with what they carry: the next request makes another.
func TestDrainEndsConnectionsOfHTTP2(t *testing.T) {
	g, err := newGateway(config.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	server := httptest.NewUnstartedServer(g)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var reused atomic.Bool
	ask := func() {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL+"/_weir/none", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotFound {
			t.Errorf("got %s %s", resp.Proto, resp.Status)
		}
	}
	ask()
	if ask(); !reused.Load() {
		t.Fatal("its connections are not used again")
	}
	g.drain.Begin()
	ask()
	testservers.Eventually(t, "the next makes another", func(context.Context) bool { ask(); return !reused.Load() })
}
