// Package deploy tests the files in the folder deploy and the output of make release. Each file is checked with its own
// tool, such as helm or promtool. Each configuration of Weir is checked by a start of the binary.
//
// The tests need bin/weir and bin/helm (make deploy-check builds both), promtool, redis-server and systemd-analyze. The
// tests use only loopback addresses.
package deploy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"
)

// root is the path of the checkout.
const root = "../.."

const adminToken = "admin-token-of-the-test"

// must ends the test if an operation has failed.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// failIf fails the test if a condition holds.
func failIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// stopIf ends the test if a condition holds.
func stopIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// readFile returns the content of a file of the checkout.
func readFile(t *testing.T, path string) string {
	t.Helper()
	return string(readBytes(t, filepath.Join(root, path)))
}

// readBytes returns the content of a file.
func readBytes(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

// writeFile writes a file into a folder, and returns its path.
func writeFile(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}

// runTool runs a program and returns its standard output. The program must succeed.
func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	stopIf(t, err != nil, "%s %v: %v\n%s%s", name, args, err, out.String(), problems.String())
	return out.String()
}

// weirBinary returns the absolute path of bin/weir.
func weirBinary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "/bin/weir")
	must(t, err)
	return path
}

// gateway is a process that runs until the test ends.
type gateway struct {
	*testing.T
	url, admin string
	config     string // path of the configuration file
}

// startGateway starts the binary with a configuration, on free ports. The configuration reads its secrets from the
// folder secretsFolder. The test replaces that folder by a temporary folder.
func startGateway(t *testing.T, config, secretsFolder string, secrets map[string]string, env ...string) *gateway {
	t.Helper()
	folder := t.TempDir()
	for name, value := range secrets {
		writeFile(t, folder, name, value+"\n")
	}
	config = strings.NewReplacer(secretsFolder+"/", folder+"/", "delay: 5s", "delay: 0s").Replace(config) // no client waits for the drain
	g := &gateway{T: t, config: writeFile(t, folder, "weir.yaml", config)}
	cmd := exec.Command(weirBinary(t), "serve", "--config", g.config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, log)
		err := cmd.Wait()
		failIf(t, err != nil, "weir: %v", err)
	})
	lines := bufio.NewScanner(log)
	var output strings.Builder
	for g.url == "" || g.admin == "" {
		stopIf(t, !lines.Scan(), "the gateway does not start:\n%s\n%s", output.String(), config)
		output.WriteString(lines.Text() + "\n")
		if m := regexp.MustCompile(`msg="(gateway|admin listener) started" address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil && m[1] == "gateway" {
			g.url = "http://" + m[2]
		} else if m != nil {
			g.admin = "http://" + m[2]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
	return g
}

// get sends a GET request and returns the status and the body.
func (g *gateway) get(url string, fields ...string) (int, string) {
	g.Helper()
	req, err := http.NewRequestWithContext(g.Context(), http.MethodGet, url, nil)
	must(g, err)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
	}
	resp, err := http.DefaultClient.Do(req)
	must(g, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	must(g, err)
	return resp.StatusCode, string(body)
}

// want sends a GET request, and compares the status and a part of the body.
func (g *gateway) want(status int, part, url string, fields ...string) {
	g.Helper()
	got, body := g.get(url, fields...)
	failIf(g, got != status || !strings.Contains(body, part), "%s %q: got status %d, want %d and %q in: %.300s", url, fields, got, status, part, body)
}

// checkAdmin checks the responses of the admin listener to probes and to Prometheus.
func (g *gateway) checkAdmin(host string) {
	g.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		g.want(http.StatusOK, "", g.admin+path, "Host: 10.1.2.3:9090")
	}
	g.want(http.StatusUnauthorized, "", g.admin+"/metrics", "Host: "+host)
	g.want(http.StatusOK, "\nweir_store_up 1\n", g.admin+"/metrics", "Host: "+host, "Authorization: Bearer "+adminToken)
}

// startRedis starts a server and returns its URL.
func startRedis(t *testing.T) string { return "redis://" + startRedisServer(t) + "/0" }

// startRedisServer starts redis-server with further arguments, and returns its address.
func startRedisServer(t *testing.T, args ...string) string {
	t.Helper()
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.Command("redis-server", append(args, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())...)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "redis-server accepts connections", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return address
}

// freeAddress returns a loopback address on which no process listens. The port is below the ephemeral ports of Linux, so that no
// outgoing connection can use it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(5_000)))
		if err == nil {
			must(t, l.Close())
			return l.Addr().String()
		}
	}
	t.Fatal("1000 ports are in use")
	return ""
}

func eventually(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		stopIf(t, time.Now().After(end), "condition not reached within a minute: %s", condition)
	}
}

// decodeYAML decodes a YAML file. An unknown key is an error.
func decodeYAML(t *testing.T, path string, v any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(readFile(t, path)))
	d.KnownFields(true)
	err := d.Decode(v)
	stopIf(t, err != nil, "%s: %v", path, err)
}
