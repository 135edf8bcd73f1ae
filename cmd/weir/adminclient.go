package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/credential"
)

// adminFlags say which gateway a command is about.
type adminFlags struct {
	Admin string            `default:"127.0.0.1:9090" help:"The gateway's admin listener: an address or a URL." placeholder:"ADDRESS"`
	Token credential.Secret `help:"Its token, where it asks for one. Better in WEIR_ADMIN_TOKEN, where no list of processes shows it." placeholder:"TOKEN"`

	CA          string `name:"ca" help:"PEM file of the authority of its certificate, where the system does not know it." placeholder:"FILE"`
	Certificate string `help:"PEM file of a client certificate, with --key, where it asks for one." placeholder:"FILE"`
	Key         string `help:"PEM file of its private key." placeholder:"FILE"`
}

// listener is the admin listener that is meant; close it.
func (c *adminFlags) listener(p *process) (a adminListener, closing func(), err error) {
	base, err := adminURL(c.Admin)
	if err != nil {
		return a, nil, &exit{exitUsage, "--admin: " + err.Error()}
	}
	token, err := c.token(p)
	if err != nil {
		return a, nil, &exit{exitUsage, err.Error()}
	}
	// The listener is near: no proxy has to see the token.
	secure, err := c.tls()
	if err != nil {
		return a, nil, &exit{exitUsage, err.Error()}
	}
	transport := &http.Transport{TLSClientConfig: secure}
	return adminListener{transport, base, token}, transport.CloseIdleConnections, nil
}

// tls reads the files that were given.
func (c *adminFlags) tls() (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		if secure.RootCAs = x509.NewCertPool(); !secure.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca: %s holds no PEM certificate", c.CA)
		}
	}
	if c.Certificate == "" && c.Key == "" {
		return secure, nil
	}
	pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, fmt.Errorf("--certificate and --key: %w", err)
	}
	secure.Certificates = []tls.Certificate{pair}
	return secure, nil
}

// tokenVariable is where the admin token stands in the environment.
const tokenVariable = "WEIR_ADMIN_TOKEN"

// token is the one given, or that of the environment.
func (c *adminFlags) token(p *process) (credential.Secret, error) {
	token := c.Token.Reveal()
	if fromEnv, ok := p.getenv(tokenVariable); ok && token == "" {
		token = fromEnv
	}
	token = strings.TrimSpace(token)
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the token holds a blank, a line break or another character that a token cannot have")
	}
	return credential.Secret(token), nil
}

// adminURL reads what stands for an admin listener: host:port, as in
// admin.listen, or a URL.
func adminURL(address string) (string, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && !strings.Contains(address, "/") && port != "" {
		address = "http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
	}
	if strings.Contains(address, "@") {
		return "", errors.New("holds a user name: the token goes into " + tokenVariable + ", or --token")
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: write host:port, or a URL such as http://127.0.0.1:9090", address)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// adminListener is the admin listener of a gateway.
type adminListener struct {
	transport http.RoundTripper
	base      string // URL without a slash at its end
	token     credential.Secret
}

// adminPatience bounds one question.
const adminPatience = 5 * time.Second

// ask makes one request, and returns a good answer and when it was made, by the
// gateway's clock. What goes wrong is told so that the reader knows what to do
// about it.
func (a *adminListener) ask(ctx context.Context, method, path string, body []byte) (text []byte, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, at, err
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token.Reveal())
	}
	resp, err := a.transport.RoundTrip(req) // no redirect takes the token elsewhere
	if err != nil {
		return nil, at, a.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }() // read already
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
	if err != nil {
		return nil, at, a.unreachable(err)
	}
	if at, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		at = time.Now()
	}
	return text, at, a.understand(resp, path, text)
}

// understand says what it is that answers, if it is no answer.
func (a *adminListener) understand(resp *http.Response, path string, text []byte) error {
	line, _, _ := strings.Cut(string(text), "\n")
	switch {
	case resp.Header.Get("Weir-Request-Id") != "":
		return fmt.Errorf("%s is where the gateway answers its clients; the admin listener has an address of its own, in the configuration at admin.listen", a.base)
	case resp.StatusCode == http.StatusUnauthorized && a.token == "":
		return fmt.Errorf("%s asks for the admin token: set %s, or give --token", a.base, tokenVariable)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s does not take this token; it stands in the gateway's configuration at admin.token", a.base)
	case resp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%s answers %d: %s", a.base, resp.StatusCode, bounded(line, 300))
	case resp.StatusCode == http.StatusBadRequest:
		return errors.New(bounded(line, 300))
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s: %s", a.base, bounded(line, 300))
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s is not the admin listener of a Weir: it answers %d to %s", a.base, resp.StatusCode, path)
	}
	return nil
}

// unreachable says why there was no answer.
func (a *adminListener) unreachable(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses the connection: is the gateway running, and is this its admin address (--admin)?", a.base)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer within %s", a.base, adminPatience)
	}
	return fmt.Errorf("%s does not answer: %s", a.base, printable(err.Error()))
}
