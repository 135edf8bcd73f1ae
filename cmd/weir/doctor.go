package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/names"
)

type doctorCommand struct {
	File string `arg:"" help:"Configuration file."`
	URL  string `name:"url" help:"Public URL of the running gateway, to check the delivery of webhooks." placeholder:"URL"`
	JSON bool   `name:"json" help:"Print one JSON array with all checks."`
}

// Results of a check.
const (
	checkOK      = "ok"
	checkWarning = "warning"
	checkFailed  = "failed"
	checkSkipped = "skipped"
)

// checkup is the result of one check.
type checkup struct {
	Name   string `json:"name"`   // the subject of the check, such as "credential ci"
	Result string `json:"result"` // ok, warning, failed or skipped
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // with a link to the documents
}

const (
	doctorTimeout = 10 * time.Second // for each check
	// The upstream may not know a new installation token for some seconds, so a refused request is repeated.
	newTokenTries, newTokenPause = 6, time.Second
	// maxClockOffset is the largest offset of the clock that causes no visible error of reset times. Above
	// failedClockOffset the upstream may refuse an app, whose assertions tolerate a minute.
	maxClockOffset, failedClockOffset = 2 * time.Second, 30 * time.Second
)

// Run checks the dependencies of the configuration, and prints one line for each check, with a remedy for each problem. It
// fails if a check fails. The requests to the upstream cost no quota.
func (c *doctorCommand) Run(p *process) error {
	// The checks print the URL, and errors of its parser contain it.
	if u, err := url.Parse(c.URL); err != nil || u.User != nil {
		return &exit{exitUsage, "--url: must be a valid URL without a user name and a password, such as https://weir.example.com"}
	}
	file, problems, err := readConfig(p, c.File)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return invalid(p.messages(c.JSON), c.File, problems, ": correct the configuration first")
	}
	out := &egress{}
	out.configure(file.Config.Upstream)
	upstream := file.Config.Upstream
	d := &doctor{cfg: file.Config, base: upstream.Base(), dialect: upstream.MustDialect(), transport: throughProxy{out.transport()}}
	defer d.transport.CloseIdleConnections()
	if !c.JSON {
		d.print = func(found checkup) {
			p.printf("%-8s %s: %s\n", found.Result, found.Name, printable(found.Found, 400))
			if found.Remedy != "" {
				p.printf("         to do: %s\n", found.Remedy)
			}
		}
	}
	d.checkConfiguration(c.File, file)
	if found, remedy := d.cfg.Bypass(); found != "" {
		d.report("URLs in responses", checkWarning, found, remedy)
	}
	if found, remedy := d.cfg.DialectMismatch(); found != "" {
		d.report("dialect", checkWarning, found, remedy)
	}
	d.checkEgress(p.ctx)
	d.checkUpstream(p.ctx)
	d.checkNames(p.ctx)
	d.checkCredentials(p.ctx)
	d.checkRedis(p.ctx)
	d.checkCertificates()
	d.checkWebhooks(p.ctx, c.URL)
	for _, found := range endingVersions(p.ctx, p, d.cfg) {
		d.report("version of the API", checkWarning, found, "update the client, or let it send a newer "+d.dialect.VersionHeader)
	}
	if c.JSON {
		if err := printJSON(p, d.found); err != nil {
			return err
		}
	}
	failed := 0
	for _, found := range d.found {
		if found.Result == checkFailed {
			failed++
		}
	}
	if failed > 0 {
		return &exit{exitFailure, fmt.Sprintf("%s: %s failed", c.File, count(failed, "check"))}
	}
	return nil
}

// doctor runs the checks of one configuration.
type doctor struct {
	cfg       *config.Config
	base      *url.URL // of the upstream
	dialect   *policy.Dialect
	transport throughProxy
	print     func(checkup) // called for each result; nil for none
	found     []checkup
}

// report adds a result. remedy is empty, or names an action and the document that explains the action.
func (d *doctor) report(name, result, found, remedy string) {
	c := checkup{name, result, found, remedy}
	d.found = append(d.found, c)
	if d.print != nil {
		d.print(c)
	}
}

// checkConfiguration reports the risks that weir audit lists.
func (d *doctor) checkConfiguration(path string, file config.AuditedFile) {
	risks := config.Assess(file)
	if slices.ContainsFunc(risks, func(r config.Finding) bool { return r.Grade == config.High }) {
		d.report("configuration", checkWarning, "valid, but it has a high security risk", "run weir audit "+path)
		return
	}
	d.report("configuration", checkOK, fmt.Sprintf("valid, with %s of medium or low grade", count(len(risks), "security risk")), "")
}

// upstreamAnswer is a response of the upstream.
type upstreamAnswer struct {
	status  int
	header  http.Header
	body    []byte
	elapsed time.Duration // until the header
}

// rateLimit is the path of the rate limit status, which costs no quota.
const rateLimit = "rate_limit"

// get requests a path below upstream.url.
func (d *doctor) get(ctx context.Context, path string, authorization credential.Secret) (s upstreamAnswer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base.JoinPath(path).String(), nil)
	if err != nil {
		return s, err
	}
	req.Header.Set("Accept", d.dialect.MediaType())
	req.Header.Set("User-Agent", "weir")
	if authorization != "" {
		req.Header.Set("Authorization", authorization.Reveal())
	}
	sent := time.Now()
	resp, err := d.transport.RoundTrip(req)
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	s = upstreamAnswer{status: resp.StatusCode, header: resp.Header, elapsed: time.Since(sent)}
	s.body, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return s, err
}

// checkEgress checks that the proxy of upstream.proxy passes requests to the upstream.
func (d *doctor) checkEgress(ctx context.Context) {
	const name, see = "egress proxy", "; see docs/configuration.md#use-an-egress-proxy"
	if d.cfg.Upstream.Proxy == "" {
		return
	}
	if used, err := d.cfg.Upstream.ProxyFor()(d.base); err != nil || used == nil {
		d.report(name, checkSkipped, "upstream.url is on loopback or in upstream.no_proxy", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	_, err := d.get(ctx, rateLimit, "")
	refusal, refused := errors.AsType[*egressRefusal](err)
	operation, _ := errors.AsType[*net.OpError](err)
	switch {
	case refused && refusal.status == http.StatusProxyAuthRequired:
		d.report(name, checkFailed, err.Error(), "correct the user name and the password in upstream.proxy"+see)
	case refused:
		d.report(name, checkFailed, err.Error(), "permit the host of upstream.url in the proxy"+see)
	case operation != nil && operation.Op == "proxyconnect":
		d.report(name, checkFailed, "no connection to the proxy: "+err.Error(), "correct the scheme, the host and the port in upstream.proxy"+see)
	case err != nil:
		d.report(name, checkFailed, "no response through the proxy: "+err.Error(), "check that the proxy reaches the host of upstream.url"+see)
	default:
		d.report(name, checkOK, "passes requests to "+d.base.Host, "")
	}
}

// checkUpstream checks that the API responds, and that the clock agrees with the Date of the response.
func (d *doctor) checkUpstream(ctx context.Context) {
	const section = "docs/operations.md#check-with-weir-doctor"
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	limits, err := d.get(ctx, rateLimit, "")
	if err != nil {
		d.report("upstream", checkFailed, err.Error(), "correct upstream.url, the name resolution, the firewall, or the trusted certificates of this machine; see "+section)
		return
	}
	switch status := limits.status; {
	case status == http.StatusNotFound && bool(d.cfg.Upstream.Limits):
		d.report("upstream", checkWarning, fmt.Sprintf("%s has no rate limit status", d.base.Redacted()),
			"complete the path, as in https://HOST/api/v3, or set upstream.limits: off for a server without rate limits; see "+section)
	case status >= 500 || status >= 300 && status < 400:
		d.report("upstream", checkFailed, fmt.Sprintf("%s returned %d %s", d.base.Redacted(), status, http.StatusText(status)),
			"set upstream.url to the base URL of the API; see "+section)
	default:
		d.report("upstream", checkOK, fmt.Sprintf("%s responds in %s, dialect %s", d.base.Redacted(), durations.Text(limits.elapsed), d.cfg.Upstream.Dialect), "")
	}
	if found, remedy := foreignDialect(d.cfg, limits.header); found != "" {
		d.report("dialect", checkWarning, found, remedy+"; see "+section)
	}
	date, err := http.ParseTime(limits.header.Get("Date"))
	if err != nil {
		d.report("clock", checkSkipped, "the upstream sent no valid Date", "")
		return
	}
	// The upstream truncates a Date to seconds, so the expected value is half a second later.
	offset := time.Now().Add(-limits.elapsed / 2).Sub(date.Add(500 * time.Millisecond)).Abs()
	found := fmt.Sprintf("differs from the upstream's clock by %s", durations.Text(offset))
	switch remedy := "synchronize the clock of this machine; see " + section; {
	case offset > failedClockOffset:
		d.report("clock", checkFailed, found, remedy)
	case offset > maxClockOffset:
		d.report("clock", checkWarning, found, remedy)
	default:
		d.report("clock", checkOK, found, "")
	}
}

// urlVariable matches a variable of a URL template (RFC 6570) whose value is a segment of the path.
var urlVariable = regexp.MustCompile(`\{[a-z_]+\}`)

// checkNames checks that the API names itself by upstream.url or by one of the aliases. The root of the API lists its URLs.
// The request is anonymous.
func (d *doctor) checkNames(ctx context.Context) {
	const name = "upstream names"
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	root, err := d.get(ctx, "/", "")
	var members map[string]any
	if err != nil || root.status != http.StatusOK || json.Unmarshal(root.body, &members) != nil {
		d.report(name, checkSkipped, "the upstream lists no URLs to anonymous requests; the log of the gateway warns of other names", "")
		return
	}
	own, catalogue := append(names.List{d.base}, d.cfg.AliasURLs()...), policy.CatalogueOf(d.cfg.Upstream.Dialect)
	for _, member := range slices.Sorted(maps.Keys(members)) {
		text, _ := members[member].(string)
		if u, err := url.Parse(urlVariable.ReplaceAllString(text, "x")); err == nil && own.Foreign(u, catalogue) {
			d.report(name, checkWarning, fmt.Sprintf("the upstream names itself %s://%s, so its URLs lead clients past the gateway with their keys", u.Scheme, u.Host),
				fmt.Sprintf("add %q to upstream.aliases if it is the API; see docs/configuration.md#name-the-upstream", u.Host))
			return
		}
	}
	d.report(name, checkOK, "the URLs of the upstream lead to the gateway", "")
}

// checkCredentials checks that the upstream accepts each credential, and that the form of each token fits its kind.
func (d *doctor) checkCredentials(ctx context.Context) {
	tokens := credential.NewAppTokens(d.transport, nil, slog.New(slog.DiscardHandler))
	defer tokens.Close()
	for _, held := range heldCredentials(tokens, d.cfg, d.base, d.dialect) {
		d.checkCredential(ctx, held)
	}
}

func (d *doctor) checkCredential(ctx context.Context, held credential.Held) {
	name := "credential " + held.Name
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	authorization, err := held.Authorization(ctx)
	if err != nil {
		d.report(name, checkFailed, err.Error(), "check app.id, app.key and app.installation, and the clock; see docs/configuration.md#use-an-app-instead-of-a-token")
		return
	}
	limits, err := d.get(ctx, rateLimit, authorization)
	for tries := 1; held.Source != nil && tries <= newTokenTries && err == nil && limits.status >= 400 && limits.status < 500; tries++ {
		select {
		case <-time.After(newTokenPause):
			limits, err = d.get(ctx, rateLimit, authorization)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	switch {
	case err != nil:
		d.report(name, checkFailed, err.Error(), "check the network between this machine and the upstream, and run weir doctor again")
		return
	case limits.status == http.StatusUnauthorized:
		d.report(name, checkFailed, "the upstream refuses the token with 401; it is wrong, revoked or expired",
			"create a token and replace the old one; see docs/operations.md#rotate-secrets")
		return
	case limits.status == http.StatusForbidden:
		d.report(name, checkFailed, "the upstream refuses the account with 403",
			"read the account's mail from the upstream, and check IP allow lists and single sign-on; see docs/operations.md#handle-a-ban")
		return
	case limits.status != http.StatusOK:
		d.report(name, checkSkipped, fmt.Sprintf("the upstream returned %d for its rate limit status", limits.status), "")
		return
	}
	found := "accepted"
	var status struct {
		Resources map[string]struct{ Limit, Remaining int } `json:"resources"`
	}
	if json.Unmarshal(limits.body, &status) == nil {
		core := status.Resources["core"]
		found += fmt.Sprintf("; %d of %d requests of core are left", core.Remaining, core.Limit)
	}
	if scopes := limits.header.Values("X-Oauth-Scopes"); scopes != nil { // only classic tokens have scopes
		found += "; scopes: " + cmp.Or(strings.Join(scopes, ", "), "none")
	}
	scheme, _, _ := strings.Cut(authorization.Reveal(), " ")
	kind := d.dialect.Kind(scheme, held.Token.Reveal())
	if held.Source == nil && kind != policy.User && kind != held.Kind.Base() {
		d.report(name, checkWarning, fmt.Sprintf("%s; the token looks like kind %s, not %s", found, kind, held.Kind),
			fmt.Sprintf("set kind: %s, so that Weir begins with the right limits; see docs/configuration.md#reference", kind))
		return
	}
	d.report(name, checkOK, found, "")
}

// checkRedis checks that Redis responds and evicts no key.
func (d *doctor) checkRedis(ctx context.Context) {
	const section = "docs/operations.md#size"
	if inMemory(d.cfg) {
		d.report("redis", checkSkipped, "store.url selects memory, so this gateway must be the only user of its tokens", "give no token to a second gateway, or set store.url to a Redis that both use; see "+section)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	client, err := redisclient.Open(d.cfg.Store.URL, nil)
	if err == nil {
		defer func() { _ = client.Close() }()
		began := time.Now()
		if err = client.Ping(ctx).Err(); err == nil {
			d.report("redis", checkOK, fmt.Sprintf("responds in %s", durations.Text(time.Since(began))), "")
		}
	}
	if err != nil {
		d.report("redis", checkFailed, err.Error(), "store.url: "+redisclient.Remedy(err)+"; see "+section)
		return
	}
	switch eviction, _, err := redisclient.Eviction(ctx, client); {
	case err != nil:
		d.report("redis eviction", checkSkipped, "this Redis does not permit INFO", "check that maxmemory-policy is noeviction; see "+section)
	case eviction != "noeviction":
		d.report("redis eviction", checkWarning, "maxmemory-policy is "+eviction+", so Redis may remove the accounts",
			"run redis-cli config set maxmemory-policy noeviction; see "+section)
	default:
		d.report("redis eviction", checkOK, "maxmemory-policy is noeviction", "")
	}
}

// checkCertificates checks the lives of the certificates in files. Certificates by ACME renew themselves.
func (d *doctor) checkCertificates() {
	now := time.Now()
	for _, f := range d.cfg.CertificateFiles() {
		name := "certificate " + f.Path
		if f.Key == "proxy.ca" {
			name = "authority of the proxy"
		}
		switch found := config.EndOf(f.Expires, now); {
		case !f.Expires.After(now):
			d.report(name, checkFailed, found, f.Remedy)
		case found != "":
			d.report(name, checkWarning, found, f.Remedy)
		default:
			d.report(name, checkOK, "expires on "+f.Expires.UTC().Format(time.DateOnly), "")
		}
	}
	if ca := d.cfg.Proxy.CA; d.cfg.Proxy.Listen != "" {
		if _, err := authority.Load(ca.Certificate, ca.Key); err != nil {
			d.report("authority of the proxy", checkFailed, err.Error(), "run weir ca init; see docs/proxy.md")
		}
	}
}

// checkWebhooks sends a signed ping to the receiver of webhooks at the public URL of the gateway.
func (d *doctor) checkWebhooks(ctx context.Context, public string) {
	const name, section = "webhooks", "docs/organization.md#6-add-webhooks"
	switch {
	case d.cfg.Webhooks.Secret == "":
		d.report(name, checkSkipped, "webhooks.secret is empty, so changes are found by revalidation only", "")
		return
	case public == "":
		d.report(name, checkSkipped, "no public URL given", "start the gateway and add --url URL")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	target := strings.TrimRight(public, "/") + d.cfg.Webhooks.Path
	body := []byte(`{"zen": "weir doctor", "hook": {"type": "Repository"}}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		d.report(name, checkFailed, err.Error(), "correct --url")
		return
	}
	sum := hmac.New(sha256.New, []byte(d.cfg.Webhooks.Secret.Reveal()))
	_, _ = sum.Write(body) // never fails
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	req.Header.Set(d.dialect.Webhook.Event, "ping")
	req.Header.Set(d.dialect.Webhook.Delivery, "weir-doctor-"+rand.Text())
	resp, err := d.transport.RoundTrip(req)
	if err != nil {
		d.report(name, checkFailed, err.Error(), "check that the URL reaches the gateway, with a certificate that the upstream trusts; see "+section)
		return
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // a part explains enough
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		d.report(name, checkFailed, fmt.Sprintf("%s returned %d: %s", target, resp.StatusCode, strings.TrimSpace(string(text))),
			"check that the gateway runs with this file and that no load balancer changes the request; see "+section)
		return
	}
	d.report(name, checkOK, target+" accepts signed deliveries", "")
}
