//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// hostedAPI plays the hosts of the API: the API itself, the host for uploads, and a storage with signed URLs.
type hostedAPI struct {
	*testing.T
	config   string // of weir: upstream and hosts
	socket   string // of weir
	proxy    string // address of weir's forward proxy
	uploaded atomic.Int64
	fileSize atomic.Int64           // of the asset in the storage
	broken   atomic.Bool            // the storage ends its responses early
	caching  atomic.Pointer[string] // Cache-Control of the storage
	reads    atomic.Int32           // of the storage
}

// signedTarget is the target of a signed URL, whose signature depends on each byte.
const signedTarget = "/a/b//c%2Fd?sig=a%2Bb%3D&sp=r&se=2026-01-01T00%3A00%3A00Z;x"

// startHostedAPI starts servers for the hosts. The API accepts the token tok-owner.
func startHostedAPI(t *testing.T) *hostedAPI {
	t.Helper()
	h := &hostedAPI{T: t}
	h.caching.Store(new("no-store"))
	service := newGitHub(t)
	asset := map[string]any{"id": 1, "name": "big.bin", "state": "uploaded", "size": 1, "url": "https://api.github.com/repos/acme/widgets/releases/assets/1"}
	release := map[string]any{
		"id": 1, "tag_name": "v1", "name": "v1", "url": "https://api.github.com/repos/acme/widgets/releases/1",
		"upload_url": "https://uploads.github.com/repos/acme/widgets/releases/1/assets{?name,label}", "assets": []any{asset},
	}
	authorized := func(next http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			failIf(t, !strings.HasSuffix(r.Header.Get("Authorization"), " tok-owner"), "%s %s has the Authorization %q", r.Method, r.URL, r.Header.Get("Authorization"))
			next(w, r)
		})
	}
	api := serveHTTP(t, authorized(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/repos/acme/widgets/releases/tags/v1":
			reply(w, http.StatusOK, release)
		case "/repos/acme/widgets/releases/assets/1":
			if r.Method == http.MethodDelete {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			w.Header().Set("Location", "https://release-assets.githubusercontent.com"+signedTarget)
			w.WriteHeader(http.StatusFound)
		case "/user":
			reply(w, http.StatusOK, map[string]any{"login": "owner", "id": 1, "url": "https://api.github.com/users/owner"})
		case "/graphql":
			serveGraphQL(w, r, service)
		default:
			service.ServeHTTP(w, r)
		}
	}))
	uploads := serveHTTP(t, authorized(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		failIf(t, err != nil || n != r.ContentLength || r.URL.Path != "/repos/acme/widgets/releases/1/assets", "upload to %s: %d of %d bytes: %v", r.URL, n, r.ContentLength, err)
		h.uploaded.Store(n)
		reply(w, http.StatusCreated, asset)
	}))
	storage := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.reads.Add(1)
		failIf(t, r.RequestURI != signedTarget || r.Header["Authorization"] != nil, "storage got %s with %q", r.RequestURI, r.Header["Authorization"])
		w.Header().Set("Cache-Control", *h.caching.Load())
		w.Header().Set("Content-Length", strconv.FormatInt(h.fileSize.Load(), 10))
		if h.broken.Load() {
			_, _ = io.CopyN(w, zeros{}, h.fileSize.Load()/2)
			panic(http.ErrAbortHandler)
		}
		_, _ = io.CopyN(w, zeros{}, h.fileSize.Load()) // the client checks the size
	}))
	h.config = fmt.Sprintf(`upstream: {url: %q, dialect: github}
limits: {cold_start: trust}
credentials: [{name: owner, kind: user, account: owner, token: tok-owner}]
hosts:
  - {name: api.github.com, url: %q, kind: api}
  - {name: uploads.github.com, url: %q, kind: api, path: /api/uploads}
  - {name: release-assets.githubusercontent.com, url: %q}
`, api, api, uploads, storage)
	return h
}

// serveGraphQL answers the query for the draft of a release, and calls the service for other queries.
func serveGraphQL(w http.ResponseWriter, r *http.Request, service http.Handler) {
	query, _ := io.ReadAll(r.Body) // the service reports an incomplete query
	if bytes.Contains(query, []byte("release(tagName")) {
		reply(w, http.StatusOK, map[string]any{"data": map[string]any{"repository": map[string]any{"release": nil}}})
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(query))
	service.ServeHTTP(w, r)
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// unchangedProgram runs commands in a clone of acme/widgets, with its environment.
type unchangedProgram struct {
	*hostedAPI
	dir string
	env []string
}

// run runs a command and returns its output.
func (p *unchangedProgram) run(name string, args ...string) (string, error) {
	c := exec.CommandContext(p.Context(), name, args...)
	c.Dir, c.Env = p.dir, append(os.Environ(), p.env...)
	text, err := c.CombinedOutput()
	return string(text), err
}

// mustRun runs a command that must succeed.
func (p *unchangedProgram) mustRun(name string, args ...string) string {
	p.Helper()
	text, err := p.run(name, args...)
	stopIf(p, err != nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	return text
}

// clone returns the environment of programs in a clone whose remote has the name of the real host.
func (h *hostedAPI) clone(env ...string) *unchangedProgram {
	p := &unchangedProgram{h, h.TempDir(), append(env, "TZ=UTC", "GH_PROMPT_DISABLED=1", "GIT_CONFIG_GLOBAL=/dev/null")}
	p.env = append(p.env, "HOME="+p.dir, "GH_CONFIG_DIR="+p.dir)
	p.mustRun("git", "init", "-q")
	p.mustRun("git", "remote", "add", "origin", "https://github.com/acme/widgets.git")
	return p
}

// check runs gh as in a clone of the real host. It uploads and downloads files of the given size.
func (p *unchangedProgram) check(size int64) {
	p.Helper()
	wantMatch(p, "gh pr list", p.mustRun("gh", "pr", "list", "-L", "1"), "^35\tReplace part 11")
	wantMatch(p, "gh pr checks", p.mustRun("gh", "pr", "checks", "34"), "coverage\tpass")
	file := write(p.T, filepath.Join(p.dir, "big.bin"), "")
	must(p, os.Truncate(file, size))
	p.mustRun("gh", "release", "upload", "v1", file, "--clobber")
	want(p, "bytes that the host got from gh release upload", p.uploaded.Load(), size)
	must(p, os.Remove(file))
	p.fileSize.Store(size)
	p.mustRun("gh", "release", "download", "v1", "-p", "big.bin")
	info, err := os.Stat(file)
	failIf(p, err != nil || info.Size() != size, "gh release download: %v, %v", info, err)
}

// startSocket starts weir on a Unix socket, and returns the programs that use the socket with their own token.
func (h *hostedAPI) startSocket() (*process, *unchangedProgram) {
	h.Helper()
	dir := h.TempDir()
	h.socket = filepath.Join(dir, "weir.sock")
	config := write(h.T, filepath.Join(dir, "weir.yaml"), h.config+"listen: unix:"+h.socket+"\nsocket: {mode: \"0600\"}\n")
	weir := start(h.T, "serve", "--config", config, "--admin", anyPort)
	weir.find("gateway started")
	p := h.clone("GH_TOKEN=tok-owner")
	p.mustRun("gh", "config", "set", "http_unix_socket", h.socket)
	return weir, p
}

// TestUnchangedProgramsThroughSocket runs gh in a clone of the real host, with only the setting http_unix_socket.
func TestUnchangedProgramsThroughSocket(t *testing.T) {
	t.Parallel()
	h := startHostedAPI(t)
	weir, p := h.startSocket()
	info, err := os.Stat(h.socket)
	failIf(t, err != nil || info.Mode().Perm() != 0o600, "socket: %v, %v", info, err)
	p.check(1 << 20)
	h.compareTranscript("socket", weir)
	curl := []string{"-s", "--unix-socket", h.socket}
	wantMatch(t, "a host that is not configured", p.mustRun("curl", append(curl, "-w", "%{http_code}", "http://other.example/")...), "421$")
	user := slices.Concat(curl, []string{"-H", "Authorization: Bearer tok-owner", "http://localhost/user"})
	wantMatch(t, "the API without a host name", p.mustRun("curl", user...), `"login"`)
	config := filepath.Join(filepath.Dir(h.socket), "weir.yaml")
	got, code := command(t, "serve", "--config", config, "--admin", "127.0.0.1:0")
	failIf(t, code == 0 || !strings.Contains(got, "another process listens on"), "a second process on the socket: exit %d\n%s", code, got)
}

// startProxy starts weir as a forward proxy for the hosts, and returns the programs that use it with the key of a client.
func (h *hostedAPI) startProxy() (*process, *unchangedProgram) {
	h.Helper()
	dir := h.TempDir()
	config, ca := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "weir-ca.crt")
	write(h.T, config, h.config)
	text, code := command(h.T, "ca", "init", "--config", config, "--out", dir)
	stopIf(h, code != 0, "weir ca init: exit %d\n%s", code, text)
	key, hash := newKey(h.T, "builds")
	h.proxy = testservers.FreeAddress(h.T)
	write(h.T, config, fmt.Sprintf("%sclients: [{name: builds, key: \"sha256:%s\", credentials: [owner]}]\n"+
		"callers: {pass_through: false}\nproxy: {listen: %q, ca: {certificate: weir-ca.crt, key: weir-ca.key}}\n", h.config, hash, h.proxy))
	weir := serve(h.T, config)
	proxy := "http://weir:" + key + "@" + h.proxy
	return weir.process, h.clone("HTTPS_PROXY="+proxy, "https_proxy="+proxy, "GH_TOKEN=none", "GITHUB_TOKEN=none",
		"SSL_CERT_FILE="+ca, "CURL_CA_BUNDLE="+ca, "REQUESTS_CA_BUNDLE="+ca, "NODE_EXTRA_CA_CERTS="+ca)
}

// TestUnchangedProgramsThroughProxy runs programs that have the host compiled in, with only the variables of the proxy.
func TestUnchangedProgramsThroughProxy(t *testing.T) {
	t.Parallel()
	h := startHostedAPI(t)
	weir, p := h.startProxy()
	p.check(1 << 20)
	p.env = append(p.env, "RUNNER_TEMP="+p.dir, "RUNNER_TOOL_CACHE="+p.dir)
	for _, c := range []struct {
		want    string
		command []string
	}{
		{`"login"`, []string{"curl", "-s", "https://api.github.com/user"}},
		{"^2$", []string{"curl", "-s", "--http2", "-w", "%{http_version}", "-o", "/dev/null", "https://api.github.com/user"}},
		{"^421$", []string{"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: uploads.github.com", "https://api.github.com/"}},
		{"^owner\n$", []string{"/usr/bin/python3", "-c", "import github, sys; print(github.Github('none').get_user().login)"}},
		{"^owner\n$", []string{installed(t, "go-github")}},
		{"owner\n$", []string{"node", "--import", installed(t, "preload.mjs"), installed(t, "octokit.mjs")}},
		{"owner 1048576\n$", []string{"node", installed(t, "actions.mjs")}},
	} {
		wantMatch(t, strings.Join(c.command, " "), p.mustRun(c.command[0], c.command[1:]...), c.want)
	}
	for _, refused := range []struct {
		args []string
		want string
	}{
		{[]string{"https://other.example/"}, "403"},
		{[]string{"https://127.0.0.1/"}, "403"},
		{[]string{"https://api.github.com:8443/"}, "403"},
		{[]string{"--proxy", "http://" + h.proxy, "https://api.github.com/"}, "407"},
		{[]string{"--proxy", "http://weir:tok-owner@" + h.proxy, "https://api.github.com/"}, "407"},
	} {
		got, err := p.run("curl", append([]string{"-s", "-o", "/dev/null", "-w", "%{http_connect}"}, refused.args...)...)
		failIf(t, err == nil || got != refused.want, "curl %v: got %s, %v, want %s", refused.args, got, err, refused.want)
	}
	h.compareTranscript("proxy", weir)
	failIf(t, strings.Contains(weir.output.String(), "tok-owner"), "the log contains a credential")
}

// accessLine matches the line of a request in the log.
var accessLine = regexp.MustCompile(`msg=request request=\S+ method=(\S+) route=(\S+) operation=(\S+) .*?status=(\d+)`)

// transcript returns the requests that weir has logged: one line for each combination of method, route, operation and
// status. Requests that the program cancelled are left out.
func transcript(weir *process) string {
	var lines []string
	for _, m := range accessLine.FindAllStringSubmatch(weir.output.String(), -1) {
		if m[4] != "499" {
			lines = append(lines, strings.Join(m[1:], " "))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// compareTranscript compares the requests that weir has logged with the stored transcript of a scenario.
// WEIR_TRANSCRIPTS=write replaces the transcript.
func (h *hostedAPI) compareTranscript(name string, weir *process) {
	h.Helper()
	file := filepath.Join("testdata", "unchanged-"+name+".txt")
	if os.Getenv("WEIR_TRANSCRIPTS") == "write" {
		sleep(h.Context(), time.Second) // weir logs a request after its response
		write(h.T, file, transcript(weir))
	}
	want := readFile(h.T, file)
	for line := range strings.Lines(want) {
		testservers.Eventually(h, "weir logs "+line, func(context.Context) bool { return strings.Contains(transcript(weir), line) })
	}
	got := transcript(weir)
	failIf(h, got != want, "the requests differ from %s\ngot\n%s", file, got)
}

// TestLargeTransfersNeedLittleMemory uploads and downloads 1 GiB through the socket and through the proxy, or 128 MiB if
// floods are short.
func TestLargeTransfersNeedLittleMemory(t *testing.T) {
	const maxGrowth = 50 << 20
	size := int64(1 << 30)
	if floodPhase(t) < shortFlood {
		size = 128 << 20
	}
	for _, way := range []string{"socket", "proxy"} {
		t.Run(way, func(t *testing.T) {
			h := startHostedAPI(t)
			start := h.startProxy
			if way == "socket" {
				start = h.startSocket
			}
			weir, p := start()
			p.check(1 << 10)
			idle := processMemory(t, weir.cmd.Process.Pid, "VmRSS")
			p.check(size)
			grown := processMemory(t, weir.cmd.Process.Pid, "VmHWM") - idle
			t.Logf("the memory grew by %d MB", grown>>20)
			failIf(t, grown > maxGrowth, "want at most %d MB", maxGrowth>>20)
		})
	}
}

// TestBrokenTransferIsNotStored checks that a download that ends early is not in the cache.
func TestBrokenTransferIsNotStored(t *testing.T) {
	t.Parallel()
	h := startHostedAPI(t)
	_, p := h.startProxy()
	h.caching.Store(new("max-age=3600"))
	h.fileSize.Store(1 << 20) // small enough for the cache
	h.broken.Store(true)
	get := []string{"-s", "--path-as-is", "-o", "/dev/null", "https://release-assets.githubusercontent.com" + signedTarget}
	_, err := p.run("curl", get...)
	failIf(t, err == nil, "curl did not notice a broken download")
	h.broken.Store(false)
	before := h.reads.Load()
	for range 2 {
		p.mustRun("curl", get...)
	}
	want(t, "reads of the complete file", h.reads.Load()-before, 1)
}

// processMemory returns a field of the status of a process in bytes: VmRSS is the resident memory, VmHWM its maximum.
func processMemory(t *testing.T, pid int, field string) int64 {
	t.Helper()
	m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindStringSubmatch(readFile(t, fmt.Sprintf("/proc/%d/status", pid)))
	kb, err := strconv.ParseInt(m[1], 10, 64)
	must(t, err)
	return kb << 10
}
