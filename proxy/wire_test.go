package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// All routes forward the fields of their client, except identity and routing fields of gateways and fields of the connection.
func TestFieldsThatReachTheUpstream(t *testing.T) {
	most := []string{
		"Foo: 1", "Trace-Id: 2", "X-Foo: 3", "X-Forwarded-Host: evil.test", "Foo_bar: 4", "Foo.bar: 5", "Forwarded: for=10.0.0.1",
		"True-Client-Ip: 10.0.0.1", "Cookie: a=b", "Proxy-Foo: 6", "Sec-Foo: 7", "Cf-Connecting-Ip: 10.0.0.1", "Connection: bar", "Bar: 8",
		"Cache-Control: max-age=9", "User-Agent: test/1", `Surrogate-Capability: other="Surrogate/1.0"`,
	}
	for _, c := range []struct {
		path   string
		fields []string
		want   string
	}{
		{
			"/user", []string{
				"Authorization: Bearer a", "Cookie: session=1", "Proxy-Authorization: Basic eA==", "X-Forwarded-For: 10.0.0.1",
				"X_Forwarded_For: 10.0.0.1", "X-Http-Method-Override: DELETE", "X-Original-Url: /admin", "Connection: authorization, accept",
				"X-Service-Api-Version: 2022-11-28", "Accept: application/json", "Upgrade: websocket", "Te: trailers", "User-Agent: test/1",
				"Prefer: wait=1",
			}, "[Accept-Encoding Authorization Surrogate-Capability User-Agent Via X-Service-Api-Version]",
		},
		{"/made/up", most, "[Accept-Encoding Cache-Control Foo Foo.bar Foo_bar Sec-Foo Surrogate-Capability Trace-Id User-Agent Via X-Foo]"},
		{"/gitignore/templates", most, "[Accept-Encoding Cache-Control Foo Foo.bar Foo_bar Sec-Foo Trace-Id User-Agent Via X-Foo]"},
	} {
		setup(nothing).sub(t, c.path, func(w *world) {
			w.get(c.path, c.fields...)
			seen := w.lastSeen()
			w.want("fields", fmt.Sprint(slices.Sorted(maps.Keys(seen.Header))), c.want)
			w.want("host", seen.Host, "upstream.test")
			if c.path == "/user" {
				w.want("authorization", seen.Header.Get("Authorization"), "Bearer a")
			}
		})
	}
}

// Surrogate-Control may address this cache by the name in Surrogate-Capability.
func TestSurrogateControlIsAddressedByName(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(r.Header.Get("Surrogate-Capability"), "=")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Surrogate-Control", "max-age=60;"+name)
	}).run(t, func(w *world) {
		w.get("/made/up", `Surrogate-Capability: other="Surrogate/1.0"`)
		w.want("Cache-Status", w.get("/made/up").Header.Get("Cache-Status"), "weir; hit; ttl=60")
	})
}

func TestLargeBodiesAreForwardedInBothDirections(t *testing.T) {
	const size = 8 << 20
	setup(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		w.Header().Set("X-Sum", fmt.Sprintf("%x %d", sum.Sum(nil), n))
		for range size >> 20 {
			_, _ = fmt.Fprint(w, strings.Repeat("y", 1<<20))
		}
	}).run(t, func(w *world) {
		body := strings.Repeat("x", size)
		r := w.do(http.MethodPost, "/repos/acme/widgets/git/blobs", strings.NewReader(body), "Authorization: Bearer a")
		w.want("sent", r.Header.Get("X-Sum"), fmt.Sprintf("%x %d", sha256.Sum256([]byte(body)), size))
		w.want("received", len(r.body), size)
		w.want("error", r.err, nil)
	})
}

// pingUpload begins an upload that is larger than the buffer for request bodies and ends with "ping". It returns the rest of
// the body, and a function that waits for the response and returns four bytes of its body.
func (w *world) pingUpload() (rest io.WriteCloser, pong func() string) {
	in, out := io.Pipe()
	responses := make(chan *http.Response)
	go func() { responses <- w.open(w.client, http.MethodPost, "/echo", in) }()
	_, _ = out.Write(make([]byte, 2*maxUploadBuffer))
	_, _ = io.WriteString(out, "ping")
	return out, func() string {
		resp, b := <-responses, make([]byte, 4)
		w.Cleanup(func() { _ = resp.Body.Close() })
		_, err := io.ReadFull(resp.Body, b)
		w.want("error", err, nil)
		return string(b)
	}
}

// Only small request bodies are buffered.
func TestLargeBodiesAreStreamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrived, more := make(chan string), make(chan struct{})
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			first := make([]byte, 4)
			_, _ = io.CopyN(io.Discard, r.Body, 2*maxUploadBuffer)
			_, _ = io.ReadFull(r.Body, first)
			arrived <- string(first)
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, "pong")
			_ = http.NewResponseController(w).Flush()
			<-more
		})
		rest, pong := w.pingUpload()
		w.want("bytes during the request", <-arrived, "ping")
		_ = rest.Close()
		w.want("bytes during the response", pong(), "pong")
		close(more)
	})
}

func TestUpstreamMayRespondDuringTheRequestBody(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		_, _ = io.CopyN(io.Discard, r.Body, 2*maxUploadBuffer)
		b := make([]byte, 4)
		for {
			n, err := r.Body.Read(b)
			if err != nil {
				return
			}
			_, _ = w.Write(b[:n])
			_ = control.Flush()
		}
	}).run(t, func(w *world) {
		rest, pong := w.pingUpload()
		w.want("echo", pong(), "ping")
		_ = rest.Close()
	})
}

func TestTrailersAreForwardedInBothDirections(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", "for "+r.Trailer.Get("Request-Sum"))
	}).run(t, func(w *world) {
		req := w.newRequest(context.Background(), http.MethodPost, "http://gateway.test/upload", io.NopCloser(strings.NewReader("body")))
		req.Trailer = http.Header{"Request-Sum": {"42"}}
		resp, err := w.client.Do(req)
		noError(w, err)
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		w.want("body", string(text), "body")
		w.want("trailer", resp.Trailer.Get("X-Sum"), "for 42")
	})
}

// Trailers of requests and responses obey the rules for fields.
func TestTrailersObeyTheRulesForFields(t *testing.T) {
	const key = "weir_0123456789abcdefghij"
	held := func(c *Config) {
		c.HoldsOwn = func(_ *http.Request, text string) bool { return strings.Contains(text, key) }
	}
	sent := http.Header{
		"Authorization": {"Bearer evil"}, "Cookie": {"a=b"}, "X-Forwarded-For": {"10.0.0.1"}, "Proxy-Authorization": {"Basic eA=="}, "Forwarded": {"for=10.0.0.1"},
		"X-Real-Ip": {"10.0.0.1"}, "Via": {"1.1 evil"}, "Te": {"trailers"}, "Foo": {"1"},
	}
	for _, c := range []struct {
		name, path string
		size       int
		trailers   http.Header
		status     int
		seen       string // trailers
	}{
		{"unknown operation", "/upload", 4, sent, 200, "map[Foo:[1]]"},
		{"unknown operation, streamed", "/upload", 2 * maxUploadBuffer, sent, 200, "map[Foo:[1]]"},
		{"known operation", "/repos/acme/widgets/git/tags", 4, sent, 200, "map[Foo:[1]]"},
		{"key", "/upload", 4, http.Header{"Foo": {"a " + key}}, 400, ""},
		{"key, streamed", "/upload", 2 * maxUploadBuffer, http.Header{"Foo": {key}}, 400, ""},
		{"key in a trailer that is not forwarded", "/upload", 4, http.Header{"Authorization": {key}, "Foo": {"1"}}, 200, "map[Foo:[1]]"},
	} {
		for _, protocol := range []string{http1, http2} {
			seen := ""
			bubble(t, c.name+"/"+protocol, func(t *testing.T) {
				w := newWorldOver(t, protocol, func(w http.ResponseWriter, r *http.Request) {
					setFields(w, "Trailer: Server, Set-Cookie, Sum")
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						panic(http.ErrAbortHandler)
					}
					seen = fmt.Sprint(r.Trailer)
					_, _ = io.WriteString(w, "ok")
					setFields(w, "Server: up", "Sum: 1")
				}, held)
				req := w.newRequest(context.Background(), http.MethodPost, "http://gateway.test"+c.path, io.NopCloser(strings.NewReader(strings.Repeat("x", c.size))))
				req.Trailer = c.trailers.Clone()
				r := receive(w.client.Do(req))
				w.want("status", r.StatusCode, c.status)
				w.want("trailers upstream", seen, c.seen)
				_, known := r.Trailer["Server"]
				w.want("trailer Server for the client", known, c.status == 200 && c.path == "/upload")
			})
		}
	}
}

func TestBodyOfAGETIsDropped(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%q", text)
	}).run(t, func(w *world) {
		w.want("body", w.do(http.MethodGet, "/user", strings.NewReader("body")).body, `""`)
	})
}

// TestOnlyExactURLsOfTheUpstreamAreRewritten tests which URLs are those of the upstream.
func TestLinkAndLocationAreRewrittenToTheGateway(t *testing.T) {
	const next = `; rel="next"`
	for _, c := range []struct{ name, path, upstream, want string }{
		{"page of the upstream", "/user", "<http://upstream.test/base/repositories/7/x?page=2>" + next, "<http://gateway.test/repositories/7/x?page=2>" + next},
		{"under the enterprise prefix", "/api/v3/user", "<http://upstream.test/base/user?page=2>", "<http://gateway.test/api/v3/user?page=2>"},
		{"several", "/user", "<http://upstream.test/base/a>; rel=next, <http://upstream.test/base/b>; rel=last", "<http://gateway.test/a>; rel=next, <http://gateway.test/b>; rel=last"},
		{"relative path, unchanged", "/user", "<a?page=2>", "<a?page=2>"},
	} {
		uri := func(link string) string { return link[1:strings.Index(link, ">")] }
		setup(responds(200, "Link: "+c.upstream, "Location: "+uri(c.upstream), "Cache-Control: max-age=60")).sub(t, c.name, func(w *world) {
			for range 2 { // from the upstream and from the cache
				w.wantHeader(w.get(c.path), "Link: "+c.want, "Location: "+uri(c.want))
			}
		})
	}
}

func TestConnectionAndUndocumentedFieldsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hosts := []string{"Alt-Svc", "Strict-Transport-Security", "Proxy-Authenticate", "X-Nominated"}
		undocumented := []string{"Server", "X-Served-By", "X-Amz-Request-Id", "Nel", "Surrogate-Control", "Refresh"}
		w := newHTTP1World(t, func(w http.ResponseWriter, r *http.Request) { // HTTP/2 has no Connection field
			for _, name := range slices.Concat(hosts, undocumented) {
				w.Header().Set(name, "upstream")
			}
			setFields(w, "Connection: X-Nominated", "X-Service-Media-Type: service.v3", "X-RateLimit-Remaining: 4711", "Cache-Control: max-age=60")
		})
		for path, removed := range map[string][]string{"/made/up": hosts, "/gitignore/templates": slices.Concat(hosts, undocumented)} {
			for range 2 {
				h := w.get(path).Header
				for _, name := range removed {
					w.want(path+" "+name, h.Get(name), "")
				}
				w.want("field of the dialect", h.Get("X-Service-Media-Type"), "service.v3")
				got := h.Values("X-RateLimit-Remaining")
				failIf(t, len(got) != 1 || got[0] == "4711", "x-ratelimit-remaining: %q", got)
			}
		}
	})
}

// Interim responses are forwarded and not stored (RFC 9111 section 3).
func TestInterimResponsesAreNotStored(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, "Cache-Control: max-age=60", "Link: </style>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Cache-Control")
		_, _ = fmt.Fprint(w, "final")
	}).run(t, func(w *world) {
		for range 2 {
			r := w.wantReply("", w.get("/made-up"), http.StatusOK)
			w.want("status of the record", w.last().Status, http.StatusOK)
			w.want("body", r.body, "final")
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A client of HTTP/1.0 would take an interim response for the final one (RFC 9110 section 15.2).
func TestInterimResponsesReachNoClientOfHTTP10(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		for _, status := range []int{http.StatusProcessing, http.StatusEarlyHints} {
			w.WriteHeader(status)
		}
		_, _ = fmt.Fprint(w, "final")
	}).run(t, func(w *world) {
		for version, want := range map[string]int{"1.0": 1, "1.1": 3} {
			text := w.raw("GET /made-up HTTP/" + version + "\r\nHost: gateway.test\r\nConnection: close\r\n\r\n")
			w.want("responses to HTTP/"+version, strings.Count(text, "HTTP/1."), want)
			failIf(w, !strings.HasSuffix(text, "\r\n\r\nfinal"), "got %q", text)
		}
	})
}

// The forwarded target and the cache key use the same canonical form.
func TestForwardedTargetIsTheCanonicalTarget(t *testing.T) {
	g := New(Config{Upstream: &url.URL{Scheme: "http", Host: "upstream.test", Path: "/base"}, Dialect: &policy.Dialect{}, Log: slog.New(slog.DiscardHandler)})
	rapid.Check(t, func(t *rapid.T) {
		path := "/" + rapid.StringMatching(`[a-zA-Z0-9/%.;:@+&=,~_-]{0,40}`).Draw(t, "path")
		query := rapid.StringMatching(`[a-zA-Z0-9&=%+._-]{0,30}`).Draw(t, "query")
		m, err := policy.Embedded().Classify("GET", path, query)
		if err != nil {
			t.Skip(err)
		}
		u := g.urls.Target(m)
		want := "http://upstream.test/base" + m.Path
		if m.Query != "" {
			want += "?" + m.Query
		}
		if u.String() != want {
			t.Fatalf("forwarded to %s, but the key has %s", &u, want)
		}
	})
}

// Weir closes an idle connection before the upstream closes the connection.
func TestIdleConnectionsAreReusedFor30Seconds(t *testing.T) {
	dials := 0
	setup(nothing, func(c *Config) {
		onDial(c, func() error {
			dials++
			return nil
		})
	}).run(t, func(w *world) {
		for _, c := range []struct {
			pause time.Duration
			dials int
		}{{0, 1}, {time.Second, 1}, {29 * time.Second, 1}, {31 * time.Second, 2}} {
			time.Sleep(c.pause)
			w.get("/user")
			w.want(fmt.Sprintf("connections after a pause of %v", c.pause), dials, c.dials)
		}
	})
}

func TestGraphQLTargetOfASelfHostedUpstream(t *testing.T) {
	g := New(Config{Upstream: &url.URL{Scheme: "https", Host: "ghe.test", Path: "/api/v3"}, Dialect: &policy.Dialect{}, Log: slog.New(slog.DiscardHandler)})
	for path, want := range map[string]string{"/graphql": "https://ghe.test/api/graphql", "/user": "https://ghe.test/api/v3/user"} {
		target := g.urls.Target(policy.Match{Path: path})
		got := target.String()
		failIf(t, got != want, "%s: got %s, want %s", path, got, want)
	}
}

func TestHTTP2Upstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOver(t, http2, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-End")
			_, _ = io.Copy(w, r.Body)
			_, _ = fmt.Fprint(w, " over ", r.Proto)
			w.Header().Set("X-End", "yes")
		})
		r := w.do(http.MethodPost, "/echo", strings.NewReader("hello"), bearer("a"))
		w.want("body", r.body, "hello over HTTP/2.0")
		w.want("trailer", r.Trailer.Get("X-End"), "yes")
	})
}
