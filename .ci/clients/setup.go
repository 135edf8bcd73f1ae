package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// setup is the environment of one scenario: a service, a gateway, and a recorder between the
// client and the gateway.
type setup struct {
	dir      string
	ca       string // file of the CA certificate
	service  string // URL on an address that clients never see
	address  string // of the recorder
	recorder *recorder
	stops    []func()
}

// limits are small, so that a scenario reaches them. Their windows are short, so that a scenario can wait for the
// reset. The refusal status is the status of configs/github.yaml.
const limits = `
limits:
  wait: 1s
  cold_start: trust
  refusal_status: 403
  inbound: {rate: 0}
  search: {authenticated: 4, window: 15s}
  content: [{max: 2, window: 15s}]
`

func newSetup(ctx context.Context, name string, ca *testservers.CA) (p *setup, err error) {
	p = &setup{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.dir, err = os.MkdirTemp("", "clients"); err != nil {
		return p, err
	}
	p.ca = filepath.Join(p.dir, "ca.pem")
	if err := errors.Join(ca.Write(p.ca), ca.Issue(p.dir)); err != nil {
		return p, err
	}
	settings := filepath.Join(p.dir, "service.yaml")
	if err := os.WriteFile(settings, []byte("upstream: {dialect: github}"+limits), 0o600); err != nil {
		return p, err
	}
	service, err := p.start(ctx, name+".service.log", `address=(\S+)`, "service", "--listen", "127.0.0.2:0", "--config", settings)
	if err != nil {
		return p, err
	}
	p.service = "http://" + service
	settings = filepath.Join(p.dir, "weir.yaml")
	text := fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nupstream: {url: %q, dialect: github}\ntls: {certificates: [{certificate: tls.crt, key: tls.key}]}%s", p.service, limits)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		return p, err
	}
	gateway, err := p.start(ctx, name+".gateway.log", `msg="gateway started" address=(\S+)`, "serve", "--config", settings)
	if err != nil {
		return p, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(p.dir, "tls.crt"), filepath.Join(p.dir, "tls.key"))
	if err != nil {
		return p, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	p.recorder, err = newRecorder(gateway, roots, pair)
	if err != nil {
		return p, err
	}
	p.stops = append(p.stops, p.recorder.close)
	p.address = p.recorder.address
	return p, nil
}

// start starts bin/weir, stores its log, and waits for the line with its address.
func (p *setup) start(ctx context.Context, log, pattern string, args ...string) (address string, err error) {
	file, err := os.Create(filepath.Join(out, log))
	if err != nil {
		return "", err
	}
	process := exec.CommandContext(ctx, "bin/weir", args...)
	r, w := io.Pipe()
	process.Stdout, process.Stderr = w, w // os/exec serializes writes to one writer
	if err := process.Start(); err != nil {
		return "", errors.Join(err, file.Close())
	}
	p.stops = append(p.stops, func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait() // the exit code does not matter
		_ = w.Close()
	})
	found, expression := make(chan string, 1), regexp.MustCompile(pattern)
	go func() {
		defer func() { _ = file.Close() }()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			_, _ = fmt.Fprintln(file, lines.Text())
			if m := expression.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case found <- m[1]:
				default:
				}
			}
		}
	}()
	select {
	case address := <-found:
		return address, nil
	case <-time.After(time.Minute):
		return "", fmt.Errorf("weir %s did not start within a minute: see %s", args[0], log)
	}
}

// checkLimits returns an error if the service reports a broken limit.
func (p *setup) checkLimits(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.service+"/_service/violations", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var seen struct {
		Violations       int            `json:"violations"`
		SentWhileLimited int            `json:"sent_while_limited"`
		Answered         map[string]int `json:"answered"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&seen); err != nil {
		return err
	}
	if seen.Violations+seen.SentWhileLimited > 0 || seen.Answered["core"] == 0 {
		return fmt.Errorf("the service reports %+v", seen)
	}
	return nil
}

// close stops all processes in reverse order.
func (p *setup) close() {
	for len(p.stops) > 0 {
		last := len(p.stops) - 1
		p.stops[last]()
		p.stops = p.stops[:last]
	}
	if strings.Contains(p.dir, "clients") {
		_ = os.RemoveAll(p.dir)
	}
}
