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

// place is where one scenario runs: a service, a gateway before it, and a tap on the
// wire between the gateway and the client.
type place struct {
	dir     string
	ca      string // the file of its certificate
	service string // its URL, on an address that no client has a reason to know
	address string // of the tap, which is the gateway to the client
	tap     *tap
	stops   []func()
}

// limits are so small that a scenario meets them, and small in time, so that it can wait
// for their end. Refusals are as in configs/github.yaml.
const limits = `
limits:
  wait: 1s
  cold_start: trust
  refusal_status: 403
  inbound: {rate: 0}
  search: {authenticated: 4, window: 15s}
  content: [{max: 2, window: 15s}]
`

func newPlace(ctx context.Context, name string, ca *testservers.CA) (p *place, err error) {
	p = &place{}
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
	p.tap, err = newTap(gateway, roots, pair)
	if err != nil {
		return p, err
	}
	p.stops = append(p.stops, p.tap.close)
	p.address = p.tap.address
	return p, nil
}

// start starts bin/weir, whose log is kept, and waits for the line that tells its address.
func (p *place) start(ctx context.Context, log, pattern string, args ...string) (address string, err error) {
	file, err := os.Create(filepath.Join(out, log))
	if err != nil {
		return "", err
	}
	process := exec.CommandContext(ctx, "bin/weir", args...)
	r, w := io.Pipe()
	process.Stdout, process.Stderr = w, w // one writer, so one goroutine
	if err := process.Start(); err != nil {
		return "", errors.Join(err, file.Close())
	}
	p.stops = append(p.stops, func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait() // how it ends is no matter here
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
		return "", fmt.Errorf("weir %s does not answer: see %s", args[0], log)
	}
}

// unharmed asks the service whether any limit was broken.
func (p *place) unharmed(ctx context.Context) error {
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
		return fmt.Errorf("the API was sent %+v", seen)
	}
	return nil
}

// close ends all, the last first.
func (p *place) close() {
	for len(p.stops) > 0 {
		last := len(p.stops) - 1
		p.stops[last]()
		p.stops = p.stops[:last]
	}
	if strings.Contains(p.dir, "clients") {
		_ = os.RemoveAll(p.dir)
	}
}
