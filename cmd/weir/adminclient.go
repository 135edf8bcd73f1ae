package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
)

// adminFlags select the gateway that a command connects to.
type adminFlags struct {
	Admin string            `default:"127.0.0.1:9090" help:"Admin listener of the gateway: an address or a URL." placeholder:"ADDRESS"`
	Token credential.Secret `help:"Admin token. Prefer WEIR_ADMIN_TOKEN: process lists show command lines." placeholder:"TOKEN"`

	CA          string `name:"ca" help:"PEM file with the CA of the listener's certificate, if the system does not trust it." placeholder:"FILE"`
	Certificate string `help:"PEM file with a client certificate, if the listener requires one. Needs --key." placeholder:"FILE"`
	Key         string `help:"PEM file with the private key of the client certificate." placeholder:"FILE"`
}

// tokenVariable names the environment variable with the admin token.
const tokenVariable = "WEIR_ADMIN_TOKEN"

// adminClient calls the admin listener of a gateway.
type adminClient struct {
	transport http.RoundTripper
	base      string // URL without a trailing slash
	token     credential.Secret
}

// client returns a client for the listener that the flags select.
func (c *adminFlags) client(p *process) (*adminClient, error) {
	base, err := listenerURL(c.Admin)
	if err != nil {
		return nil, &exit{exitUsage, "--admin: " + err.Error()}
	}
	token := strings.TrimSpace(c.Token.Reveal())
	if token == "" {
		token, _ = p.getenv(tokenVariable)
		token = strings.TrimSpace(token)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, &exit{exitUsage, "admin token: contains a space, a line break or a character outside ASCII"}
	}
	settings, err := c.tls()
	if err != nil {
		return nil, &exit{exitUsage, err.Error()}
	}
	// The transport ignores proxies in the environment, because a proxy would see the token.
	return &adminClient{&http.Transport{TLSClientConfig: settings}, base, credential.Secret(token)}, nil
}

// tls reads the files that the flags name.
func (c *adminFlags) tls() (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w%s", err, config.FileRemedy(err))
		}
		if settings.RootCAs = x509.NewCertPool(); !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca: %s contains no PEM certificate", c.CA)
		}
	}
	switch {
	case c.Certificate == "" && c.Key == "":
	case c.Certificate == "":
		return nil, errors.New("--certificate: required with --key")
	case c.Key == "":
		return nil, errors.New("--key: required with --certificate")
	default:
		pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		if err != nil {
			return nil, fmt.Errorf("--certificate: %w%s", err, config.FileRemedy(err))
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return settings, nil
}

// listenerURL returns the URL of a listener. The address is host:port, as in listen and admin.listen, or a URL.
func listenerURL(address string) (string, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && !strings.Contains(address, "/") && port != "" {
		address = "http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
	}
	if strings.Contains(address, "@") {
		return "", errors.New("contains a user name: set " + tokenVariable + ", or give --token")
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: write host:port, or a URL such as http://127.0.0.1:9090", address)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

const (
	callTimeout      = 5 * time.Second // for one call
	maxAdminResponse = 64 << 20
)

// call sends one request, and returns the body and the Date of a 200 response. If value is not nil, call decodes the
// body as JSON into value. Redirects are not followed, because the token would be sent to their target.
func (a *adminClient) call(ctx context.Context, method, path string, body []byte, value any) (text []byte, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := a.send(ctx, method, path, body, nil)
	if err != nil {
		return nil, at, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxAdminResponse))
	if err != nil {
		return nil, at, a.connectionError(err)
	}
	if at, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		at = time.Now()
	}
	err = a.checkResponse(resp, path, text)
	if err == nil && value != nil && json.Unmarshal(text, value) != nil {
		err = a.unexpectedContent(path)
	}
	return text, at, err
}

// send sends one request and returns its response with any status.
func (a *adminClient) send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token.Reveal())
	}
	resp, err := a.transport.RoundTrip(req)
	if err != nil {
		return nil, a.connectionError(cmp.Or(context.Cause(ctx), err))
	}
	return resp, nil
}

// checkResponse returns an error unless the response is a 200 of an admin listener.
func (a *adminClient) checkResponse(resp *http.Response, path string, text []byte) error {
	line, _, _ := strings.Cut(string(text), "\n")
	line = printable(line, 300)
	switch {
	case resp.Header.Get("Weir-Request-Id") != "":
		return fmt.Errorf("%s is the gateway's listener for clients: use the address in admin.listen of the configuration", a.base)
	case resp.StatusCode == http.StatusUnauthorized && a.token == "":
		return fmt.Errorf("%s requires the admin token: set %s, or give --token", a.base, tokenVariable)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s rejected the token: use the value of admin.token in the gateway's configuration", a.base)
	case resp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%s answered %d: %s", a.base, resp.StatusCode, line)
	case resp.StatusCode == http.StatusBadRequest:
		return errors.New(line)
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%s: %s", a.base, line)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s is not the admin listener of a Weir: it answered %d to %s", a.base, resp.StatusCode, path)
	}
	return nil
}

func (a *adminClient) unexpectedContent(path string) error {
	return fmt.Errorf("%s is not the admin listener of a Weir: its response to %s has an unexpected content", a.base, path)
}

func (a *adminClient) connectionError(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refused the connection; start the gateway, or give its admin listener with --admin", a.base)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer within %s", a.base, callTimeout)
	}
	return fmt.Errorf("%s did not answer: %s", a.base, printable(err.Error(), 300))
}

// healthCommand is the health check of an image that has no shell.
type healthCommand struct {
	adminFlags
}

// Run prints "ready", or fails.
func (c *healthCommand) Run(p *process) error {
	a, err := c.client(p)
	if err != nil {
		return err
	}
	text, _, err := a.call(p.ctx, http.MethodGet, "/readyz", nil, nil)
	if err != nil {
		return err
	}
	if string(text) != "ok\n" {
		return a.unexpectedContent("/readyz")
	}
	p.printf("ready\n")
	return nil
}

type accountCommand struct {
	Open openCommand `cmd:"" help:"Let a closed account send a request again, or end its cool-down or its exhausted windows."`
}

type openCommand struct {
	adminFlags
	Account string `arg:"" help:"Name of the account, as in weir budget."`
}

// Run opens a closed account, and ends a cool-down and exhausted windows.
func (c *openCommand) Run(p *process) error {
	a, err := c.client(p)
	if err != nil {
		return err
	}
	body, err := json.Marshal(admin.Open{Account: c.Account})
	if err != nil {
		return err
	}
	if _, _, err := a.call(p.ctx, http.MethodPost, "/api/v1/accounts/open", body, nil); err != nil {
		return err
	}
	p.printf("%s is open; its next request is a probe\n", c.Account)
	return nil
}

type cacheCommand struct {
	Purge purgeCommand `cmd:"" help:"Mark responses as stale, or remove them."`
}

type purgeCommand struct {
	adminFlags
	Tag  string `xor:"target" help:"All responses with a tag: op:ID, repo:OWNER/NAME, repo:OWNER/NAME/issues, org:ORG, user:NAME, account:NAME." placeholder:"TAG"`
	URL  string `name:"url" xor:"target" help:"All responses of one URL, with any query." placeholder:"URL"`
	Hard bool   `help:"Remove the responses. Without it they are revalidated before their next use."`
}

// Run purges entries, and prints the number of affected entries in the memory of this replica.
func (c *purgeCommand) Run(p *process) error {
	if c.Tag == "" && c.URL == "" {
		return &exit{exitUsage, "--tag or --url: required"}
	}
	a, err := c.client(p)
	if err != nil {
		return err
	}
	body, err := json.Marshal(admin.Purge{Tag: c.Tag, URL: c.URL, Hard: c.Hard})
	if err != nil {
		return err
	}
	var result struct{ Entries int }
	if _, _, err := a.call(p.ctx, http.MethodPost, "/api/v1/cache/purge", body, &result); err != nil {
		return err
	}
	entries := fmt.Sprintf("%d entries", result.Entries)
	if result.Entries == 1 {
		entries = "1 entry"
	}
	if c.Hard {
		p.printf("%s removed\n", entries)
	} else {
		p.printf("%s will be revalidated before the next use\n", entries)
	}
	return nil
}
