package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// soak is a fleet under mixed traffic, to which one fault after the other happens.
type soak struct {
	*fleet
	long time.Duration
	seed uint64
	// upstream is the way to the API, toRedis that of each replica to Redis.
	upstream *testservers.Link
	toRedis  []*testservers.Link
	client   *http.Client
	truths   map[string]truth // by token and path
	report   soakReport
}

// truth is what the API itself answers to a token.
type truth struct {
	status int
	body   []byte
	etag   string
}

// soakers are callers with rights of their own: the service tells them different things
// at the same paths. By token, their login.
var soakers = map[string]string{
	"tok-owner": "acme-owner", "tok-member": "acme-member", "tok-outsider": "outsider", "tok-security-manager": "builder-01", "tok-enterprise": "builder-02",
}

// soakPaths are what they read: what says who asks, what only some may see, what is
// large, and more than a cache holds.
func soakPaths() (paths []string) {
	for range 4 {
		paths = append(paths, "/feeds", "/orgs/acme/invitations", "/orgs/acme/members", "/orgs/acme/rulesets", "/repos/acme/secret/subscribers", "/user/migrations")
	}
	for n := range 30 {
		paths = append(paths, fmt.Sprint("/repos/acme/widgets/subscribers?per_page=", 70+n))
	}
	return paths
}

// soakSearch is not kept; who is in no organization finds less.
const soakSearch = "/search/commits?q=gear+repo:acme/widgets+repo:acme/secret&per_page=100"

// TestSoak is three replicas under mixed traffic, with a fault of some kind most of the
// time: no limit is broken, nobody gets what is another's, and what was in use comes back.
// WEIR_SOAK is how long, WEIR_SOAK_SEED what it draws faults and requests from.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	t.Logf("WEIR_SOAK=%v WEIR_SOAK_SEED=%d", s.long, s.seed)
	before := s.atRest()
	ctx, stop := context.WithTimeout(t.Context(), s.long)
	defer stop()
	var traffic, watch sync.WaitGroup
	for i := range 20 {
		traffic.Go(func() { s.ask(ctx, rand.New(rand.NewPCG(s.seed, uint64(i+1)))) })
	}
	watching, seen := context.WithCancel(t.Context())
	defer seen()
	watch.Go(func() { s.watch(watching) })
	s.misfortunes(ctx, rand.New(rand.NewPCG(s.seed, 0)))
	traffic.Wait()
	s.client.CloseIdleConnections()
	seen()
	watch.Wait()
	s.settle(before)
	s.look("at the end")
	t.Logf("%s", s.tell())
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{fleet: emptyFleet(t), long: setting(t, "WEIR_SOAK", 7*time.Second), seed: rand.Uint64N(1e9), truths: map[string]truth{}}
	if given := os.Getenv("WEIR_SOAK_SEED"); given != "" {
		var err error
		if s.seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	s.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	oneRedis(s.fleet)
	s.startService()
	s.upstream = testservers.NewLink(t, strings.TrimPrefix(s.service, "http://"))
	s.learn()
	for i := range 3 {
		s.toRedis = append(s.toRedis, testservers.NewLink(t, s.address))
		s.replicas = append(s.replicas, &replica{url: "http://" + freeAddress(t), admin: freeAddress(t)})
		s.configure(i, 0)
		s.run(i)
	}
	return s
}

// configure writes a replica's configuration: its cache is so small that it is full
// early, and its generation makes a reload one.
func (s *soak) configure(i, generation int) {
	text := fmt.Sprintf("upstream: {url: \"http://%s\", timeout: %ds}\nstore: {url: \"redis://%s\"}\ncache: {memory: 2MiB}\n",
		s.upstream.Address, 5+generation%2, s.toRedis[i].Address)
	whole := s.file("whole.yaml", text+fleetLimits)
	if err := os.Rename(whole, s.config(i)); err != nil {
		s.Fatal(err)
	}
}

func (s *soak) config(i int) string { return filepath.Join(s.dir, fmt.Sprint("replica", i, ".yaml")) }

// run starts a replica, the first time or again.
func (s *soak) run(i int) {
	r := s.replicas[i]
	r.process = s.start("serve", "--config", s.config(i), "--listen", strings.TrimPrefix(r.url, "http://"), "--admin", r.admin)
	s.answers(r.url + "/_weir/")
	s.report.begins(i, r.process.Process.Pid)
}

// learn asks the API itself, on the way that replicas go, for it names itself as it was
// asked; then it has it forget that.
func (s *soak) learn() {
	s.Helper()
	for token := range soakers {
		for _, path := range append(soakPaths(), soakSearch) {
			if _, known := s.truths[token+path]; known {
				continue
			}
			req := s.request(s.Context(), http.MethodGet, "http://"+s.upstream.Address+path, token, nil)
			resp, err := s.client.Do(req)
			if err != nil {
				s.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
				s.Fatalf("%s %s: %d, %v", token, path, resp.StatusCode, err)
			}
			s.truths[token+path] = truth{resp.StatusCode, body, resp.Header.Get("Etag")}
		}
		s.order(http.MethodDelete, "/_service/violations", "")
	}
	s.client.CloseIdleConnections()
}

// order has the service do something.
func (s *soak) order(method, path, body string) {
	req := s.request(s.Context(), method, s.service+path, "", strings.NewReader(body))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Error(err)
		return
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		s.Errorf("%s %s: %s", method, path, resp.Status)
	}
}

func (s *soak) request(ctx context.Context, method, url, token string, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		panic(err) // it is written here
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req
}

// errand is one request, and what its answer must be.
type errand struct {
	kind, method, path, token, body string
	header                          map[string]string
	admin                           bool          // to the operator's listener
	patience                        time.Duration // after which the client leaves
	pause                           time.Duration // between pieces of the answer
	wrong                           func(status int, body []byte) bool
}

// ask is one client.
func (s *soak) ask(ctx context.Context, r *rand.Rand) {
	tokens, paths := sortedKeys(soakers), soakPaths()
	for ctx.Err() == nil {
		e := s.errand(r, tokens[r.IntN(len(tokens))], paths[r.IntN(len(paths))])
		s.send(ctx, s.replicas[r.IntN(len(s.replicas))], e)
		pass(ctx, time.Duration(10+r.IntN(80))*time.Millisecond)
	}
}

// errand draws one.
func (s *soak) errand(r *rand.Rand, token, path string) *errand {
	e := &errand{method: http.MethodGet, path: path, token: token, header: map[string]string{"Prefer": "wait=" + strconv.Itoa(r.IntN(3))}}
	e.wrong = s.notOwn(e)
	switch n := r.IntN(100); {
	case n < 40:
		e.kind = "read"
		if r.IntN(4) == 0 {
			e.header["Cache-Control"] = []string{"no-cache", "no-store", "max-age=1"}[r.IntN(3)]
		}
	case n < 57: // with what it holds, or what somebody else does
		e.kind = "conditional"
		e.header["If-None-Match"] = cmp.Or(s.truths[sortedKeys(soakers)[r.IntN(len(soakers))]+path].etag, `"none"`)
	case n < 62:
		e.kind, e.path = "search", soakSearch
	case n < 70:
		e.kind, e.method, e.path, e.wrong = "write", http.MethodPost, fmt.Sprintf("/app-manifests/%d/conversions", r.IntN(1e6)), nil
		if r.IntN(2) == 0 {
			e.method, e.path, e.body = http.MethodPut, "/repos/acme/empty/subscription", `{"subscribed":true}`
		}
	case n < 71: // as large as the API takes, and too large to be read before it is let go
		e.kind, e.method, e.path, e.wrong = "upload", http.MethodPut, "/repos/acme/empty/subscription", nil
		e.body = `{"subscribed":true,"filler":"` + strings.Repeat("x", (1+r.IntN(2))*900<<10) + `"}`
	case n < 78: // one repository has a push after each fault, the other only members may see
		repository := []string{"monolith", "secret"}[r.IntN(2)]
		e.kind, e.path = "statistics", "/repos/acme/"+repository+"/stats/"+[]string{"participation", "commit_activity", "contributors"}[r.IntN(3)]
		e.wrong = func(status int, _ []byte) bool {
			return repository == "secret" && token == "tok-outsider" && status < http.StatusBadRequest
		}
	case n < 86:
		e.kind, e.method, e.path, e.body = "graphql", http.MethodPost, "/graphql", `{"query":"{ viewer { login } }"}`
		e.wrong = func(status int, body []byte) bool {
			return status == http.StatusOK && !bytes.Contains(body, []byte(`"login":"`+soakers[token]+`"`))
		}
	case n < 92:
		e.kind, e.patience = "client that leaves", time.Duration(1+r.IntN(30))*time.Millisecond
		e.header["Cache-Control"] = "no-store"
	case n < 94:
		e.kind, e.path, e.pause = "slow reader", soakSearch, 100*time.Millisecond
	case n < 98:
		bad := []errand{
			{method: "GET", path: "/repos/a/%2e%2e/b"}, {method: "BREW", path: "/feeds"}, {method: "GET", path: "/feeds", token: fmt.Sprint("tok-nobody-", r.IntN(8))},
			{method: "POST", path: "/graphql", token: token, body: "{"}, {method: "GET", path: "/search/commits", token: token},
		}
		*e = bad[r.IntN(len(bad))]
		e.kind, e.wrong = "bad", func(status int, _ []byte) bool { return status < http.StatusBadRequest }
	case n < 99:
		e.kind, e.method, e.path, e.admin, e.wrong = "purge", http.MethodPost, "/api/v1/cache/purge", true, nil
		e.body = fmt.Sprintf(`{"tag":"%s","hard":%v}`, []string{"org:acme", "repo:acme/widgets", "url:/feeds"}[r.IntN(3)], r.IntN(2) == 0)
	default:
		e.kind, e.path, e.token = "anonymous", "/gitignore/templates", ""
		e.wrong = nil
	}
	return e
}

// notOwn tells whether an answer is not what the API answers to this token.
func (s *soak) notOwn(e *errand) func(int, []byte) bool {
	return func(status int, body []byte) bool {
		own := s.truths[e.token+e.path]
		switch status {
		case http.StatusOK:
			return own.status != http.StatusOK || !bytes.Equal(body, own.body)
		case http.StatusNotModified:
			return own.status != http.StatusOK || e.header["If-None-Match"] != own.etag
		case http.StatusNotFound:
			return own.status != http.StatusNotFound
		}
		return false
	}
}

// send runs an errand, and notes how it ended.
func (s *soak) send(ctx context.Context, to *replica, e *errand) {
	leaving := ctx
	if e.patience > 0 {
		var leave context.CancelFunc
		leaving, leave = context.WithTimeout(ctx, e.patience)
		defer leave()
	}
	base := to.url
	if e.admin {
		base = "http://" + to.admin
	}
	req := s.request(leaving, e.method, base+e.path, e.token, strings.NewReader(e.body))
	for name, value := range e.header {
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	var body []byte
	status := 0
	if err == nil {
		status = resp.StatusCode
		body, err = io.ReadAll(&slowly{resp.Body, ctx, e.pause})
		_ = resp.Body.Close()
	}
	s.report.ended(e.kind, how(status, err, leaving.Err() != nil))
	if err == nil && e.wrong != nil && e.wrong(status, body) {
		s.report.wrong.Add(1)
		s.Errorf("%s %s of %q with %v: %d, %.200q (%s)", e.method, e.path, e.token, e.header, status, body, resp.Header.Get("Cache-Status"))
	}
}

// how a request ended.
func how(status int, err error, left bool) string {
	switch {
	case err != nil && left:
		return "left"
	case err != nil:
		return "broken"
	case status == http.StatusTooManyRequests || status == http.StatusForbidden:
		return "refused"
	case status >= http.StatusInternalServerError:
		return "5xx"
	case status >= http.StatusBadRequest:
		return "4xx"
	}
	return "answered"
}

// slowly reads a piece, and pauses.
type slowly struct {
	io.Reader
	ctx   context.Context
	pause time.Duration
}

func (r *slowly) Read(p []byte) (int, error) {
	if r.pause > 0 {
		pass(r.ctx, r.pause)
		p = p[:min(len(p), 8<<10)]
	}
	return r.Reader.Read(p)
}
