//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// quietHost is a server over HTTP/2 whose streams, polls and downloads are open until release is closed.
type quietHost struct {
	url, env string // env lets weir trust the server
	open     atomic.Int32
	release  chan struct{}
}

// bigFile is larger than all buffers between the host and a client that does not read.
const bigFile = 8 << 20

func startQuietHost(t *testing.T) *quietHost {
	t.Helper()
	h := &quietHost{release: make(chan struct{})}
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	h.url, h.env = s.URL, "SSL_CERT_FILE="+write(t, filepath.Join(t.TempDir(), "host.pem"),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	return h
}

// quietSizes are the sizes of the responses. The first part of a response arrives at once, if it has two.
var quietSizes = map[string]struct{ first, rest int64 }{
	"/events": {1, 1}, "/poll": {0, 1}, "/slow-host": {64 << 10, bigFile}, "/slow-client": {bigFile, 0},
}

func (h *quietHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	size, quiet := quietSizes[r.URL.Path]
	if !quiet {
		_, _ = io.WriteString(w, "{}")
		return
	}
	h.open.Add(1)
	if r.URL.Path == "/events" {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if size.first > 0 {
		_, _ = io.CopyN(w, zeros{}, size.first) // the client checks the size
		_ = http.NewResponseController(w).Flush()
	}
	select {
	case <-h.release:
		_, _ = io.CopyN(w, zeros{}, size.rest)
	case <-r.Context().Done():
	}
}

// TestSilentTrafficNeedsLittleMemory opens 50 streams, 50 long polls and 100 downloads of a host at the same time, with the
// default configuration. Half of the downloads are slow because the client does not read. All of them complete, and reads of
// the API by the same client pass while they are open.
func TestSilentTrafficNeedsLittleMemory(t *testing.T) {
	const each, maxGrowth = 50, 64 << 20
	h := startQuietHost(t)
	weir := serveText(t, fmt.Sprintf("upstream: {url: %q, dialect: github}\nhosts: [{name: files.example.com, url: %q, path: /files}]\n", h.url, h.url), h.env)
	get(t, weir.url+"/files/first")
	idle := processMemory(t, weir.cmd.Process.Pid, "VmRSS")
	var clients sync.WaitGroup
	for path := range quietSizes {
		for i := range each {
			clients.Go(func() { h.check(t, weir.address, path, i) })
		}
	}
	testservers.Eventually(t, "all requests are at the host", func(context.Context) bool { return int(h.open.Load()) == each*len(quietSizes) })
	for i := range 20 {
		resp, _ := get(t, weir.url+"/repos/acme/x"+strconv.Itoa(i), "Authorization: Bearer tok", "Prefer: wait=0")
		want(t, "status of a read", resp.StatusCode, http.StatusOK)
	}
	sleep(t.Context(), 3*time.Second) // the host fills all buffers
	grown := processMemory(t, weir.cmd.Process.Pid, "VmRSS") - idle
	close(h.release)
	clients.Wait()
	t.Logf("the memory grew by %d MB", grown>>20)
	failIf(t, grown > maxGrowth, "want at most %d MB", maxGrowth>>20)
}

// check sends a request, reads the response after the release, and checks its size.
func (h *quietHost) check(t *testing.T, address, path string, i int) {
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%8))}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: from}).DialContext}
	url := fmt.Sprint("http://", address, "/files", path, "?n=", i) // identical requests would be one
	resp, err := transport.RoundTrip(newRequest(t.Context(), http.MethodGet, url, "", "Authorization: Bearer tok"))
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	<-h.release
	n, err := io.Copy(io.Discard, resp.Body)
	size := quietSizes[path]
	if err = cmp.Or(err, resp.Body.Close()); err != nil || n != size.first+size.rest || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: status %d, %d bytes, %v", path, resp.StatusCode, n, err)
	}
}

// serveProxied starts a gateway with a forward proxy for clients without a key. It returns a function that returns a client of the
// proxy.
func serveProxied(t *testing.T, config string) (weir *replica, through func(http2 bool) *http.Client) {
	t.Helper()
	dir, proxy := t.TempDir(), testservers.FreeAddress(t)
	file := write(t, filepath.Join(dir, "weir.yaml"), config)
	text, code := command(t, "ca", "init", "--config", file, "--out", dir)
	stopIf(t, code != 0, "%v", text)
	write(t, file, config+fmt.Sprintf("proxy: {listen: %q, allow: [127.0.0.1], ca: {certificate: weir-ca.crt, key: weir-ca.key}}\n", proxy))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(readFile(t, filepath.Join(dir, "weir-ca.crt"))))
	return serve(t, file), func(http2 bool) *http.Client {
		return &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy}), TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: http2,
		}}
	}
}

// TestDrainEndsSilentRequests opens a stream and a long poll of a host, over the listener and through the forward proxy. Each
// event arrives at once. After drain.timeout the stream ends as incomplete, the poll gets 503, and the gateway stops.
func TestDrainEndsSilentRequests(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"listener", "proxy with HTTP/1.1", "proxy with HTTP/2"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			next, polled := make(chan struct{}), make(chan struct{})
			up := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/events" {
					w.Header().Set("Content-Type", "text/event-stream")
					for _, event := range []string{"1", "2"} {
						_, _ = io.WriteString(w, event)
						_ = http.NewResponseController(w).Flush()
						<-next
					}
				} else {
					close(polled)
				}
				<-r.Context().Done()
			}))
			weir, through := serveProxied(t, fmt.Sprintf("upstream: {url: %q}\ndrain: {timeout: 1s}\nhosts: [{name: files.example.com, url: %q, path: /files}]\n", up, up))
			client, base := http.DefaultClient, weir.url+"/files"
			if way != "listener" {
				client, base = through(way == "proxy with HTTP/2"), "https://files.example.com"
			}
			stream, err := client.Do(newRequest(t.Context(), http.MethodGet, base+"/events", ""))
			must(t, err)
			event := make([]byte, 1)
			for _, wanted := range []string{"1", "2"} {
				_, err := io.ReadFull(stream.Body, event)
				must(t, err)
				want(t, "event", string(event), wanted)
				next <- struct{}{}
			}
			poll := make(chan string, 1)
			go func() {
				resp, _, err := do(client, newRequest(t.Context(), http.MethodGet, base+"/poll", ""))
				if err != nil {
					poll <- err.Error()
					return
				}
				poll <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Retry-After"), " ", resp.Header.Get("Cache-Status"))
			}()
			<-polled
			weir.signal(syscall.SIGTERM)
			if rest, err := io.ReadAll(stream.Body); err == nil || len(rest) > 0 {
				t.Errorf("the stream ended with %q, %v", rest, err)
			}
			want(t, "long poll", <-poll, "503 1 weir; detail=drain")
			must(t, weir.exited())
			failIf(t, strings.Contains(weir.output.String(), "requests were cut off"), "the gateway cut connections off")
		})
	}
}

// TestMCPServerMayBeSilent calls a tool of the reference implementation of MCP over streamable HTTP. The server writes nothing for
// longer than upstream.timeout: neither to the stream with the result, nor to the stream of events.
func TestMCPServerMayBeSilent(t *testing.T) {
	t.Parallel()
	seconds := duration(t, "WEIR_MCP_SILENCE", 4*time.Second).Seconds()
	server := startCommand(t, exec.Command("node", installed(t, "mcp.mjs"), "serve", fmt.Sprint(seconds)))
	weir := serveText(t, fmt.Sprintf("upstream: {url: %q, timeout: 1s}\nhosts: [{name: mcp.example.com, url: \"http://127.0.0.1:%s\", path: /mcp-host}]\n", "http://127.0.0.1:1", server.find(`port (\d+)`)))
	text, err := exec.CommandContext(t.Context(), "node", installed(t, "mcp.mjs"), "call", weir.url+"/mcp-host/mcp").CombinedOutput()
	must(t, err)
	want(t, "result", string(text), "read-only: true\n")
}
