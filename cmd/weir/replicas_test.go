package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A fleet is what an organization runs: several replicas of the gateway, real
// processes, on one Redis, in front of the reference service, which judges them.
type fleet struct {
	*testing.T
	dir      string
	weir     string   // the program
	service  string   // its URL
	store    string   // its URL
	env      []string // of processes that are started, beside this one's
	redis    *exec.Cmd
	address  string // of Redis
	replicas []*replica
	counts   tally
	light    tally // of requests that no limit is near to
}

type replica struct {
	process    *exec.Cmd
	url, admin string
}

// fleetLimits are the limits of the documents, scaled down so that many of
// their windows fit into a test.
const fleetLimits = `
limits:
  cold_start: trust
  inbound: {rate: 0}
  primary: {user: 800, window: 10s}
  search: {authenticated: 30, window: 3s}
  concurrent: 40
  points: {rest: 300, graphql: 500, window: 3s}
  cpu: {total: 120s, graphql: 60s, window: 3s}
  content: [{max: 40, window: 2s}, {max: 150, window: 12s}]
`

// phase is how long each part of the test lasts; WEIR_FLEET_PHASE makes it
// longer.
func phase(t *testing.T) time.Duration { return setting(t, "WEIR_FLEET_PHASE", 4*time.Second) }

// setting is a duration from the environment.
func setting(t *testing.T, name string, byDefault time.Duration) time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(name), byDefault.String()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newFleet starts n replicas; store starts what they keep their budgets in, and
// returns its URL.
func newFleet(t *testing.T, n int, store func(*fleet) string) *fleet {
	t.Helper()
	f := emptyFleet(t)
	f.store = store(f)
	f.startService()
	f.subscribe()
	for range n {
		f.replicas = append(f.replicas, f.startReplica())
	}
	return f
}

func (f *fleet) startService() {
	f.Helper()
	f.service = "http://" + freeAddress(f.T)
	config := f.file("service.yaml", `upstream: {url: "`+f.service+`"}`+fleetLimits)
	f.start("service", "--config", config, "--listen", strings.TrimPrefix(f.service, "http://"))
	f.answers(f.service + "/_service/violations")
}

// emptyFleet is one without replicas, service and store.
func emptyFleet(t *testing.T) *fleet {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{T: t, dir: t.TempDir()}
	f.weir = filepath.Join(f.dir, "weir") // by this name the test program is weir
	if err := os.Symlink(self, f.weir); err != nil {
		t.Fatal(err)
	}
	return f
}

// freeAddress is one that nobody has, and no other test is given. It lies below the ports that
// systems give to those who dial: one of them could take it before it is listened on.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", lowest+(os.Getpid()*100+int(ports.Add(1)))%(highest-lowest))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close() // nobody else was given it
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Where the ports of tests lie, and how many were looked at.
const lowest, highest = 15_000, 32_000

var ports atomic.Int32

func (f *fleet) file(name, text string) string {
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	return path
}

// start starts weir, and ends it with the test.
func (f *fleet) start(args ...string) *exec.Cmd {
	process := exec.Command(f.weir, args...)
	process.Env = append(os.Environ(), f.env...)
	process.Stderr = &logged{fleet: f, name: args[0]}
	if err := process.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	return process
}

// logged passes what a process says to the test's log, and notes how long those
// waited that no limit is near to: of their requests only the access line tells.
type logged struct {
	*fleet
	name string
}

// lightLine is the access line of such a request: only they are answered 404.
var lightLine = regexp.MustCompile(`msg=request .* status=404 .* waited=(\S+)`)

// tellsLine is what the log of a test shows of a replica's.
var tellsLine = regexp.MustCompile(`level=ERROR|Redis|lost|certificates|handshake`)

func (l *logged) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if m := lightLine.FindSubmatch(line); m != nil {
			if waited, err := time.ParseDuration(string(m[1])); err == nil {
				l.light.noteWait(waited)
			}
		}
		if tellsLine.Match(line) || !bytes.HasPrefix(line, []byte("time=")) { // or it has crashed
			l.Logf("%s: %s", l.name, bytes.TrimSpace(line))
		}
	}
	return len(p), nil
}

// oneRedis is a store of one server.
func oneRedis(f *fleet) string {
	f.address = freeAddress(f.T)
	f.redis = f.startRedis(f.address)
	return "redis://" + f.address
}

// startRedis starts a server that keeps nothing on disk, and ends it with the
// test.
func (f *fleet) startRedis(address string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(address)
	args = append(args, "--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--dir", f.dir)
	process := exec.Command(cmp.Or(os.Getenv("WEIR_REDIS_SERVER"), "redis-server"), args...)
	if err := process.Start(); err != nil {
		f.Fatalf("redis-server cannot be started: run make test: %v", err)
	}
	f.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGCONT)
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	return process
}

func (f *fleet) startReplica() *replica {
	url := "http://" + freeAddress(f.T)
	config := f.file("gateway.yaml", `upstream: {url: "`+f.service+`", timeout: 5s}`+"\n"+`store: {url: "`+f.store+`"}`+fleetLimits)
	r := &replica{url: url, admin: freeAddress(f.T)}
	r.process = f.start("serve", "--config", config, "--listen", strings.TrimPrefix(url, "http://"), "--admin", r.admin)
	f.answers(url + "/_weir/")
	return r
}

// answers waits until somebody does.
func (f *fleet) answers(url string) {
	f.Helper()
	for range 200 {
		resp, err := http.Get(url)
		if err == nil {
			_ = resp.Body.Close()
			return
		}
		pass(f.Context(), 50*time.Millisecond)
	}
	f.Fatalf("%s does not answer", url)
}

// subscribe makes the subscription that the clients ask for.
func (f *fleet) subscribe() {
	req, err := http.NewRequest(http.MethodPut, f.service+"/repos/acme/widgets/subscription", strings.NewReader(`{"subscribed":true}`))
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer tok-owner")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	_ = resp.Body.Close()
}

// pass lets time go by.
func pass(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// tally is what the clients have seen.
type tally struct {
	mu       sync.Mutex
	answered map[string]int
	statuses map[int]int
	waits    []time.Duration
	// permit is the longest that one waited for its permit: because of a limit, or of
	// Redis, but not of the upstream.
	permit time.Duration
}

func (c *tally) noteWait(waited time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.permit = max(c.permit, waited)
}

func (c *tally) note(what string, status int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered == nil {
		c.answered, c.statuses = map[string]int{}, map[int]int{}
	}
	c.answered[what]++
	c.statuses[status]++
	c.waits = append(c.waits, took)
}

type request struct{ name, method, path, body string }

// requests are the kinds that the clients send: each meets another limit first.
var requests = []request{
	{"points", "GET", "/repos/acme/widgets/subscription", ""},
	{"points", "GET", "/repos/acme/widgets/subscription", ""},
	{"content", "POST", "/app-manifests/%d/conversions", ""},
	{"search", "GET", "/search/commits?q=gear", ""},
	{"graphql", "POST", "/graphql", `{"query":"{ viewer { login } }"}`},
}

// overload sends far more than the limits allow, to all replicas, until the test
// ends. Clients take no for an answer and come back.
func (f *fleet) overload() context.Context {
	ctx, stop := context.WithCancel(f.Context())
	var group sync.WaitGroup
	f.Cleanup(func() {
		stop()
		group.Wait()
	})
	client := f.crowd(ctx, &group)
	for i := range f.replicas {
		group.Go(func() {
			for ctx.Err() == nil {
				f.ask(ctx, client, &f.light, "tok-member", i, requests[0], requests[0].path)
				pass(ctx, 200*time.Millisecond)
			}
		})
	}
	pass(ctx, 2*time.Second)
	f.judge("at the start")
	return ctx
}

// crowd is the clients that do so until ctx ends.
func (f *fleet) crowd(ctx context.Context, group *sync.WaitGroup) *http.Client {
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for i := range 40 {
		group.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				f.send(ctx, client, requests[i%len(requests)], n)
			}
		})
	}
	return client
}

func (f *fleet) send(ctx context.Context, client *http.Client, kind request, n int) {
	path := kind.path
	if strings.Contains(path, "%d") {
		path = fmt.Sprintf(path, n)
	}
	if !f.ask(ctx, client, &f.counts, "tok-owner", n%len(f.replicas), kind, path) {
		pass(ctx, 20*time.Millisecond)
	}
}

// ask sends a request to a replica, and reports whether all went well.
func (f *fleet) ask(ctx context.Context, client *http.Client, counts *tally, token string, replica int, kind request, path string) bool {
	req, err := http.NewRequestWithContext(ctx, kind.method, f.replicas[replica].url+path, strings.NewReader(kind.body))
	if err != nil {
		f.Error(err)
		return false
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Cache-Control", "no-store")
	req.Header.Set("Prefer", "wait=1")
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return false // a replica that is not there
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	what := kind.name
	_, refused, _ := strings.Cut(resp.Header.Get("Cache-Status"), "detail=")
	if refused != "" {
		what += " " + refused
	}
	counts.note(what, resp.StatusCode, time.Since(began))
	return resp.StatusCode < 400
}

// judgement is what the service saw.
type judgement struct {
	Violations       int                                 `json:"violations"`
	SentWhileLimited int                                 `json:"sent_while_limited"`
	MaxConcurrent    int                                 `json:"max_concurrent"`
	ByLimit          map[string]int                      `json:"by_limit"`
	Highest          map[string]struct{ Sum, Limit int } `json:"highest"`
}

func (f *fleet) judgement() (v judgement, err error) {
	resp, err := http.Get(f.service + "/_service/violations")
	if err != nil {
		return v, err
	}
	defer func() { _ = resp.Body.Close() }()
	return v, json.NewDecoder(resp.Body).Decode(&v)
}

// judge asks the service what it saw, and fails the test for any violation. How the
// light load fared it tells only: on a busy machine that is no longer light.
func (f *fleet) judge(after string) {
	f.Helper()
	v, err := f.judgement()
	if err != nil {
		f.Fatal(err)
	}
	if v.Violations != 0 || v.SentWhileLimited != 0 {
		f.Errorf("%s: %d violations, %d sent while limited: %v, highest %v", after, v.Violations, v.SentWhileLimited, v.ByLimit, v.Highest)
	}
	overload, _ := f.counts.tell()
	f.Logf("%s: overload %s; highest %v", after, overload, v.Highest)
	light, longest := f.light.tell()
	f.Logf("%s: beside it %s", after, light)
	if longest > patience {
		f.Errorf("%s: a request that no limit is near to waited for %v", after, longest)
	}
}

// patience is far more than the second that replicas take to learn from each
// other; the machine may be busy.
const patience = 4 * time.Second

// tell says what was seen since the last time, and the longest wait.
func (c *tally) tell() (text string, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.waits)
	if n == 0 {
		return "nothing", 0
	}
	slices.Sort(c.waits)
	longest = c.waits[n-1]
	text = fmt.Sprintf("answered %v, statuses %v, took: median %v, 99 of 100 within %v, longest %v", c.answered, c.statuses,
		c.waits[n/2].Round(time.Millisecond), c.waits[n*99/100].Round(time.Millisecond), longest.Round(time.Millisecond))
	if c.permit > 0 {
		text += fmt.Sprintf(", longest wait for a permit %v", c.permit.Round(time.Millisecond))
	}
	c.answered, c.statuses, c.waits, c.permit = nil, nil, nil, 0
	return text, longest
}

// TestFleet is four replicas on one Redis under overload while things break:
// the service must not see a limit broken.
func TestFleet(t *testing.T) {
	f := newFleet(t, 4, oneRedis)
	long := phase(t)
	down := setting(t, "WEIR_FLEET_REDIS_DOWN", long) // how long Redis is away
	ctx := f.overload()
	pass(ctx, 3*long)
	f.judge("all is well")

	killed := f.replicas[3].process
	_ = killed.Process.Kill()
	pass(ctx, long)
	f.judge("a replica was killed")

	_ = f.redis.Process.Signal(syscall.SIGSTOP)
	pass(ctx, down)
	_ = f.redis.Process.Signal(syscall.SIGCONT)
	f.judge("Redis stood still")
	pass(ctx, long)
	f.judge("Redis goes on")

	_ = f.redis.Process.Kill()
	_ = f.redis.Wait()
	pass(ctx, down)
	f.judge("Redis is gone")
	f.redis = f.startRedis(f.address)
	pass(ctx, 2*long)
	f.judge("Redis is back, empty")
}
