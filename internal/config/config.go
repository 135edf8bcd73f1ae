// Package config reads the YAML configuration file. The result is one typed [Config], or all mistakes together, each
// with its line and column.
//
// Invariants:
//   - A Config that [Parse] returns is valid: every value is in its range, and every name that the Config refers to
//     exists.
//   - Unknown and repeated keys are errors.
//   - Secrets have a type that prints as a mask. Error messages quote no secret.
//   - A reload is all or nothing: [Watch] passes on a complete Config or an error.
//
// The package only reads and checks values; cmd/weir applies them. Start with [Config] and
// [Load]. [Assess] audits a valid configuration for risks.
package config

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"golang.org/x/net/http/httpproxy"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
)

// Config is a complete configuration. The desc tags are the descriptions in the JSON Schema.
type Config struct {
	Listen      string              `yaml:"listen" desc:"address of the listener for clients, or unix: and the path of a socket"`
	Socket      Socket              `yaml:"socket" desc:"access to the Unix socket of listen"`
	Admin       Admin               `yaml:"admin" desc:"listener for operators"`
	Upstream    Upstream            `yaml:"upstream" desc:"the API behind the gateway"`
	Hosts       []Host              `yaml:"hosts" desc:"further hosts of the API, which clients name in the request or in a CONNECT"`
	Store       Store               `yaml:"store" desc:"where replicas share the ledger and the cache"`
	Credentials []Credential        `yaml:"credentials" desc:"upstream credentials that the gateway holds"`
	Clients     []Client            `yaml:"clients" desc:"programs that may use the gateway, and the credentials that they may use"`
	Groups      []Group             `yaml:"groups" desc:"groups of clients, such as teams, with a part of each primary window"`
	Issuers     []credential.Issuer `yaml:"issuers" desc:"OpenID Connect issuers whose tokens (JWT) identify clients"`
	Callers     Callers             `yaml:"callers" desc:"clients that bring their own credential"`
	Limits      Limits              `yaml:"limits" desc:"limits of the upstream, and how the gateway obeys them"`
	Cache       Cache               `yaml:"cache" desc:"stored responses"`
	Statistics  Statistics          `yaml:"statistics" desc:"polling of statistics that the upstream is still computing (202)"`
	Webhooks    Webhooks            `yaml:"webhooks" desc:"webhook deliveries that invalidate cached responses"`
	TLS         TLS                 `yaml:"tls" desc:"HTTPS for clients; off while domains and certificates are empty"`
	Proxy       ForwardProxy        `yaml:"proxy" desc:"forward proxy for programs whose base URL cannot be changed; off while listen is empty"`
	Telemetry   Telemetry           `yaml:"telemetry" desc:"telemetry; everything else is set by the standard OTEL_* variables"`
	Headers     headers             `yaml:"headers" desc:"optional response headers"`
	Drain       Drain               `yaml:"drain" desc:"graceful shutdown after SIGTERM or SIGINT; a second signal ends the process immediately"`
}

// Admin configures the operators' listener.
type Admin struct {
	Listen     string            `yaml:"listen" desc:"address; a loopback address needs neither token nor certificate"`
	Token      credential.Secret `yaml:"token" desc:"bearer token; this or tls.client_ca is required if the address is not loopback"`
	Hosts      []string          `yaml:"hosts" desc:"accepted host names, in addition to localhost and IP addresses"`
	TLS        adminTLS          `yaml:"tls" desc:"HTTPS for operators, and client certificates"`
	Prometheus Prometheus        `yaml:"prometheus" desc:"server that scrapes all replicas, for the charts over days in the dashboard; off while url is empty"`
}

// Prometheus is the server that the dashboard reads long-term series from.
type Prometheus struct {
	URL   string            `yaml:"url" desc:"base URL; a path prefix is kept"`
	Token credential.Secret `yaml:"token" desc:"bearer token for Prometheus; none if empty"`
}

// adminTLS configures HTTPS for operators. The file has paths relative to its directory. In a Config the paths are
// absolute or relative to the working directory.
type adminTLS struct {
	Certificate string `yaml:"certificate" desc:"PEM file of the certificate chain; requires key"`
	Key         string `yaml:"key" desc:"PEM file of the private key"`
	ClientCA    string `yaml:"client_ca" desc:"PEM file of the authorities of accepted client certificates"`
}

// Enabled reports whether the operators' listener uses HTTPS.
func (t adminTLS) Enabled() bool { return t != adminTLS{} }

// Load reads the files. A missing or invalid file is an error, because without authorities the listener would accept
// all clients or no client. Client certificates are requested and verified. Connections without a certificate are
// accepted, because health checks need no certificate. The handler decides.
func (t adminTLS) Load() (*tls.Config, error) {
	pair, err := loadKeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
		SessionTicketsDisabled: true, // verify every connection against the current authorities
	}
	if t.ClientCA == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("client_ca: %q contains no PEM certificate", t.ClientCA)
	}
	return c, nil
}

// loadKeyPair reads a certificate and its private key.
func loadKeyPair(certificate, key string) (tls.Certificate, error) {
	if certificate == "" || key == "" {
		return tls.Certificate{}, errors.New("needs certificate and key, both PEM files")
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if _, unread := errors.AsType[*fs.PathError](err); err != nil && !unread {
		err = fmt.Errorf("%w; name the certificate and the key of one pair", err)
	}
	if err != nil {
		return pair, fmt.Errorf("%q with %q: %w", certificate, key, err)
	}
	return pair, nil
}

// Upstream is the API behind the gateway.
type Upstream struct {
	URL     string            `yaml:"url" desc:"base URL; a path prefix such as /api/v3 is kept"`
	Aliases []string          `yaml:"aliases" desc:"further hosts or base URLs by which the API names itself; their URLs in responses lead to the gateway"`
	Dialect string            `yaml:"dialect" desc:"header names, media types and messages of the API; without it, github if the host or the path of url is that of GitHub" enum:"service,github"`
	Timeout time.Duration     `yaml:"timeout" desc:"maximum wait for response headers, and for each part of a body; event streams, unknown routes and hosts of files may pause longer"`
	Limits  Switch            `yaml:"limits" desc:"obey the limits of the API; off sends every request immediately, for a self-hosted API without rate limits"`
	Rewrite Switch            `yaml:"rewrite_urls" desc:"on: URLs of the API in the members url and *_url of JSON responses lead to the gateway, for clients that call it by its own name"`
	Proxy   credential.Secret `yaml:"proxy" desc:"URL of the proxy for requests to the API, hosts, issuers and the ACME server, with its user name and password: http, https or socks5; direct if empty"`
	NoProxy []string          `yaml:"no_proxy" desc:"exceptions from proxy, as in NO_PROXY: names, .example.com for all names below, addresses, networks, each with an optional port"`
	Egress  string            `yaml:"egress" desc:"name of the address that the upstream sees; anonymous requests of one egress share a budget"`
}

// Socket configures the access to the Unix socket of the listener for clients.
type Socket struct {
	Mode  string `yaml:"mode" desc:"permissions of the socket in octal digits; a program needs the permission to write"`
	Owner string `yaml:"owner" desc:"owner of the socket: USER, USER:GROUP or :GROUP, as names or numbers; that of the process if empty"`
}

// SocketPath returns the path of the Unix socket of the listener for clients, or an empty text.
func (c *Config) SocketPath() string {
	path, _ := strings.CutPrefix(c.Listen, "unix:")
	if path == c.Listen {
		return ""
	}
	return path
}

// Host is a further host of the API.
type Host struct {
	Name       string `yaml:"name" desc:"name by which clients call the host; for files without url, path and credential also *.example.com, for all names below a domain"`
	URL        string `yaml:"url" desc:"base URL of the host; https:// and the name if empty"`
	Path       string `yaml:"path" desc:"path prefix by which clients reach the host at the address of the gateway, such as /api/uploads"`
	Kind       string `yaml:"kind" desc:"api: operations, limits and credentials of the API; files: any path, no limits" enum:"api,files"`
	Credential bool   `yaml:"credential" desc:"for files: send the credential of the client, as to the API; otherwise no credential is sent, and clients need no key"`
}

// IsWildcard reports whether the name means all names below a domain.
func (h Host) IsWildcard() bool { return strings.HasPrefix(h.Name, "*.") }

// BaseURL returns the base URL of the host.
func (h Host) BaseURL() string { return cmp.Or(h.URL, "https://"+h.Name) }

// Base returns the parsed base URL of a host in a valid configuration.
func (h Host) Base() *url.URL { return parsed(h.BaseURL()) }

// Base returns the parsed base URL of the API in a valid configuration.
func (u Upstream) Base() *url.URL { return parsed(u.URL) }

// MustDialect returns the dialect of a valid configuration.
func (u Upstream) MustDialect() *policy.Dialect {
	d, err := policy.LoadDialect(u.Dialect)
	if err != nil {
		panic(err) // Parse accepts only known names
	}
	return d
}

// APIName returns the name by which clients call the API, in lower case. It is empty if the host of upstream.url is an
// address.
func (c *Config) APIName() string {
	name := c.Upstream.Base().Hostname()
	if net.ParseIP(name) != nil {
		return ""
	}
	return strings.ToLower(name)
}

// Bypass describes how programs may pass the gateway with a valid configuration, or is empty.
func (c *Config) Bypass() (found, remedy string) {
	if c.Upstream.Dialect != "github" || bool(c.Upstream.Rewrite) || c.Proxy.Listen != "" {
		return "", ""
	}
	return "upstream.rewrite_urls is off: programs that follow the URLs in responses, such as upload_url, pass the gateway, with their token or key",
		"set upstream.rewrite_urls to on, and give the host of uploads a path in hosts, or let programs use the forward proxy"
}

// InferDialect returns the dialect that the base URL shows, the part that shows it, which may be empty, and whether no other
// dialect is possible.
func (u Upstream) InferDialect() (name, reason string, certain bool) {
	return policy.DialectOf(u.Base())
}

// HostNames returns the names of the API and of the further hosts.
func (c *Config) HostNames() []string {
	var names []string
	if api := c.APIName(); api != "" {
		names = append(names, api)
	}
	for _, h := range c.Hosts {
		names = append(names, h.Name)
	}
	return append(names, c.AliasNames()...)
}

// AliasNames returns the host names in upstream.aliases that neither the API nor a further host has.
func (c *Config) AliasNames() (names []string) {
	taken := func(name string) bool {
		return name == c.APIName() || slices.Contains(names, name) || slices.ContainsFunc(c.Hosts, func(h Host) bool { return h.Name == name })
	}
	for _, alias := range c.AliasURLs() {
		if name := strings.ToLower(alias.Hostname()); domainName.MatchString(name) && !taken(name) {
			names = append(names, name)
		}
	}
	return names
}

// AliasURLs returns the base URLs of upstream.aliases and of the hosts with the URL of the API. A host without a scheme has
// the path of upstream.url, and both schemes.
func (c *Config) AliasURLs() (urls []*url.URL) {
	upstream := c.Upstream.Base()
	for _, alias := range c.Upstream.Aliases {
		if u, err := url.Parse(alias); err == nil && u.Host != "" {
			urls = append(urls, u)
			continue
		}
		for _, scheme := range []string{"https", "http"} {
			urls = append(urls, &url.URL{Scheme: scheme, Host: alias, Path: upstream.Path, RawPath: upstream.RawPath})
		}
	}
	for _, h := range c.Hosts {
		if h.Kind == "api" && h.Path == "" && h.URL == c.Upstream.URL {
			urls = append(urls, &url.URL{Scheme: "https", Host: h.Name, Path: upstream.Path, RawPath: upstream.RawPath})
		}
	}
	return urls
}

// Store configures the state that replicas share.
type Store struct {
	URL string `yaml:"url" desc:"memory: | memory:/FILE kept across restarts | redis://… | rediss://… | redis+sentinel://… | redis+cluster://…"`
}

// Credential is an upstream credential that the gateway holds.
type Credential struct {
	Name    string            `yaml:"name" desc:"name for use under clients"`
	Kind    policy.CallerKind `yaml:"kind" desc:"kind of caller that the upstream sees; with enterprise for callers of an enterprise" enum:"user,enterprise,installation,enterprise_installation,oauth_app,enterprise_oauth_app,workflow,enterprise_workflow"`
	Account string            `yaml:"account" desc:"what the upstream counts requests against; credentials of one user have the same account"`
	Token   credential.Secret `yaml:"token" desc:"the token; id:secret for an oauth_app; empty if app is set"`
	App     struct {
		ID           string            `yaml:"id" desc:"number or client id of the app"`
		Key          credential.Secret `yaml:"key" desc:"private key of the app, RSA in PEM: file:PATH"`
		Installation int               `yaml:"installation" desc:"number of the installation"`
		Permissions  map[string]string `yaml:"permissions" desc:"permissions of the tokens (contents: read); all permissions of the installation if empty"`
	} `yaml:"app,omitempty" desc:"app that gets the tokens of an installation; replaces token"`
}

// Client is a program that may use the gateway. The key, the certificate or the tokens of the client identify the
// client.
type Client struct {
	Name        string                `yaml:"name" desc:"name in logs and metrics"`
	Key         string                `yaml:"key" desc:"sha256: and the hexadecimal SHA-256 of the client's key; weir key new creates both"`
	Certificate string                `yaml:"certificate" desc:"sha256:FINGERPRINT, or a name signed by tls.client_ca: dns:NAME, uri:URI, email:ADDRESS, subject:CN=…"`
	JWT         credential.TokenMatch `yaml:"jwt" desc:"tokens of an issuer that identify the client"`
	Methods     []string              `yaml:"methods" desc:"permitted methods; GET includes HEAD; all without this list"`
	Operations  []string              `yaml:"operations" desc:"permitted operations by ID, with * for any characters; all without this list"`
	GraphQL     policy.GraphQLRules   `yaml:"graphql" desc:"permitted GraphQL calls; all if empty"`
	// Repositories and Organizations are the lists of [policy.Scope].
	Repositories  []string           `yaml:"repositories" desc:"permitted repositories as OWNER/NAME, with * for any characters, and !OWNER/NAME for exceptions; with this list or organizations, a call that may reach others is refused"`
	Organizations []string           `yaml:"organizations" desc:"organizations and users whose own objects are permitted, such as members and teams; their repositories need repositories"`
	Credentials   []string           `yaml:"credentials" desc:"names of the credentials that the client may use; Weir prefers the one with the largest remaining budget that can see the resource"`
	Group         string             `yaml:"group" desc:"name of one of the groups"`
	Share         int                `yaml:"share" desc:"weight among the clients of one account"`
	Priority      string             `yaml:"priority" desc:"priority in the queue of an account; batch also spreads the requests evenly over each window" enum:"interactive,normal,batch"`
	Guarantee     float64            `yaml:"guarantee" desc:"fraction of each primary window that other clients of the account leave to this client; at least 0.05 with priority interactive"`
	Limit         float64            `yaml:"limit" desc:"fraction of each primary window that the client may use if the account has other clients"`
	TagLimit      float64            `yaml:"tag_limit" desc:"fraction of each primary window that the client's requests with one tag may use, and those without a tag together; 0 for no limit"`
	Writes        policy.WriteLimits `yaml:"writes" desc:"requests that may change something: unsafe methods that do not only read, and GraphQL mutations; for each account of the client's credentials"`
	TagWrites     policy.WriteLimits `yaml:"tag_writes" desc:"the same for the requests with one tag, and for those without a tag together"`
	// RefusalStatus overrides Limits.RefusalStatus.
	RefusalStatus int  `yaml:"refusal_status" desc:"status of a limit refusal for programs that need another one than limits.refusal_status; 0 is that one" enum:"0,429,403"`
	Debug         bool `yaml:"debug" desc:"permit the request header Weir-Debug: 1, which explains how a request was handled"`
}

// Group is a group of clients.
type Group struct {
	Name      string  `yaml:"name" desc:"name for use under clients"`
	Guarantee float64 `yaml:"guarantee" desc:"fraction of each primary window that clients of other groups leave to this group, beside the guarantees of its clients"`
	Limit     float64 `yaml:"limit" desc:"fraction of each primary window that the clients of the group may use together"`
}

// interactiveGuarantee is the smallest guarantee of a client with priority interactive.
const interactiveGuarantee = 0.05

// GuaranteedPart returns the guarantee, which depends on the priority.
func (c Client) GuaranteedPart() float64 {
	if c.Priority == string(policy.Interactive) {
		return min(c.Limit, max(c.Guarantee, interactiveGuarantee))
	}
	return c.Guarantee
}

// Scope returns the scope of the client, without the claims of its tokens.
func (c Client) Scope() *policy.Scope {
	return &policy.Scope{
		Methods: c.Methods, Operations: c.Operations, GraphQL: &c.GraphQL, Repositories: c.Repositories, Organizations: c.Organizations,
		CountsWrites: c.Writes != policy.WriteLimits{} || c.TagWrites != policy.WriteLimits{},
	}
}

// LimitsNames reports whether the client may reach only some repositories or owners.
func (c Client) LimitsNames() bool {
	return len(c.Repositories)+len(c.Organizations) > 0 || c.JWT.Repositories != ""
}

// Callers configures clients that send their own credential.
type Callers struct {
	Anonymous      Lending  `yaml:"anonymous" desc:"credential for anonymous reads of public data; none by default"`
	PassThrough    bool     `yaml:"pass_through" desc:"accept clients with their own credential, and anonymous clients"`
	TrustedProxies []string `yaml:"trusted_proxies" desc:"addresses and networks of proxies whose Forwarded and X-Forwarded-For, -Host, -Port, -Prefix and -Proto are trusted"`
}

// Lending lends a credential to anonymous clients.
type Lending struct {
	Credential string   `yaml:"credential" desc:"name of a credential that sees public data only; off if empty"`
	Operations []string `yaml:"operations" desc:"operations by ID, with * for any characters; only reads of public data among them get the credential"`
}

// AnonymousClient is the name of the client that has the credential for anonymous reads.
const AnonymousClient = "anonymous"

// Networks returns the trusted proxies of a valid configuration.
func (c Callers) Networks() []netip.Prefix { return networks(c.TrustedProxies) }

func networks(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		network, _ := parseNetwork(text) // validated by Parse
		all = append(all, network)
	}
	return all
}

// parseNetwork reads an address, or a network such as 10.0.0.0/8.
func parseNetwork(text string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network.Masked(), nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(address, address.BitLen()), nil
}

// Limits are the limits of the upstream and the settings of the gateway's admission.
type Limits struct {
	policy.Limits `yaml:",inline"`
	Headroom      float64       `yaml:"headroom" desc:"fraction reserved for users of the token outside the gateway, from 0 to below 1"`
	Probes        int           `yaml:"probes" desc:"failed probes in a row after which an account is closed until an operator opens it"`
	OnStoreLoss   string        `yaml:"on_store_loss" desc:"while the store is unavailable, continue with this replica's share, or refuse requests" enum:"share,closed"`
	ColdStart     string        `yaml:"cold_start" desc:"part of each limit that may be used after a start, when past spending is unknown: a memory store, or Redis that does not respond" enum:"ramp,strict,trust"`
	Wait          time.Duration `yaml:"wait" desc:"maximum time in the queue, unless the client sends Prefer: wait=N"`
	RefusalStatus int           `yaml:"refusal_status" desc:"status of a limit refusal; 0 is the status of the API's last limit error for the account, and before that 403 with the dialect github, otherwise 429" enum:"0,429,403"`
	Inbound       struct {
		Rate  int           `yaml:"rate" desc:"requests per second of one address (IPv6: of one /64); 0 for no limit, for example behind a load balancer"`
		Burst int           `yaml:"burst" desc:"simultaneous requests of one address"`
		Body  time.Duration `yaml:"body" desc:"maximum time to receive a request body"`
	} `yaml:"inbound" desc:"limits of one client address, which protect the gateway itself"`
}

// Cache configures stored responses.
type Cache struct {
	Memory     Size                            `yaml:"memory" desc:"size of the memory tier"`
	Key        credential.Secret               `yaml:"key" desc:"secret that encrypts responses and TLS keys in Redis: 32 characters or more, the same for all replicas; not encrypted if empty"`
	ETags      string                          `yaml:"etags" desc:"ETags that prove access to a response of another caller: computed (by Weir if the dialect permits it, else strong ETags of the upstream) | upstream (strong ETags only) | off" enum:"computed,upstream,off"`
	Lag        time.Duration                   `yaml:"lag" desc:"time after a write or an event in which the upstream may still return the state before; responses from that time are revalidated once after it"`
	Operations map[string]policy.CacheOverride `yaml:"operations" desc:"overrides of the catalogue's cache rules, by operation"`
	GraphQL    policy.GraphQLCache             `yaml:"graphql" desc:"responses to GraphQL queries that are stored; none by default"`
}

// Statistics configures the polling of computed responses.
type Statistics struct {
	Wait time.Duration `yaml:"wait" desc:"maximum time that a client waits, unless it sends Prefer: wait=N"`
	Poll poll          `yaml:"poll" desc:"pauses between polls"`
}

type poll struct {
	First  time.Duration `yaml:"first" desc:"first pause"`
	Factor float64       `yaml:"factor" desc:"growth of each pause relative to the last one"`
	Max    time.Duration `yaml:"max" desc:"longest pause"`
	Budget time.Duration `yaml:"budget" desc:"polling ends after this time"`
}

// Webhooks configures the receiver of webhook deliveries.
type Webhooks struct {
	Path    string              `yaml:"path" desc:"path of the receiver, below /_weir/"`
	Secret  credential.Secret   `yaml:"secret" desc:"secret of the deliveries' signatures; webhooks are off if it is empty"`
	Secrets []credential.Secret `yaml:"secrets" desc:"further accepted secrets: those of other webhooks, and the old one during a change"`
	Fresh   time.Duration       `yaml:"fresh" desc:"longest use of a response without revalidation while webhooks report its changes; 0 uses the lifetime of the response"`
}

// AllSecrets returns the accepted secrets.
func (w Webhooks) AllSecrets() []credential.Secret {
	if w.Secret == "" {
		return nil
	}
	return append([]credential.Secret{w.Secret}, w.Secrets...)
}

// TLS configures HTTPS for clients.
type TLS struct {
	Domains      []string      `yaml:"domains" desc:"names to request certificates for by ACME; by adding one you accept the authority's terms of service"`
	Email        string        `yaml:"email" desc:"contact address of the ACME account"`
	CA           string        `yaml:"ca" desc:"ACME directory URL; empty for the public default"`
	Storage      string        `yaml:"storage" desc:"where certificates, account and locks are stored: store, or a directory relative to the file's"`
	HTTP         string        `yaml:"http" desc:"address that redirects plain HTTP to HTTPS and answers HTTP-01 challenges; off if empty"`
	Certificates []certificate `yaml:"certificates" desc:"your own certificates; they take precedence over ACME"`
	ClientCA     string        `yaml:"client_ca" desc:"PEM file of the authorities that sign the names in client certificates; relative to the file's directory"`
}

// Enabled reports whether the clients' listener uses HTTPS.
func (t TLS) Enabled() bool { return len(t.Domains)+len(t.Certificates) > 0 }

// Authorities reads the certificates in [TLS.ClientCA]. If ClientCA is empty, the list is empty.
func (t TLS) Authorities() ([]*x509.Certificate, error) {
	if t.ClientCA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, err
	}
	authorities, err := credential.ParseAuthorities(string(text))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", t.ClientCA, err)
	}
	return authorities, nil
}

// certificate is a certificate of the operator. The file has paths relative to its directory. In a Config the paths are
// absolute or relative to the working directory.
type certificate struct {
	Certificate string `yaml:"certificate" desc:"PEM file of the chain, leaf first; reloaded when it changes"`
	Key         string `yaml:"key" desc:"PEM file of the private key"`
}

// ForwardProxy configures the listener for CONNECT requests.
type ForwardProxy struct {
	Listen string    `yaml:"listen" desc:"address for HTTPS_PROXY"`
	CA     authority `yaml:"ca" desc:"the authority that weir ca init created; it signs the certificates for the API and its hosts"`
	Others string    `yaml:"others" desc:"connections to other hosts: refuse, or tunnel to port 443 of public addresses" enum:"refuse,tunnel"`
	Allow  []string  `yaml:"allow" desc:"addresses and networks of clients that need no key for the proxy"`
}

// authority names the files of an authority. The file has paths relative to its directory. In a Config the paths are
// absolute or relative to the working directory.
type authority struct {
	Certificate string `yaml:"certificate" desc:"PEM file of the certificate, which programs must trust"`
	Key         string `yaml:"key" desc:"PEM file of the private key, which must not be readable by all users"`
}

// Networks returns the networks of a valid configuration whose clients need no key.
func (p ForwardProxy) Networks() []netip.Prefix { return networks(p.Allow) }

// Telemetry has the settings that the standard OTEL_* variables do not cover.
type Telemetry struct {
	ServiceName string  `yaml:"service_name" desc:"service.name of the resource"`
	Sample      float64 `yaml:"sample" desc:"fraction of traces to record, from 0 to 1"`
	AccessLog   string  `yaml:"access_log" desc:"requests that are logged: all, errors (failed or refused by Weir), or off" enum:"all,errors,off"`
	LogFormat   string  `yaml:"log_format" desc:"format of the log and of the access lines: text (key=value), or json" enum:"text,json"`
	Propagate   string  `yaml:"propagate" desc:"where the trace context is sent: upstream, or off" enum:"off,upstream"`
}

type headers struct {
	RateLimit string `yaml:"ratelimit" desc:"version of the IETF RateLimit fields, in addition to x-ratelimit" enum:"off,draft-08"`
}

// Drain configures the graceful shutdown.
type Drain struct {
	Delay   time.Duration `yaml:"delay" desc:"time to accept requests while /readyz fails, until the load balancer has noticed"`
	Timeout time.Duration `yaml:"timeout" desc:"time for open requests to finish after that"`
}

// Default returns the configuration that the file overrides.
func Default() *Config {
	c := &Config{
		Listen:   ":8080",
		Socket:   Socket{Mode: "0660"},
		Admin:    Admin{Listen: "127.0.0.1:9090"},
		Upstream: Upstream{Dialect: "service", Timeout: 30 * time.Second, Limits: true, Egress: "shared"},
		Store:    Store{URL: "memory:"},
		Callers:  Callers{PassThrough: true},
		Limits: Limits{
			Limits: policy.DefaultLimits(), Probes: 10, OnStoreLoss: "share", ColdStart: "ramp",
			Wait: 10 * time.Second,
		},
		Cache: Cache{Memory: 256 << 20, ETags: "computed", Lag: 2 * time.Second},
		Statistics: Statistics{
			Wait: 10 * time.Second,
			Poll: poll{First: time.Second, Factor: 2, Max: 15 * time.Second, Budget: 5 * time.Minute},
		},
		Webhooks:  Webhooks{Path: "/_weir/webhooks"},
		TLS:       TLS{Storage: "store"},
		Proxy:     ForwardProxy{Others: "refuse"},
		Telemetry: Telemetry{ServiceName: "weir", Sample: 1, AccessLog: "all", LogFormat: "text", Propagate: "off"},
		Headers:   headers{RateLimit: "off"},
		Drain:     Drain{Timeout: 10 * time.Second},
	}
	c.Limits.Inbound.Rate, c.Limits.Inbound.Burst, c.Limits.Inbound.Body = 500, 1000, 10*time.Minute
	return c
}

// setDefaults sets the defaults of an element of a list or a map. The file overrides these defaults.
func setDefaults(element reflect.Value) {
	switch entry := element.Addr().Interface().(type) {
	case *Client:
		*entry = Client{Share: 1, Priority: "normal", Limit: 0.9}
	case *Host:
		*entry = Host{Kind: "files"}
	case *Group:
		*entry = Group{Limit: 0.9}
	case *credential.Issuer:
		*entry = credential.Issuer{Algorithms: []string{"RS256", "ES256"}, Skew: 30 * time.Second}
	case *policy.CacheOverride:
		entry.Coalesce = true
	}
}

// Catalogue returns the catalogue of the dialect with the cache rules of this configuration.
func (c *Config) Catalogue() (*policy.Catalogue, error) {
	return policy.CatalogueOf(c.Upstream.Dialect).WithCacheRules(c.Cache.Operations)
}

// Masked returns the configuration as plain values by key, for the admin API. The types of secrets mask their values.
// Secrets in the store's URL are removed.
func (c *Config) Masked() map[string]any {
	shown := *c
	shown.Store.URL = redacted(c.Store.URL)
	if c.Upstream.URL != "" {
		shown.Upstream.URL = c.Upstream.Shown()
	}
	shown.Upstream.Aliases = slices.Clone(c.Upstream.Aliases)
	for i, alias := range c.Upstream.Aliases {
		if strings.Contains(alias, "://") {
			shown.Upstream.Aliases[i] = shownURL(alias)
		}
	}
	shown.Hosts = slices.Clone(c.Hosts)
	for i, h := range c.Hosts {
		if h.URL != "" {
			shown.Hosts[i].URL = shownURL(h.URL)
		}
	}
	var values map[string]any
	text, err := yaml.Dump(shown)
	if err == nil {
		err = yaml.Load(text, &values)
	}
	if err != nil {
		panic(fmt.Sprintf("config: %v", err)) // plain data always marshals
	}
	return values
}

// ProxyFor returns the function that selects the proxy for a URL: nil for a direct connection. Loopback addresses are always
// direct.
func (u Upstream) ProxyFor() func(*url.URL) (*url.URL, error) {
	address := u.Proxy.Reveal()
	return (&httpproxy.Config{HTTPProxy: address, HTTPSProxy: address, NoProxy: strings.Join(u.NoProxy, ",")}).ProxyFunc()
}

// Shown returns the base URL of the API for logs and pages. Some gateways in front of an API have a key in their path, so only the
// path of a self-hosted API is shown.
func (u Upstream) Shown() string { return shownURL(u.URL) }

func shownURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return redacted(raw)
	}
	shown := u.Scheme + "://" + u.Host
	switch path := strings.TrimSuffix(u.EscapedPath(), "/"); path {
	case "", "/api/v3":
		return shown + path
	}
	return shown + "/•••"
}

// userInfo matches the text between the scheme of a URL and the last "@". secretParameter matches parameters that may be
// secret, such as sentinel_password.
var (
	userInfo        = regexp.MustCompile(`(?s)^([A-Za-z][A-Za-z0-9+.-]*://)?.*@`)
	secretParameter = regexp.MustCompile(`(?i)([?&][^=&#]*(?:pass|token|secret|key)[^=&#]*=)[^&#]*`)
)

// redacted returns a URL without its secrets. The URL is not parsed, because messages also quote invalid URLs.
func redacted(raw string) string {
	return secretParameter.ReplaceAllString(userInfo.ReplaceAllString(raw, "${1}•••@"), "${1}•••")
}
