package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
)

// hostsWorld is a gateway with an API and further hosts, and the requests that each of them received.
type hostsWorld struct {
	*testing.T
	gateway *gateway
	mu      sync.Mutex
	got     map[string][]string // "TARGET AUTHORIZATION" by host
	fields  http.Header         // of the last request
}

// callsPerHour is the limit of the API in these tests.
const callsPerHour = 8

func startHosts(t *testing.T) *hostsWorld {
	t.Helper()
	w := &hostsWorld{T: t, got: map[string][]string{}}
	reset := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	api := func(name string) string {
		return serveAPI(t, func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fields = r.Header
			w.got[name] = append(w.got[name], strings.TrimSpace(r.RequestURI+" "+r.Header.Get("Authorization")))
			if used := len(w.got["api"]) + len(w.got["uploads"]); name == "api" {
				setRate(rw.Header(), "core", callsPerHour-used)
				rw.Header().Set("X-Ratelimit-Limit", fmt.Sprint(callsPerHour))
				rw.Header().Set("X-Ratelimit-Used", fmt.Sprint(used))
				rw.Header().Set("X-Ratelimit-Reset", reset)
			}
			rw.Header().Set("Location", "http://"+r.Host+"/next")
			rw.Header().Set("Cache-Control", "no-store")
		})
	}
	w.gateway = open(t, configure(api("api"), trusting, func(cfg *config.Config) {
		cfg.Limits.Wait, cfg.Callers.PassThrough, cfg.Limits.Primary.User = 0, false, callsPerHour
		cfg.Credentials = []config.Credential{userToken("ci", "ci", "tok-held")}
		cfg.Clients = []config.Client{clientOf("builds", "weir_key", "ci")}
		cfg.Hosts = []config.Host{
			{Name: "uploads.test", URL: api("uploads"), Kind: "api", Path: "/api/uploads"},
			{Name: "raw.test", URL: api("raw"), Kind: "files", Credential: true},
			{Name: "storage.test", URL: api("storage"), Kind: "files", Path: "/storage"},
		}
	}))
	return w
}

// send sends a request with an Authorization field to the gateway.
func (w *hostsWorld) send(method, host, target, authorization string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return serveRequest(w.gateway, r).Result()
}

// wantStatus checks the status of a request.
func (w *hostsWorld) wantStatus(want int, method, host, target, authorization string) {
	w.Helper()
	resp := w.send(method, host, target, authorization)
	failIf(w, resp.StatusCode != want, "%s %s%s with %q: got %d, want %d", method, host, target, authorization, resp.StatusCode, want)
}

// want checks the requests that a host has received since the last call.
func (w *hostsWorld) want(host string, want ...string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	got := w.got[host]
	failIf(w, fmt.Sprint(got) != fmt.Sprint(want), "%s received %q, want %q", host, got, want)
	delete(w.got, host)
}

func TestHostIsChosenByNameOrPath(t *testing.T) {
	w := startHosts(t)
	const assets = "/repos/a/b/releases/1/assets?name=x"
	for _, c := range []struct{ method, name, target, host, want, location string }{
		{"GET", "weir.internal", "/user", "api", "/user Bearer tok-held", "http://weir.internal/next"},
		{"POST", "Uploads.test:443", assets, "uploads", assets + " Bearer tok-held", "http://Uploads.test:443/next"},
		{"POST", "weir.internal", "/api/uploads" + assets, "uploads", assets + " Bearer tok-held", "http://weir.internal/api/uploads/next"},
		{"GET", "storage.test", "/storage/a", "storage", "/storage/a", ""},
		{"GET", "weir.internal", "/storage/storage/a", "storage", "/storage/a", ""},
		{"GET", "raw.test", "/a/b/main/README", "raw", "/a/b/main/README Bearer tok-held", ""},
	} {
		resp := w.send(c.method, c.name, c.target, "Bearer weir_key")
		w.want(c.host, c.want)
		got := resp.Header.Get("Location")
		failIf(t, c.location != "" && got != c.location, "%s%s: Location: got %s, want %s", c.name, c.target, got, c.location)
	}
	for _, own := range []string{"/_weir/x", "/api/uploads/_weir/x", "/storage/_weir/x"} {
		w.wantStatus(http.StatusNotFound, "GET", "weir.internal", own, "Bearer weir_key")
	}
	for _, host := range []string{"api", "uploads", "storage"} {
		w.want(host)
	}
}

// TestUploadsSpendTheBudgetOfTheAPI checks that a host of kind api has the ledger of the API, and that files do not.
func TestUploadsSpendTheBudgetOfTheAPI(t *testing.T) {
	w := startHosts(t)
	for i := range callsPerHour {
		w.wantStatus(http.StatusOK, "POST", []string{"uploads.test", "weir.internal"}[i%2], "/repos/a/b/releases/1/assets", "Bearer weir_key")
	}
	for host, want := range map[string]int{"uploads.test": 429, "weir.internal": 429, "raw.test": 200, "storage.test": 200} {
		w.wantStatus(want, "GET", host, "/repos/a/b", "Bearer weir_key")
	}
}

// TestCredentialReachesOnlyItsHosts checks that a host without a credential gets none: neither the credential of a
// client, nor a key of the gateway, nor a token that a client sends.
func TestCredentialReachesOnlyItsHosts(t *testing.T) {
	w := startHosts(t)
	for _, authorization := range []string{"", "Bearer weir_key", "Bearer tok-held", "Bearer tok-other", "Basic d2Vpcjp3ZWlyX2tleQ=="} {
		w.wantStatus(http.StatusOK, "GET", "storage.test", "/a?sig=x", authorization)
		w.want("storage", "/a?sig=x")
	}
	for _, host := range []string{"uploads.test", "raw.test", "weir.internal"} {
		for _, authorization := range []string{"", "Bearer tok-held", "Bearer tok-other"} {
			w.wantStatus(http.StatusUnauthorized, "GET", host, "/a", authorization)
		}
	}
}

// TestFilesKeepTheirTarget checks that the target of a file is sent byte for byte, because signatures depend on it.
func TestFilesKeepTheirTarget(t *testing.T) {
	w := startHosts(t)
	for _, target := range []string{
		"/a//b/./c/../d", "/api/v3/user", "/api/graphql", "/a%2Fb%2fc", "/a?z=1&a=2&a=1;b", "/a?sig=a%2Bb%3D%2F+x&empty", "/%7Euser/~user", "/a?", "/",
	} {
		w.send("GET", "storage.test", target, "")
		w.want("storage", strings.TrimSuffix(target, "?"))
	}
}

// forwardProxy is the forward proxy of a gateway with further hosts.
type forwardProxy struct {
	*hostsWorld
	address string
	roots   *x509.CertPool
}

func startForwardProxy(t *testing.T) *forwardProxy {
	t.Helper()
	p := &forwardProxy{hostsWorld: startHosts(t), roots: x509.NewCertPool()}
	next := *p.gateway.current.Load().config
	names := []string{"api.test"}
	next.Upstream.URL = "http://" + names[0] // a name, because the authority signs no addresses
	for _, h := range next.Hosts {
		names = append(names, h.Name)
	}
	certificate, key, err := authority.Create(names, time.Hour, time.Now())
	noError(t, err)
	dir := t.TempDir()
	next.Proxy.CA.Certificate, next.Proxy.CA.Key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	write(t, next.Proxy.CA.Certificate, string(certificate))
	write(t, next.Proxy.CA.Key, string(key))
	p.roots.AppendCertsFromPEM(certificate)
	next.Proxy.Listen = "127.0.0.1:0"
	p.gateway.started.Proxy.Listen = next.Proxy.Listen // as if the process had started with the proxy
	noError(t, p.gateway.loadAndApply(func() (*config.Config, error) { return &next, nil }))
	endpoints := must(p.gateway.listenProxy(&next))(t)
	p.address = endpoints[0].listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAll(ctx, slog.New(slog.DiscardHandler), noDrain, endpoints...) }()
	t.Cleanup(func() {
		stop()
		err := <-served
		failIf(t, err != nil, "%v", err)
	})
	return p
}

// client returns a client that sends its requests through the proxy with a key as password.
func (p *forwardProxy) client(password string) *http.Client {
	proxy := &url.URL{Scheme: "http", User: url.UserPassword("any", password), Host: p.address}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: p.roots}, ForceAttemptHTTP2: true}
	p.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// tunnel opens a tunnel to a host.
func (p *forwardProxy) tunnel(host string) net.Conn {
	p.Helper()
	c := dial(p, p.address)
	_, _ = fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Bearer weir_key\r\n\r\n", host, host)
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	stopIf(p, err != nil || resp.StatusCode != http.StatusOK, "CONNECT %s: %v, %v", host, resp, err)
	return c
}

// wantTunnelled checks the status and the protocol of a request for a file of storage.test.
func (p *forwardProxy) wantTunnelled(client *http.Client, status, protocol int, fields ...string) {
	p.Helper()
	resp, _ := getWith(p, client, "https://storage.test/a", fields...)
	failIf(p, resp.StatusCode != status || resp.ProtoMajor != protocol, "storage.test with %q: got %s over %s, want %d over HTTP/%d", fields, resp.Status, resp.Proto, status, protocol)
}

// TestTunnelReplacesTheCredential checks that the key of the proxy identifies the client, and that neither the key nor
// the program's own token is forwarded.
func TestTunnelReplacesTheCredential(t *testing.T) {
	p := startForwardProxy(t)
	p.wantTunnelled(p.client("weir_key"), http.StatusOK, 2, "Authorization: Bearer tok-of-the-program")
	p.want("storage", "/a")
	getWith(t, p.client("weir_key"), "https://raw.test/a/b", "Authorization: Bearer tok-of-the-program")
	p.want("raw", "/a/b Bearer tok-held")
	held := longToken(1)
	reloadChanged(t, p.gateway, func(c *config.Config) {
		c.Credentials = []config.Credential{userToken("ci", "ci", credential.Secret(held))}
	})
	getWith(t, p.client("weir_key"), "https://raw.test/a/b", "Authorization: Bearer "+longToken(2))
	getWith(t, p.client("weir_key"), "https://uploads.test/user", "Authorization: token "+longToken(2))
	p.want("raw", "/a/b Bearer "+held)
	p.want("uploads", "/user Bearer "+held)
}

// TestRegistrationOfARunnerPasses sends the scheme by which a runner registers itself. Only the runner has this credential, so the
// key of the proxy does not replace it.
func TestRegistrationOfARunnerPasses(t *testing.T) {
	const registration, path = "RemoteAuth AABF3JGZDX3P5PMEXLND6TS6FCWO6", "/actions/runner-registration"
	p := startForwardProxy(t)
	reloadChanged(t, p.gateway, func(c *config.Config) { c.Upstream.Dialect = "github" })
	getWith(t, p.client("weir_key"), "https://uploads.test"+path, "Authorization: "+registration)
	p.want("uploads", path+" "+registration)
	for _, value := range []string{"RemoteAuth AABF 3JGZ", "RemoteAuth weir_key_that_is_long_enough_0", "RemoteAuth", "OtherAuth AABF3JGZDX3P5PMEXLND6TS6FCWO6"} {
		getWith(t, p.client("weir_key"), "https://uploads.test"+path, "Authorization: "+value)
	}
	p.want("uploads", path+" Bearer tok-held") // another scheme is replaced
	direct := startHosts(t)
	direct.wantStatus(http.StatusUnauthorized, "POST", "weir.internal", path, registration)
	reloadChanged(t, direct.gateway, func(c *config.Config) { c.Upstream.Dialect, c.Callers.PassThrough = "github", true })
	direct.wantStatus(http.StatusOK, "POST", "weir.internal", path, registration)
	direct.want("api", path+" "+registration)
}

// TestTunnelIsOnlyForItsTarget checks that a tunnel has the certificate of its target only, and that its requests cannot
// name another host.
func TestTunnelIsOnlyForItsTarget(t *testing.T) {
	p := startForwardProxy(t)
	err := tls.Client(p.tunnel("storage.test"), &tls.Config{RootCAs: p.roots, ServerName: "raw.test"}).Handshake()
	failIf(t, err == nil, "the handshake for another name succeeded")
	anonymous := tls.Client(p.tunnel("storage.test"), &tls.Config{InsecureSkipVerify: true}) // sends no name
	noError(t, anonymous.Handshake())
	names := anonymous.ConnectionState().PeerCertificates[0].DNSNames
	failIf(t, len(names) != 1 || names[0] != "storage.test", "got a certificate for %v", names)
	plain := p.tunnel("storage.test")
	_, _ = io.WriteString(plain, "GET / HTTP/1.1\r\nHost: storage.test\r\n\r\n")
	text, _ := io.ReadAll(plain)
	failIf(t, len(text) > 0 && text[0] != 21 && string(text[:12]) != "HTTP/1.0 400", "plain HTTP in the tunnel: got %q", text)
	for _, version := range []int{1, 2} {
		client := p.client("weir_key")
		protocols := new(http.Protocols)
		protocols.SetHTTP1(version == 1)
		protocols.SetHTTP2(version == 2)
		client.Transport.(*http.Transport).Protocols = protocols
		p.wantTunnelled(client, http.StatusMisdirectedRequest, version, "Host: raw.test")
	}
	p.want("raw")
	p.want("storage")
}

// TestReloadWithoutProxyKeepsItsListener checks that the listener, which only a restart closes, keeps its authority.
func TestReloadWithoutProxyKeepsItsListener(t *testing.T) {
	p := startForwardProxy(t)
	p.gateway.started.Proxy = p.gateway.current.Load().config.Proxy
	reloadChanged(t, p.gateway, func(c *config.Config) { c.Proxy = config.Default().Proxy })
	p.wantTunnelled(p.client("weir_key"), http.StatusOK, 2)
}

// TestOpenTunnelEndsWithItsHost checks that the requests of an open tunnel do not go to the API when a reload has removed
// their host.
func TestOpenTunnelEndsWithItsHost(t *testing.T) {
	p := startForwardProxy(t)
	client := p.client("weir_key")
	p.wantTunnelled(client, http.StatusOK, 2)
	reloadChanged(t, p.gateway, func(c *config.Config) { c.Hosts = c.Hosts[:len(c.Hosts)-1] })
	p.wantTunnelled(client, http.StatusMisdirectedRequest, 2)
	p.want("storage", "/a")
	p.want("api")
}

func TestProxyNeedsAKey(t *testing.T) {
	p := startForwardProxy(t)
	for _, password := range []string{"", "wrong", "tok-held", "weir_keyx"} {
		if resp, err := p.client(password).Get("https://storage.test/"); err == nil {
			t.Errorf("password %q: got %s", password, resp.Status)
			_ = resp.Body.Close()
		}
	}
	p.want("storage")
}

// TestURLsInBodiesLeadToTheGateway checks that each client gets the URLs by which it calls the gateway, from one stored
// response, and that a client that calls the API by its own name gets the upstream's URLs.
func TestURLsInBodiesLeadToTheGateway(t *testing.T) {
	const body = `{"url":"https://api.test/repos/a/b","upload_url":"https://uploads.test/repos/a/b{?name}","body":"https://api.test/x"}`
	requests := 0
	up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public, max-age=60")
		w.Header().Set("Etag", `"1"`)
		_, _ = io.WriteString(w, body)
	})
	g := open(t, configure(up, trusting, func(c *config.Config) {
		c.Upstream.Rewrite = true
		c.Hosts = []config.Host{
			{Name: "api.test", URL: up, Kind: "api"}, {Name: "uploads.test", URL: up, Kind: "api", Path: "/api/uploads"},
			{Name: "files.test", URL: up, Kind: "files", Path: "/files"},
		}
	}))
	rewritten := func(host, api string) string {
		return strings.NewReplacer(
			`"url":"https://api.test`, `"url":"http://`+host+api, "https://uploads.test", "http://"+host+"/api/uploads").Replace(body)
	}
	for _, c := range []struct{ host, target, want, etag string }{
		{"weir.internal", "/gitignore/templates", rewritten("weir.internal", ""), `W/"1"`},
		{"weir.internal", "/gitignore/templates", rewritten("weir.internal", ""), `W/"1"`},
		{"api.test", "/gitignore/templates", body, `"1"`},
		{"weir.internal", "/files/package.json", body, `"1"`},
		{"[::1]:8080", "/api/v3/gitignore/templates", rewritten("[::1]:8080", "/api/v3"), `W/"1"`},
	} {
		w := sendTo(g, http.MethodGet, c.target, "", "Host: "+c.host)
		failIf(t, w.Body.String() != c.want || w.Header().Get("Etag") != c.etag, "%s%s: got %s with %s\nwant %s with %s", c.host, c.target, w.Body, w.Header().Get("Etag"), c.want, c.etag)
	}
	failIf(t, requests != 2, "%d requests upstream, want one for the API and one for the file", requests)
	w := sendTo(g, http.MethodGet, "/gitignore/templates", "", "Host: weir.internal", `If-None-Match: W/"1"`)
	failIf(t, w.Code != http.StatusNotModified, "the rewritten ETag: got %d", w.Code)
}

// TestURLsLeadToTheNameOfTheTrustedProxy checks the fields and bodies for clients of a proxy with a path prefix, from one
// stored response.
func TestURLsLeadToTheNameOfTheTrustedProxy(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		own := "http://" + r.Host
		for name, value := range map[string]string{
			"Content-Type": "application/json", "Cache-Control": "public, max-age=60", "Location": "/gitignore/templates/C",
			"Content-Location": own + r.URL.Path, "Link": "<" + own + `/gitignore/templates?page=2>; rel="next"`,
		} {
			w.Header().Set(name, value)
		}
		_, _ = io.WriteString(w, `{"url":"`+own+`/user"}`)
	})
	for _, trusted := range []bool{true, false} {
		g := open(t, configure(up, trusting, func(c *config.Config) {
			c.Upstream.Rewrite = true
			c.Hosts = []config.Host{{Name: "uploads.test", URL: up, Kind: "api"}}
			if trusted {
				c.Callers.TrustedProxies = []string{"192.0.2.0/24"}
			}
		}))
		for _, c := range []struct{ fields, target, base, path string }{
			{"Forwarded: for=198.51.100.1;proto=https;host=api.example", "", "https://api.example", ""},
			{"X-Forwarded-Proto: https\nX-Forwarded-Host: api.example\nX-Forwarded-Prefix: /weir", "", "https://api.example/weir", "/weir"},
			{"X-Forwarded-Host: api.example:8080\nX-Forwarded-Prefix: /weir/", "/api/v3", "http://api.example:8080/weir/api/v3", "/weir/api/v3"},
			{`X-Forwarded-Host: evil.test>; rel="next"`, "", "http://weir.internal", ""},
		} {
			w := sendTo(g, http.MethodGet, c.target+"/gitignore/templates", "", append(strings.Split(c.fields, "\n"), "Host: weir.internal")...)
			base, path := "http://weir.internal"+c.target, c.target
			if trusted {
				base, path = c.base, c.path
			}
			h := w.Header()
			got := []string{h.Get("Location"), h.Get("Content-Location"), h.Get("Link"), w.Body.String()}
			want := []string{path + "/gitignore/templates/C", base + "/gitignore/templates", "<" + base + `/gitignore/templates?page=2>; rel="next"`, `{"url":"` + base + `/user"}`}
			failIf(t, !slices.Equal(got, want), "trusted %v, %s:\ngot  %q\nwant %q", trusted, c.fields, got, want)
		}
	}
}

// TestTrustedProxyNamesTheHost checks that a host is chosen by the name that the client used.
func TestTrustedProxyNamesTheHost(t *testing.T) {
	w := startHosts(t)
	next := *w.gateway.current.Load().config
	next.Callers.TrustedProxies = []string{"192.0.2.0/24"}
	noError(t, w.gateway.loadAndApply(func() (*config.Config, error) { return &next, nil }))
	for name, host := range map[string]string{"storage.test": "storage", "raw.test": "raw", "weir.example": "api"} {
		r := httptest.NewRequest(http.MethodGet, "/a", nil)
		r.Host = "weir.internal"
		r.Header["X-Forwarded-Host"], r.Header["Authorization"] = []string{name}, []string{"Bearer weir_key"}
		serveRequest(w.gateway, r)
		authorization := " Bearer tok-held"
		if host == "storage" {
			authorization = ""
		}
		w.want(host, "/a"+authorization)
	}
}

// TestAliasesOfTheUpstreamLeadToTheGateway checks bodies, and the name by which clients of the forward proxy call the API.
func TestAliasesOfTheUpstreamLeadToTheGateway(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "https://internal.test/user")
		_, _ = io.WriteString(w, `{"url":"https://internal.test/user","b_url":"http://internal.test/api/v3/user","c_url":"https://cdn.test/v1/user","d_url":"https://other.test/user"}`)
	})
	g := open(t, configure(up, trusting, func(c *config.Config) {
		c.Upstream.Rewrite, c.Upstream.Aliases = true, []string{"internal.test", "https://cdn.test/v1"}
	}))
	for host, want := range map[string]string{
		"weir.internal": `{"url":"http://weir.internal/user","b_url":"http://weir.internal/user","c_url":"http://weir.internal/user","d_url":"https://other.test/user"} http://weir.internal/user`,
		"internal.test": `{"url":"https://internal.test/user","b_url":"http://internal.test/api/v3/user","c_url":"https://cdn.test/v1/user","d_url":"https://other.test/user"} https://internal.test/user`,
	} {
		w := sendTo(g, http.MethodGet, "/user", "", "Host: "+host)
		got := w.Body.String() + " " + w.Header().Get("Location")
		failIf(t, got != want, "%s: got %s\nwant %s", host, got, want)
	}
	got := g.current.Load().config.HostNames()
	failIf(t, !slices.Equal(got, []string{"internal.test", "cdn.test"}), "names for the forward proxy: got %q", got)
}

// TestGitIsRefusedWithAnExplanation checks what a user of git reads, and that the API receives no request of git.
func TestGitIsRefusedWithAnExplanation(t *testing.T) {
	up := serveAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		failIf(t, r.URL.Path != "/repos/acme/widgets/contents/info/refs", "the API received %s %s", r.Method, r.URL)
	})
	g := open(t, configure(up, trusting, func(c *config.Config) { c.Upstream.Dialect = "github" }))
	for _, c := range []struct {
		method, target string
		want           int
	}{
		{"POST", "/acme/widgets.git/git-upload-pack", http.StatusMisdirectedRequest},
		{"POST", "/acme/widgets.git/git-receive-pack", http.StatusMisdirectedRequest},
		{"POST", "/acme/widgets.git/info/lfs/objects/batch", http.StatusMisdirectedRequest},
		{"GET", "/acme/widgets.git/info/refs?service=git-receive-pack", http.StatusMisdirectedRequest},
		{"GET", "/repos/acme/widgets/contents/info/refs", http.StatusOK},
	} {
		w := sendTo(g, c.method, c.target, "")
		failIf(t, w.Code != c.want, "%s %s: got %d, want %d", c.method, c.target, w.Code, c.want)
	}
	program, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed") //nolint:forbidigo // the other tests need no program
	}
	git := exec.CommandContext(t.Context(), program, "ls-remote", serveAPI(t, g.ServeHTTP)+"/acme/widgets.git")
	git.Env = append(git.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "no_proxy=*")
	text, err := git.CombinedOutput()
	want := "remote: Weir serves the API, not git. Use the URL of the git host"
	failIf(t, err == nil || !strings.Contains(string(text), want), "git ls-remote: %v\n%s", err, text)
}

// TestHalfRequestsAreRefusedAtEveryEntrance sends a short body and closes the sending side, or stops within a chunk.
func TestHalfRequestsAreRefusedAtEveryEntrance(t *testing.T) {
	p := startForwardProxy(t)
	next := *p.gateway.current.Load().config
	next.Webhooks = config.Webhooks{Path: "/_weir/webhooks", Secret: "secret"}
	noError(t, p.gateway.loadAndApply(func() (*config.Config, error) { return &next, nil }))
	front := httptest.NewServer(p.gateway)
	defer front.Close()
	direct := func() net.Conn { return dial(t, front.Listener.Addr().String()) }
	tunnelled := func(host string) func() net.Conn {
		return func() net.Conn { return tls.Client(p.tunnel(host), &tls.Config{ServerName: host, RootCAs: p.roots}) }
	}
	for _, c := range []struct {
		name, target, host string
		connect            func() net.Conn
	}{
		{"API", "POST /repos/a/b/issues", "g", direct},
		{"uploads", "POST /api/uploads/repos/a/b/releases/1/assets?name=x", "g", direct},
		{"files", "PUT /storage/a", "g", direct},
		{"webhook", "POST /_weir/webhooks", "g", direct},
		{"API in a tunnel", "POST /repos/a/b/issues", "api.test", tunnelled("api.test")},
		{"uploads in a tunnel", "POST /repos/a/b/releases/1/assets?name=x", "uploads.test", tunnelled("uploads.test")},
	} {
		for _, body := range []string{"Content-Length: 100\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "Transfer-Encoding: chunked\r\n\r\n64\r\n{}"} {
			conn := c.connect()
			_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer weir_key\r\n%s", c.target, c.host, body)
			noError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil && resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: got %s after %q", c.name, resp.Status, body)
			}
			_ = conn.Close()
		}
	}
	for _, host := range []string{"api", "uploads", "storage"} {
		p.want(host)
	}
}

// TestNamesBelowADomainAreServed checks that each name below a domain has its own upstream, and that other names have none.
func TestNamesBelowADomainAreServed(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "api") })
	g := open(t, configure(up, trusting, func(c *config.Config) {
		c.Hosts = []config.Host{{Name: "*.blob.test", Kind: "files"}, {Name: "a.blob.test", URL: up, Kind: "files"}}
	}))
	var dialed []string
	g.files.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialed = append(dialed, address); !strings.HasSuffix(address, ":443") {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
		return nil, io.ErrUnexpectedEOF
	}
	for host, want := range map[string]int{
		"b.blob.test": 502, "C.d.blob.test": 502, "a.blob.test": 200, "blob.test": 200, "xblob.test": 200, ".blob.test": 200, "b_.blob.test": 200, "b.blob.test.evil.test": 200,
	} {
		w := sendTo(g, http.MethodGet, "/x", "", "Host: "+host)
		failIf(t, w.Code != want, "%s: got %d, want %d", host, w.Code, want)
	}
	for _, address := range dialed {
		name, _, _ := strings.Cut(address, ":")
		failIf(t, name != "127.0.0.1" && name != "b.blob.test" && name != "c.d.blob.test", "the gateway connected to %s", address)
	}
	failIf(t, !strings.Contains(fmt.Sprint(dialed), "c.d.blob.test:443"), "the gateway connected to %q", dialed)
	certificate, key, err := authority.Create([]string{"*.blob.test"}, time.Hour, time.Now())
	noError(t, err)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ca.crt"), string(certificate))
	write(t, filepath.Join(dir, "ca.key"), string(key))
	a := must(authority.Load(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")))(t)
	for name, permitted := range map[string]bool{"b.blob.test": true, "c.d.blob.test": true, "blob.test": false, "xblob.test": false} {
		_, err := a.Certificate(name)
		failIf(t, (err == nil) != permitted, "a certificate for %s: %v", name, err)
	}
}

// TestFilesUseHTTP1 checks that a host with files is reached over HTTP/1.1, and the API over HTTP/2, at a server with both.
func TestFilesUseHTTP1(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	g := open(t, configure(up.URL, trusting, func(c *config.Config) {
		c.Hosts = []config.Host{{Name: "files.test", URL: up.URL, Kind: "files"}, {Name: "uploads.test", URL: up.URL, Kind: "api"}}
	}))
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AddCert(up.Certificate())
	g.transport.TLSClientConfig, g.files.TLSClientConfig = trust, trust.Clone()
	for host, want := range map[string]string{"files.test": "HTTP/1.1", "uploads.test": "HTTP/2.0", "api.test": "HTTP/2.0"} {
		w := sendTo(g, http.MethodGet, "/x", "", "Host: "+host)
		failIf(t, w.Body.String() != want, "%s: got %s, want %s", host, w.Body, want)
	}
}
