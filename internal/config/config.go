// Package config is the file: YAML in, one typed [Config] out, or every
// mistake at once, each with its line and column.
//
// Invariants:
//   - A Config that [Parse] returns is valid in itself: every value is in its
//     range and every name that it mentions exists.
//   - Unknown and repeated keys are errors; nothing is ignored.
//   - Secrets have a type that cannot print, and error messages quote none.
//   - A reload is all or nothing: [Watch] hands on valid configurations only.
//
// It has no behaviour: what a setting does is the business of whoever reads it.
package config

import (
	"net/netip"
	"reflect"
	"regexp"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
)

// Config is a whole configuration. The desc tags are the reference: they go
// into the JSON Schema.
type Config struct {
	Listen      string       `yaml:"listen" desc:"address on which clients are answered"`
	FastPath    bool         `yaml:"fast_path" desc:"serve cache hits of plain HTTP/1.1 connections before net/http"`
	Admin       Admin        `yaml:"admin" desc:"the operator's listener"`
	Upstream    Upstream     `yaml:"upstream" desc:"the API behind the gateway"`
	Store       Store        `yaml:"store" desc:"where replicas share ledger and cache"`
	Credentials []Credential `yaml:"credentials" desc:"upstream credentials that the gateway holds"`
	Clients     []Client     `yaml:"clients" desc:"who may use the gateway, and whose credential pays"`
	Issuers     []Issuer     `yaml:"issuers" desc:"whose tokens (JWT) clients may show"`
	Callers     Callers      `yaml:"callers" desc:"clients that bring their own credential"`
	Limits      Limits       `yaml:"limits" desc:"the upstream's limits, and how they are kept"`
	Cache       Cache        `yaml:"cache" desc:"what is kept"`
	Statistics  Statistics   `yaml:"statistics" desc:"how answers that are still computed (202) are asked for again"`
	Webhooks    Webhooks     `yaml:"webhooks" desc:"deliveries that tell what has changed"`
	TLS         TLS          `yaml:"tls" desc:"HTTPS for clients; off while domains and certificates are empty"`
	Telemetry   Telemetry    `yaml:"telemetry" desc:"the rest by the standard OTEL_* variables"`
	Headers     headers      `yaml:"headers" desc:"optional response headers"`
	Drain       Drain        `yaml:"drain" desc:"how the process ends when it is told to (SIGTERM, SIGINT); a second time ends it at once"`
}

// Upstream is the API behind the gateway.
type Upstream struct {
	URL     string        `yaml:"url" desc:"base URL; a path prefix such as /api/v3 is kept"`
	Dialect string        `yaml:"dialect" desc:"header names, media types and messages" enum:"service,github"`
	Timeout time.Duration `yaml:"timeout" desc:"longest wait for response headers, and for each piece of a body"`
	Egress  string        `yaml:"egress" desc:"name of the address that the upstream sees; anonymous calls of one egress share a budget"`
}

// Store is where replicas share what they know.
type Store struct {
	URL string `yaml:"url" desc:"memory: | memory:/FILE kept over a restart | redis://… | rediss://… | redis+sentinel://… | redis+cluster://…"`
}

// Credential is an upstream credential that the gateway holds.
type Credential struct {
	Name    string            `yaml:"name" desc:"by which clients name it"`
	Kind    policy.CallerKind `yaml:"kind" desc:"what the upstream takes it for" enum:"user,enterprise,installation,oauth_app,workflow"`
	Account string            `yaml:"account" desc:"what the upstream counts it against; credentials of one user have one account"`
	Token   credential.Secret `yaml:"token" desc:"the token; of an oauth_app id:secret; none where there is an app"`
	App     struct {
		ID           string            `yaml:"id" desc:"of the app: its number or client id"`
		Key          credential.Secret `yaml:"key" desc:"its private key, RSA in PEM: file:PATH"`
		Installation int               `yaml:"installation" desc:"number of the installation"`
		Permissions  map[string]string `yaml:"permissions" desc:"those that the tokens have (contents: read); all of the installation's while empty"`
	} `yaml:"app,omitempty" desc:"of an installation, in place of a token: the app that gets its tokens"`
}

// isApp reports whether anything of an app is given.
func (c Credential) isApp() bool {
	return c.App.ID != "" || c.App.Key != "" || c.App.Installation != 0 || len(c.App.Permissions) > 0
}

// Client is a program that may use the gateway, by its key, its certificate or
// tokens of an issuer.
type Client struct {
	Name        string   `yaml:"name" desc:"in logs and metrics"`
	Key         string   `yaml:"key" desc:"sha256: and the hexadecimal SHA-256 of the client's key; weir key new makes both"`
	Certificate string   `yaml:"certificate" desc:"sha256:FINGERPRINT, or a name that tls.client_ca vouches for: dns:NAME, uri:URI, email:ADDRESS, subject:CN=…"`
	JWT         JWT      `yaml:"jwt" desc:"tokens of an issuer"`
	Methods     []string `yaml:"methods" desc:"that it may use; GET stands for HEAD too; all when empty"`
	Operations  []string `yaml:"operations" desc:"that it may call, by ID, * for any characters; all when empty"`
	Credentials []string `yaml:"credentials" desc:"names of the credentials that it may spend; of several the one with the most left, among those that see what is asked for"`
	Share       int      `yaml:"share" desc:"its weight among the clients of one account"`
	Priority    string   `yaml:"priority" desc:"who waits for whom" enum:"interactive,normal,batch"`
	Debug       bool     `yaml:"debug" desc:"whether it may send Weir-Debug: 1, and is told what was made of its request"`
}

// JWT says which tokens are a client's.
type JWT struct {
	Issuer string            `yaml:"issuer" desc:"name of one of the issuers"`
	Claims map[string]string `yaml:"claims" desc:"patterns, * for any characters, that the token's claims must all fit"`
}

// Issuer signs tokens that clients show.
type Issuer struct {
	Name       string        `yaml:"name" desc:"by which clients name it"`
	URL        string        `yaml:"url" desc:"its identifier: the tokens' iss, to the letter; /.well-known/openid-configuration is read below it"`
	Audiences  []string      `yaml:"audiences" desc:"names of this gateway; a token must be for one of them (aud)"`
	Algorithms []string      `yaml:"algorithms" desc:"by which it signs; RS256 and ES256 unless configured"`
	Skew       time.Duration `yaml:"skew" desc:"how far its clock may be off"`
}

// Callers are clients that bring their own credential.
type Callers struct {
	PassThrough    bool     `yaml:"pass_through" desc:"accept them, and anonymous ones"`
	TrustedProxies []string `yaml:"trusted_proxies" desc:"addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed"`
}

// Networks are the trusted proxies of a configuration that was checked.
func (c Callers) Networks() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range c.TrustedProxies {
		network, _ := parseNetwork(text) // checked
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

// Limits are those of the upstream and how they are kept.
type Limits struct {
	policy.Limits `yaml:",inline"`
	Headroom      float64       `yaml:"headroom" desc:"fraction kept back for users of the token outside the gateway, 0 to below 1"`
	OnStoreLoss   string        `yaml:"on_store_loss" desc:"without the store, go on with this replica's share, or not at all" enum:"share,closed"`
	ColdStart     string        `yaml:"cold_start" desc:"memory store after a start, when past spending is unknown" enum:"ramp,strict,trust"`
	Wait          time.Duration `yaml:"wait" desc:"longest time a request queues unless its client says (Prefer: wait=N)"`
	RefusalStatus int           `yaml:"refusal_status" desc:"status of a limit refusal" enum:"429,403"`
	Inbound       struct {
		Rate  int `yaml:"rate" desc:"requests per second of one address (IPv6: of one /64); 0 switches the limit off, as behind a load balancer"`
		Burst int `yaml:"burst" desc:"requests of one address at once"`

		Body time.Duration `yaml:"body" desc:"longest time that a client is waited for while it sends a body"`
	} `yaml:"inbound" desc:"how fast one client address may send, and how slowly a client; protects the gateway itself"`
}

// Cache is what is kept.
type Cache struct {
	Memory     Size                      `yaml:"memory" desc:"bound of the memory tier"`
	Key        credential.Secret         `yaml:"key" desc:"seals what is kept in Redis, cached answers and what TLS keeps there: 32 characters or more, the same for all replicas; not sealed while empty"`
	ETags      string                    `yaml:"etags" desc:"which ETags prove access to a response of another caller: computed by Weir where the dialect allows it, else strong ones of the upstream | upstream: strong ones only | off" enum:"computed,upstream,off"`
	Operations map[string]CacheOperation `yaml:"operations" desc:"overrides of the catalogue's cache rules, by operation"`
}

// CacheOperation overrides one operation's cache rule.
type CacheOperation struct {
	TTL      time.Duration `yaml:"ttl" desc:"lifetime of a stored response; for reference data only"`
	Coalesce bool          `yaml:"coalesce" desc:"send one upstream request for simultaneous identical requests; false forwards each of them"`
}

// Statistics says how computed answers are polled.
type Statistics struct {
	Wait time.Duration `yaml:"wait" desc:"longest time a client waits unless it says (Prefer: wait=N)"`
	Poll poll          `yaml:"poll" desc:"pauses between polls"`
}

// poll is the pauses between polls.
type poll struct {
	First  time.Duration `yaml:"first" desc:"the first pause"`
	Factor float64       `yaml:"factor" desc:"each is this much longer than the last"`
	Max    time.Duration `yaml:"max" desc:"the longest"`
	Budget time.Duration `yaml:"budget" desc:"after this time polling ends"`
}

// Webhooks are deliveries that tell what has changed.
type Webhooks struct {
	Path   string            `yaml:"path" desc:"where they are received; below /_weir/"`
	Secret credential.Secret `yaml:"secret" desc:"of their signature; off while empty"`
}

// TLS is HTTPS for clients.
type TLS struct {
	Domains      []string      `yaml:"domains" desc:"names to have certificates for by ACME, whose terms of service you accept by naming one"`
	Email        string        `yaml:"email" desc:"of the ACME account"`
	CA           string        `yaml:"ca" desc:"ACME directory URL; empty for the public default"`
	Storage      string        `yaml:"storage" desc:"where certificates, account and locks are kept: store, or a folder, relative to the file's"`
	HTTP         string        `yaml:"http" desc:"address on which plain HTTP is sent on to HTTPS, and HTTP-01 challenges are answered; off while empty"`
	Certificates []certificate `yaml:"certificates" desc:"your own certificates, which go before those of ACME"`
	ClientCA     string        `yaml:"client_ca" desc:"PEM file of the authorities that vouch for the names in clients' certificates; relative to the file's folder"`
}

// Enabled reports whether clients are answered by HTTPS.
func (t TLS) Enabled() bool { return len(t.Domains)+len(t.Certificates) > 0 }

// certificate is one of the operator's own. Its paths are relative to the file's
// folder; a Config holds them absolute, or relative to the working directory.
type certificate struct {
	Certificate string `yaml:"certificate" desc:"PEM file of the chain, the leaf first; read anew when it changes"`
	Key         string `yaml:"key" desc:"PEM file of its private key"`
}

// Telemetry is what the standard OTEL_* variables do not say.
type Telemetry struct {
	ServiceName string  `yaml:"service_name" desc:"service.name of the resource"`
	Sample      float64 `yaml:"sample" desc:"fraction of traces that is kept, 0 to 1"`
	AccessLog   string  `yaml:"access_log" desc:"requests that are logged: all, errors (failed or refused by Weir), or off" enum:"all,errors,off"`
}

// headers are optional response headers.
type headers struct {
	RateLimit string `yaml:"ratelimit" desc:"IETF RateLimit fields: their generation, beside the x-ratelimit ones" enum:"off,draft-08"`
}

// Drain is how the process ends.
type Drain struct {
	Delay   time.Duration `yaml:"delay" desc:"how long clients are still let in while /readyz says that it stops: until the load balancer has noticed"`
	Timeout time.Duration `yaml:"timeout" desc:"how long requests may take after that"`
}

// Default is what a file is laid over.
func Default() *Config {
	c := &Config{
		Listen:   ":8080",
		FastPath: true,
		Admin:    Admin{Listen: "127.0.0.1:9090"},
		Upstream: Upstream{Dialect: "service", Timeout: 30 * time.Second, Egress: "shared"},
		Store:    Store{URL: "memory:"},
		Callers:  Callers{PassThrough: true},
		Limits: Limits{
			Limits: policy.DefaultLimits(), OnStoreLoss: "share", ColdStart: "ramp",
			Wait: 10 * time.Second, RefusalStatus: 429,
		},
		Cache:      Cache{Memory: 256 << 20, ETags: "computed"},
		Statistics: Statistics{Wait: 10 * time.Second, Poll: poll{First: time.Second, Factor: 2, Max: 15 * time.Second, Budget: 5 * time.Minute}},
		Webhooks:   Webhooks{Path: "/_weir/webhooks"},
		TLS:        TLS{Storage: "store"},
		Telemetry:  Telemetry{ServiceName: "weir", Sample: 1, AccessLog: "all"},
		Headers:    headers{RateLimit: "off"},
		Drain:      Drain{Timeout: 10 * time.Second},
	}
	c.Limits.Inbound.Rate, c.Limits.Inbound.Burst, c.Limits.Inbound.Body = 500, 1000, 10*time.Minute
	return c
}

// defaultClient is what an entry of clients is laid over.
func defaultClient() Client { return Client{Share: 1, Priority: "normal"} }

// defaultIssuer is what an entry of issuers is laid over.
func defaultIssuer() Issuer {
	return Issuer{Algorithms: []string{"RS256", "ES256"}, Skew: 30 * time.Second}
}

// setDefaults sets the defaults of an element of a list or a map. The file overrides them.
func setDefaults(element reflect.Value) {
	switch entry := element.Addr().Interface().(type) {
	case *Client:
		*entry = defaultClient()
	case *Issuer:
		*entry = defaultIssuer()
	case *CacheOperation:
		entry.Coalesce = true
	}
}

// Catalogue returns the embedded catalogue with this configuration's
// overrides.
func (c *Config) Catalogue() (*policy.Catalogue, error) {
	rules := make(map[string]policy.CacheOverride, len(c.Cache.Operations))
	for id, o := range c.Cache.Operations {
		rules[id] = policy.CacheOverride{TTL: o.TTL, NoCoalesce: !o.Coalesce}
	}
	return policy.Embedded().WithCacheRules(rules)
}

// What may be secret in a URL: all between its scheme and the last "@", and
// the value of a parameter such as sentinel_password.
var (
	userInfo        = regexp.MustCompile(`(?s)^([A-Za-z][A-Za-z0-9+.-]*://)?.*@`)
	secretParameter = regexp.MustCompile(`(?i)([?&][^=&#]*(?:pass|token|secret|key)[^=&#]*=)[^&#]*`)
)

// redacted is a URL without what may be secret in it. It goes by the text
// alone, because a URL that cannot be parsed must not show it either.
func redacted(raw string) string {
	return secretParameter.ReplaceAllString(userInfo.ReplaceAllString(raw, "${1}•••@"), "${1}•••")
}
