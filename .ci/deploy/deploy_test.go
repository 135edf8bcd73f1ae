// Package deploy tests the files in the folder deploy and the output of make release. Each file is checked with its own
// tool, such as helm or promtool. Each configuration of Weir is checked by a start of the binary.
//
// The tests need bin/weir and bin/helm (make deploy-check builds both), promtool, redis-server and systemd-analyze. The
// tests use only loopback addresses.
package deploy

import (
	"bufio"
	"bytes"
	"context"
	"io"
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

// readFile returns the content of a file of the checkout.
func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// runTool runs a program and returns its standard output. The program must succeed.
func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out.String(), problems.String())
	}
	return out.String()
}

// weirBinary returns the absolute path of bin/weir.
func weirBinary(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "/bin/weir")
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(filepath.Join(folder, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &gateway{T: t, config: filepath.Join(folder, "weir.yaml")}
	if err := os.WriteFile(g.config, []byte(strings.ReplaceAll(config, secretsFolder+"/", folder+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(weirBinary(t), "serve", "--config", g.config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, log)
		if err := cmd.Wait(); err != nil {
			t.Errorf("weir: %v", err)
		}
	})
	lines := bufio.NewScanner(log)
	var output strings.Builder
	for g.url == "" || g.admin == "" {
		if !lines.Scan() {
			t.Fatalf("the gateway does not start:\n%s\n%s", output.String(), config)
		}
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
	if err != nil {
		g.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// checkAdmin checks the responses of the admin listener to probes and to Prometheus.
func (g *gateway) checkAdmin(host string) {
	g.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := g.get(g.admin+path, "Host: 10.1.2.3:9090"); status != http.StatusOK {
			g.Errorf("%s: status %d: %s", path, status, body)
		}
	}
	if status, _ := g.get(g.admin+"/metrics", "Host: "+host); status != http.StatusUnauthorized {
		g.Errorf("/metrics without the token: status %d, want 401", status)
	}
	status, body := g.get(g.admin+"/metrics", "Host: "+host, "Authorization: Bearer "+adminToken)
	if status != http.StatusOK || !strings.Contains(body, "weir_store_up 1") && !strings.Contains(body, "weir_store_up{") {
		g.Errorf("/metrics with Host %s: status %d: %.300s", host, status, body)
	}
}

// startRedis starts a server and returns its URL.
func startRedis(t *testing.T) string { return "redis://" + startRedisServer(t) + "/0" }

// startRedisServer starts redis-server with further arguments, and returns its address.
func startRedisServer(t *testing.T, args ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	_ = l.Close()
	cmd := exec.Command("redis-server", append(args, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return address
		}
	}
	t.Fatal("redis-server did not start within a minute")
	return ""
}

// decodeYAML decodes a YAML file. An unknown key is an error.
func decodeYAML(t *testing.T, path string, v any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(readFile(t, path)))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
