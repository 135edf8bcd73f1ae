// Package deploy checks what the folder deploy holds and what make release makes: each
// artefact by the tool that people read it with, and what it says of Weir by the real
// binary, started as the artefact starts it.
//
// It needs bin/weir and bin/helm (make deploy-check builds them), promtool, redis-server
// and systemd-analyze. Nothing but loopback is reached.
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

// root is the checkout.
const root = "../.."

const adminToken = "an-admin-token-of-the-test"

// text reads a file of the checkout.
func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tool runs a program that must have no complaint, and returns what it prints.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out.String(), problems.String())
	}
	return out.String()
}

// weir is the binary.
func weir(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "/bin/weir")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// running is a gateway that runs until the test ends.
type running struct {
	*testing.T
	gateway, admin string // URLs
	config         string // its file
}

// run starts the binary with a configuration of an artefact's, which finds its secrets in
// a folder of the test's in the place of another, at addresses that are free.
func run(t *testing.T, config, secrets string, held map[string]string, env ...string) *running {
	t.Helper()
	folder := t.TempDir()
	for name, value := range held {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &running{T: t, config: filepath.Join(folder, "weir.yaml")}
	if err := os.WriteFile(r.config, []byte(strings.ReplaceAll(config, secrets+"/", folder+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(weir(t), "serve", "--config", r.config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
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
	var said strings.Builder
	for r.gateway == "" || r.admin == "" {
		if !lines.Scan() {
			t.Fatalf("it does not start:\n%s\n%s", said.String(), config)
		}
		said.WriteString(lines.Text() + "\n")
		if m := regexp.MustCompile(`msg="(gateway|admin listener) started" address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil && m[1] == "gateway" {
			r.gateway = "http://" + m[2]
		} else if m != nil {
			r.admin = "http://" + m[2]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
	return r
}

// asks sends a GET and returns the status and the body.
func (r *running) asks(url string, fields ...string) (int, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// operated holds the admin listener against what Prometheus and probes ask of it.
func (r *running) operated(host string) {
	r.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := r.asks(r.admin+path, "Host: 10.1.2.3:9090"); status != http.StatusOK {
			r.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := r.asks(r.admin+"/metrics", "Host: "+host); status != http.StatusUnauthorized {
		r.Errorf("/metrics without the token: %d", status)
	}
	status, body := r.asks(r.admin+"/metrics", "Host: "+host, "Authorization: Bearer "+adminToken)
	if status != http.StatusOK || !strings.Contains(body, "weir_store_up 1") && !strings.Contains(body, "weir_store_up{") {
		r.Errorf("/metrics of %s: %d %.300s", host, status, body)
	}
}

// redis starts a server, and returns its URL.
func redis(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	_ = l.Close()
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil { // until it answers
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return "redis://" + address + "/0"
		}
	}
	t.Fatal("Redis does not start")
	return ""
}

// into reads YAML into a value that has a place for each of its keys.
func into(t *testing.T, path string, v any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text(t, path)))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
