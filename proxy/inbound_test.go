package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/screen"
)

// withRateLimit limits the request rate of each client address.
func withRateLimit(perSecond, burst int) option {
	return func(c *Config) {
		c.RateLimiter = &inbound.RateLimiter{}
		c.RateLimiter.Configure(perSecond, burst)
	}
}

// from sends a request from a client address; fields are "Name: value".
func (w *world) from(remote, method, target string, fields ...string) got {
	w.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = remote
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	recorder := httptest.NewRecorder()
	w.gateway.ServeHTTP(recorder, r)
	return got{recorder.Result(), recorder.Body.String(), nil}
}

// wantStatuses sends one request per status from an address and compares the statuses.
func (w *world) wantStatuses(remote string, statuses ...int) {
	w.Helper()
	for i, want := range statuses {
		r := w.from(remote, "GET", "/user")
		failIf(w, r.StatusCode != want, "request %d of %s: got %d, want %d", i+1, remote, r.StatusCode, want)
	}
}

func TestRateLimitPerAddress(t *testing.T) {
	setup(nothing, withRateLimit(2, 3)).run(t, func(w *world) {
		for _, c := range []struct {
			pause    time.Duration
			remote   string
			statuses []int
		}{
			{0, "192.0.2.1:1000", []int{200, 200, 200, 429, 429}},
			{0, "192.0.2.2:1000", []int{200}},
			{time.Second, "192.0.2.1:1000", []int{200, 200, 429}}, // the value of Retry-After
			{500 * time.Millisecond, "192.0.2.1:1000", []int{200, 429}},
			{time.Hour, "192.0.2.1:1000", []int{200, 200, 200, 429}},
		} {
			time.Sleep(c.pause)
			w.wantStatuses(c.remote, c.statuses...)
		}
	})
}

// TestRequestsInProgressPerAddressAreBounded covers HTTP/2 clients, whose streams share few connections.
func TestRequestsInProgressPerAddressAreBounded(t *testing.T) {
	setup(slowUsers(10*time.Second), withRateLimit(2, 3)).run(t, func(w *world) {
		time.AfterFunc(5*time.Second, func() {
			w.wantStatuses("192.0.2.1:1001", 429)
			w.wantStatuses("192.0.2.2:1000", 200)
		})
		together(3, func(i int) {
			w.want("status in progress", w.from("192.0.2.1:1000", "GET", fmt.Sprint("/users/slow", i)).StatusCode, http.StatusOK)
		})
		w.wantStatuses("192.0.2.1:1001", 200)
	})
}

// slowUsers returns an upstream that responds to requests for /users/slow... after a time, and to all others immediately.
func slowUsers(delay time.Duration) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/users/slow") {
			time.Sleep(delay)
		}
	}
}

func TestRateLimitDisabled(t *testing.T) {
	for _, off := range []option{withRateLimit(0, 0), func(*Config) {}} {
		setup(nothing, off).run(t, func(w *world) { w.wantStatuses("192.0.2.1:1000", slices.Repeat([]int{200}, 50)...) })
	}
}

func TestRateLimitRefusal(t *testing.T) {
	identified := 0
	setup(nothing, withRateLimit(1, 1), identifying(func(_ *http.Request, _ *caller.Identity) { identified++ }), func(c *Config) {
		c.RefusalStatus = http.StatusForbidden // this status applies to limits of the upstream only
	}).run(t, func(w *world) {
		w.wantStatuses("192.0.2.1:1000", 200)
		r := w.from("192.0.2.1:1001", "GET", "/user", bearer("a"))
		w.refused(r, 429, "Too Many Requests: this address sends faster than the gateway lets one address send")
		w.wantHeader(r, "Retry-After: 1", "Cache-Status: weir; detail=inbound", "Cache-Control: no-store")
		for name := range r.Header {
			failIf(w, strings.HasPrefix(name, "X-Ratelimit-"), "the refusal has the field %s of an unrelated budget", name)
		}
		failIf(w, r.limitKind() == policy.LimitPrimary, "clients classify the refusal as a primary limit and wait for its reset")
		w.want("identified requests", identified, 1)
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("error of the record", w.last().Error, "limits.inbound.rate: request rate of 192.0.2.1 exceeded")
		w.want("status of the record", w.last().Status, 429)
	})
}

func TestRateLimitIsTheFirstCheck(t *testing.T) {
	setup(nothing, withRateLimit(1, 3)).run(t, func(w *world) {
		for _, target := range []string{"/_weir/none", "/repos//widgets", "/user?q=" + strings.Repeat("a", screen.MaxTarget)} {
			r := w.from("192.0.2.1:1000", "GET", target)
			failIf(w, r.StatusCode == 429, "%.20s within the burst: got %d, want another refusal", target, r.StatusCode)
		}
		for _, method := range []string{"GET", "HEAD", "TRACE", "POST"} {
			r := w.from("192.0.2.1:1000", method, "/_weir/none")
			w.want(method+" above the burst", r.StatusCode, 429)
			w.want(method+" has a body", r.body != "", method != "HEAD")
		}
	})
}

// TestForwardedFieldsOfClientsAreIgnored covers attack 14 of docs/internals/attacks.md. A client can
// neither evade its own limit nor use the tokens of another address.
func TestForwardedFieldsOfClientsAreIgnored(t *testing.T) {
	names := []string{
		"X-Forwarded-For", "X_forwarded_for", "Forwarded", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "True-Client-Ip",
		"Cf-Connecting-Ip", "X-Original-Forwarded-For", "X-Remote-Addr", "Remote-Addr", "Via",
	}
	setup(nothing, withRateLimit(1, len(names))).run(t, func(w *world) {
		field := func(name, ip string) string {
			if name == "Forwarded" {
				ip = "for=" + ip
			}
			return name + ": " + ip
		}
		for i, name := range names {
			r := w.from("192.0.2.1:1000", "GET", "/user", field(name, fmt.Sprint("198.51.100.", i)))
			w.want(name+" within the burst", r.StatusCode, 200)
		}
		for i, name := range names {
			ip := fmt.Sprint("203.0.113.", i)
			r := w.from("192.0.2.1:1000", "GET", "/user", field(name, ip), "Connection: "+name)
			w.want(name+" above the burst", r.StatusCode, 429)
			w.wantStatuses(ip+":1000", 200) // the bucket of this address is full
		}
	})
}

func TestRateLimitCountsAddresses(t *testing.T) {
	for _, c := range []struct {
		name    string
		burst   int
		remotes string
		other   string // an address with a separate bucket
	}{
		{"ports share a bucket", 2, "192.0.2.1:1000 192.0.2.1:1001 192.0.2.1:1002", "192.0.2.2:1000"},
		{
			"IPv4-mapped IPv6 is IPv4", 3, "192.0.2.1:1000 [::ffff:192.0.2.1]:1000 [::ffff:c000:201]:1000 192.0.2.1:1000",
			"[::ffff:192.0.2.2]:1000",
		},
		{
			"IPv6 addresses of one /64 share a bucket", 3,
			"[2001:db8:1:2::1]:1000 [2001:db8:1:2:1::2]:1000 [2001:db8:1:2:ffff:1:2:3]:1000 [2001:db8:1:2::4]:1000", "[2001:db8:1:3::1]:1000",
		},
		{"zones share a bucket", 2, "[fe80::1%eth0]:1000 [fe80::2%eth1]:1000 [fe80::3%eth2]:1000", "192.0.2.1:1000"},
		{"connections without an address share a bucket", 2, "@  /run/weir.sock", "192.0.2.1:1000"},
	} {
		setup(nothing, withRateLimit(1, c.burst)).sub(t, c.name, func(w *world) {
			for i, remote := range strings.Split(c.remotes, " ") {
				w.want(remote+" is refused", w.from(remote, "GET", "/user").StatusCode == 429, i >= c.burst)
			}
			w.wantStatuses(c.other, 200)
		})
	}
}

func TestRateLimitBehindTrustedProxyIsPerClient(t *testing.T) {
	setup(responds(200, "Link: <"+upstreamURL+`/x?page=2>; rel="next"`), withRateLimit(1, 1), trusting("10.0.0.0/8")).run(t, func(w *world) {
		for _, c := range []struct {
			client string
			want   int
		}{{"203.0.113.1", 200}, {"203.0.113.2", 200}, {"203.0.113.1", 429}, {"198.51.100.9, 203.0.113.2", 429}} {
			r := w.from("10.0.0.1:1000", "GET", "/user", "X-Forwarded-For: "+c.client, "X-Forwarded-Proto: https")
			w.want(c.client, r.StatusCode, c.want)
			if c.want == 200 {
				w.want("Link", r.Header.Get("Link"), `<https://example.com/x?page=2>; rel="next"`)
			}
		}
		w.wantStatuses("192.0.2.1:1000", 200, 429)
	})
}

// withShedder limits the number of waiting requests.
func withShedder(limit int) (*inbound.Shedder, option) {
	shedder := &inbound.Shedder{}
	shedder.Configure(limit)
	return shedder, func(c *Config) { c.Shedder = shedder }
}

// TestOverloadKeepsGoodput checks that the goodput at five times the capacity is close to the peak.
// Refusals must be immediate, and cache hits must continue.
func TestOverloadKeepsGoodput(t *testing.T) {
	const limit, latency, duration = 20, 100 * time.Millisecond, 2 * time.Second
	capacity := float64(limit) / latency.Seconds()
	goodput := func(load float64) (perSecond float64, refused int) {
		_, shed := withShedder(limit)
		setup(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(latency)
			w.Header().Set("Cache-Control", "max-age=3600")
			_, _ = io.WriteString(w, "answer")
		}, shed).run(t, func(w *world) {
			w.want("status of the stored response", w.get("/gitignore/templates").StatusCode, 200)
			var mu sync.Mutex
			succeeded := 0
			interval := time.Duration(float64(time.Second) / (load * capacity))
			together(int(load*capacity*duration.Seconds()), func(i int) {
				time.Sleep(time.Duration(i) * interval)
				if i%100 == 0 {
					w.want("status of a hit", w.from("192.0.2.1:1", http.MethodGet, "/gitignore/templates").StatusCode, 200)
				}
				start := time.Now()
				r := w.from("192.0.2.1:1", http.MethodGet, fmt.Sprint("/users/", i), bearer(strconv.Itoa(i)))
				elapsed := time.Since(start)
				mu.Lock()
				defer mu.Unlock()
				if r.StatusCode == 200 {
					succeeded++
					return
				}
				refused++
				w.want("time until the refusal", elapsed, time.Duration(0))
				w.want("status of the refusal", r.StatusCode, 503)
				w.wantHeader(r, "Retry-After: 1", "Cache-Status: weir; detail=overload")
			})
			perSecond = float64(succeeded) / duration.Seconds()
		})
		return perSecond, refused
	}
	peak, none := goodput(0.9)
	overloaded, refused := goodput(5)
	t.Logf("capacity %.0f/s; goodput %.1f/s at 0.9 and %.1f/s at 5 times the capacity; %d and %d refusals",
		capacity, peak, overloaded, none, refused)
	failIf(t, none != 0 || refused == 0 || overloaded < 0.9*max(peak, capacity), "the goodput falls under overload")
}

func TestShedderRefusesBatchFirstAndServesStale(t *testing.T) {
	shedder, shed := withShedder(4)
	setup(func(w http.ResponseWriter, r *http.Request) {
		slowUsers(5*time.Second)(w, r)
		replies("answer", "Cache-Control: max-age=1, stale-if-error=3600")(w, r)
	}, shed, identifying(func(r *http.Request, id *caller.Identity) {
		id.Priority = policy.Priority(r.Header.Get("Priority"))
	})).run(t, func(w *world) {
		w.get("/users/stored", bearer("a"))
		time.Sleep(2 * time.Second)
		var clients sync.WaitGroup
		slow := func(n int) {
			for range n {
				clients.Go(func() { w.get("/users/slow", bearer(strconv.Itoa(n)), "Cache-Control: no-store") })
			}
			synctest.Wait()
		}
		slow(3)
		w.refused(w.get("/user", bearer("b"), "Priority: batch"), 503, "too many requests wait")
		w.want("status at normal priority", w.get("/user", bearer("b")).StatusCode, 200)
		slow(1)
		w.refused(w.get("/user", bearer("c")), 503, "too many requests wait")
		w.refused(w.do("PUT", "/repos/a/b/subscription", http.NoBody, bearer("c")), 503, "too many requests wait")
		stale := w.get("/users/stored", bearer("a"))
		w.want("stale response", stale.body, "answer")
		w.wantHeader(stale, "Cache-Status: weir; hit; ttl=-1; detail=overload")
		clients.Wait()
		w.want("waiting requests", shedder.Waiting(), int64(0))
		w.want("status below the limit", w.get("/user", bearer("c")).StatusCode, 200)
	})
}

// TestUnreadBodyClosesTheConnection checks that the rest of an unread body is not parsed as
// the next request.
func TestUnreadBodyClosesTheConnection(t *testing.T) {
	for _, c := range []struct {
		name, line string
		limit      int
		status     string
	}{
		{"shed request", "PUT /repos/a/b/subscription", 1, "503"},
		{"GET with a body", "GET /user", 0, "200"},
	} {
		_, shed := withShedder(c.limit)
		setup(slowUsers(5*time.Second), shed).sub(t, c.name, func(w *world) {
			go w.get("/users/slow", bearer("a"))
			synctest.Wait()
			conn := w.dial()
			defer func() { _ = conn.Close() }()
			go func() {
				for _, part := range []string{
					c.line + " HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\n\r\n", "xyz", "GET /user HTTP/1.1\r\nHost: g\r\n\r\n",
				} {
					_, _ = io.WriteString(conn, part)
					time.Sleep(50 * time.Millisecond)
				}
			}()
			text, _ := io.ReadAll(conn)
			first, rest, _ := strings.Cut(string(text), "\r\n")
			failIf(w, !strings.Contains(first, c.status) || !strings.Contains(rest, "Connection: close\r\n") || strings.Contains(rest, "HTTP/1.1 "), "got %s\n%s", first, rest)
			time.Sleep(10 * time.Second)
		})
	}
}

// TestHTTP2StreamWithoutReaderEnds covers attack 46 of docs/internals/attacks.md. The client reads only other
// streams of the same connection.
func TestHTTP2StreamWithoutReaderEnds(t *testing.T) {
	large := strings.Repeat("x", 7<<20)
	setup(byPath(nothing, map[string]http.HandlerFunc{"/gitignore/templates": replies(large)})).run(t, func(w *world) {
		client := w.overHTTP2()
		unread := w.open(client, http.MethodGet, "/gitignore/templates", http.NoBody)
		for range 6 {
			time.Sleep(20 * time.Second)
			_ = w.open(client, http.MethodGet, "/emojis", http.NoBody).Body.Close()
		}
		ended := 0
		for _, r := range w.recent() {
			if r.Operation != "" && r.Bytes > 1<<20 {
				ended++
			}
		}
		w.want("ended responses", ended, 1)
		w.want("protocol", unread.ProtoMajor, 2)
		n, err := io.Copy(io.Discard, unread.Body)
		failIf(w, err == nil, "the client received the whole response of %d bytes", n)
		_ = unread.Body.Close()
	})
}
