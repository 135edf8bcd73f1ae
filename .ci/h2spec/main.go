// Command h2spec H2SPEC WEIR runs the HTTP/2 conformance tests of the program H2SPEC over TLS. It tests the program
// WEIR, and a plain net/http server with the same certificate. It fails if a case fails with WEIR in every run and
// passes with the plain server.
package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: h2spec H2SPEC WEIR")
		os.Exit(2)
	}
	if err := compare(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(1)
	}
}

// runs is the number of attempts for failed cases, because some cases depend on timing.
const runs = 3

func compare(h2spec, weir string) error {
	dir, err := os.MkdirTemp("", "h2spec")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ca, err := testservers.NewCA()
	if err != nil {
		return err
	}
	if err := ca.Issue(dir); err != nil {
		return err
	}
	plain, err := startPlain(dir)
	if err != nil {
		return err
	}
	gateway, stop, err := startWeir(dir, weir)
	if err != nil {
		return err
	}
	defer stop()

	var worse map[string]string
	for run := 1; run <= runs && (run == 1 || len(worse) > 0); run++ {
		total, excused, err := failures(dir, h2spec, plain)
		if err != nil {
			return fmt.Errorf("against net/http: %w", err)
		}
		_, failed, err := failures(dir, h2spec, gateway)
		if err != nil {
			return fmt.Errorf("against weir: %w", err)
		}
		fmt.Printf("run %d: %d cases; %d fail with net/http, %d with weir\n", run, total, len(excused), len(failed))
		for _, name := range slices.Sorted(maps.Keys(failed)) {
			fmt.Printf("  %s\n", name)
		}
		maps.DeleteFunc(failed, func(name, _ string) bool { return excused[name] != "" || run > 1 && worse[name] == "" })
		worse = failed
	}
	for name, why := range worse {
		fmt.Printf("fails with weir only: %s\n%s\n", name, why)
	}
	if len(worse) > 0 {
		return fmt.Errorf("%d cases fail with weir only", len(worse))
	}
	fmt.Println("no case fails with weir only")
	return nil
}

// failures runs all cases against a port. It returns the number of cases, and the failed cases with their reasons.
func failures(dir, h2spec, port string) (total int, failed map[string]string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	report := filepath.Join(dir, "report.xml")
	_ = os.Remove(report)
	// The exit status is an error if a case fails. The report names the case.
	output, ran := exec.CommandContext(ctx, h2spec, "--tls", "--insecure", "--host", "127.0.0.1", "--port", port, "--path", "/user", "--junit-report", report).CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		return 0, nil, errors.Join(err, ran, errors.New(string(output)))
	}
	var suites struct {
		Suites []struct {
			Package string `xml:"package,attr"`
			Cases   []struct {
				Name    string `xml:"classname,attr"`
				Failure string `xml:"failure"`
				Error   string `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		return 0, nil, err
	}
	failed = map[string]string{}
	for _, s := range suites.Suites {
		for _, c := range s.Cases {
			total++
			if why := strings.TrimSpace(c.Failure + c.Error); why != "" {
				failed[s.Package+": "+c.Name] = why
			}
		}
	}
	if total < 100 {
		return 0, nil, fmt.Errorf("only %d cases ran: %w", total, ran)
	}
	return total, failed, nil
}

// startPlain starts a plain net/http server and returns its port.
func startPlain(dir string) (port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: http.HandlerFunc(api), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.ServeTLS(l, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")) }() // ends with the process
	return portOf(l), nil
}

// api is the handler of the upstream and of the plain server.
func api(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"login":"octo","name":"`+strings.Repeat("o", 1000)+`"}`)
}

func portOf(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// startWeir starts the gateway with limits that no case reaches.
func startWeir(dir, weir string) (port string, stop func(), err error) {
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		_ = (&http.Server{Handler: http.HandlerFunc(api), ReadHeaderTimeout: time.Minute}).Serve(upstream)
	}()
	address, err := testservers.FindAddress()
	if err != nil {
		return "", nil, err
	}
	_, port, _ = net.SplitHostPort(address)
	config := filepath.Join(dir, "weir.yaml")
	text := fmt.Sprintf(`listen: %q
admin: {listen: "127.0.0.1:0"}
upstream: {url: "http://%s"}
limits:
  cold_start: trust
  inbound: {rate: 0}
  primary: {unauthenticated: 1000000}
  points: {rest: 1000000}
  content: [{max: 1000000, window: 1m}]
tls: {certificates: [{certificate: tls.crt, key: tls.key}]}
`, address, upstream.Addr())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	var stderr bytes.Buffer
	process := exec.Command(weir, "serve", "--config", config)
	process.Stderr = &stderr
	if err := process.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	}
	for range 100 {
		if c, err := net.Dial("tcp", address); err == nil {
			return port, stop, c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("start weir: no connection: %s", &stderr)
}
