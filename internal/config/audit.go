package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/weirgate/weir/internal/credential"
)

// Grade is the severity of a risk.
type Grade string

// High gives other people the tokens, the budgets or write access to the configuration. Medium has an effect only
// together with another mistake, or costs a ban or cached data. Low is bad practice.
const (
	High   Grade = "high"
	Medium Grade = "medium"
	Low    Grade = "low"
)

// Finding is a risk at one place of a configuration.
type Finding struct {
	Grade  Grade  `json:"grade"`
	Line   int    `json:"line"` // of the value, or of the nearest enclosing value in the file
	Column int    `json:"column"`
	Key    string `json:"key"` // empty for the file itself
	Why    string `json:"reason"`
	Do     string `json:"remedy"`
}

// AuditedFile is a valid configuration, with the positions of its keys and the mode of its file.
type AuditedFile struct {
	Config    *Config
	Positions Positions
	Mode      fs.FileMode
}

// minSecret is the minimum length of a secret that must not be guessed.
const minSecret = 16

// maxAlgorithms is the number of algorithms in the default configuration of an issuer.
const maxAlgorithms = 2

var (
	// anyValue is a claim pattern that matches all values, or all values of one kind.
	anyValue = regexp.MustCompile(`^([A-Za-z_]+:)?\*+$`)
	// openName is a claim pattern whose asterisk extends a name.
	openName = regexp.MustCompile(`^[^*]*[A-Za-z0-9]\*`)
)

// Assess returns the risks of a configuration, sorted by grade and position. Findings quote no secrets. Assess inspects
// only the configuration and the mode of its file. Assess cannot detect, for example, an open network in front of the
// gateway.
func Assess(f AuditedFile) []Finding {
	c, p := f.Config, f.Positions
	var found []Finding
	add := func(when bool, grade Grade, key, why, do string) {
		if !when {
			return
		}
		line, column := 1, 1
		if key != "" {
			line, column = p.At(key)
		}
		found = append(found, Finding{grade, line, column, key, why, do})
	}
	plain := plainSecrets(c, p)
	public := c.SocketPath() == "" && !isLoopback(c.Listen)
	redis := !strings.HasPrefix(c.Store.URL, "memory:")
	store, upstream := parsed(c.Store.URL), c.Upstream.Base()
	remote := func(address string) bool { return !isLoopback(address) }
	remoteRedis := redis && (!isLoopbackHost(store.Hostname()) || slices.ContainsFunc(store.Query()["addr"], remote))
	remoteUpstream := !isLoopbackHost(upstream.Hostname())
	usesApp := slices.ContainsFunc(c.Credentials, func(cred Credential) bool { return cred.App.Key != "" })
	const setCacheKey = "set it to 32 or more random characters, the same for all replicas"

	add(f.Mode&0o022 != 0, High, "",
		"other users can change the file and redirect all tokens", "chmod go-w FILE")
	add(f.Mode&0o044 != 0 && len(plain) > 0, High, "",
		"other users can read the file, which contains secrets",
		"chmod 600 FILE, and read secrets from the environment or from separate files")
	add(remoteUpstream && upstream.Scheme == "http", High, "upstream.url",
		"tokens are sent to the API unencrypted", "use https://")
	for i, h := range c.Hosts {
		base := h.Base()
		add((h.Kind == "api" || h.Credential) && base.Scheme == "http" && !isLoopbackHost(base.Hostname()), High, fmt.Sprintf("hosts[%d].url", i),
			"tokens are sent to the host unencrypted", "use https://")
	}
	add(c.Proxy.Listen != "" && !isLoopback(c.Proxy.Listen), Medium, "proxy.listen",
		"clients on other machines send their keys to the proxy unencrypted",
		"listen on 127.0.0.1, or use the proxy only in a network that you trust")
	add(public && !c.TLS.Enabled(), High, "listen",
		"clients on other machines send their tokens and keys unencrypted",
		"set tls, or listen on 127.0.0.1 behind a proxy that terminates TLS")
	add(remoteRedis && !hasPassword(store), High, "store.url",
		"Redis requires no password, so other machines may read cached responses and change spent budgets",
		"set a password in the URL: rediss://USER:PASSWORD@HOST")
	add(redis && c.Cache.Key == "" && len(c.TLS.Domains) > 0 && c.TLS.Storage == "store", High, "cache.key",
		"private keys of TLS certificates are stored in Redis unencrypted", setCacheKey)
	add(remoteRedis && !strings.HasPrefix(c.Store.URL, "rediss"), Medium, "store.url",
		"the connection to Redis is unencrypted", "use rediss:// instead of redis://")
	add(redis && c.Cache.Key == "", Medium, "cache.key",
		"responses, private ones included, are stored in Redis unencrypted", setCacheKey)
	add(!isLoopback(c.Admin.Listen) && !c.Admin.TLS.Enabled(), Medium, "admin.listen",
		"the admin token and the data of all clients are sent over the network unencrypted",
		"set admin.tls, or listen on 127.0.0.1 and connect through a tunnel")
	mismatch, fit := c.DialectMismatch()
	add(mismatch != "", Medium, "upstream.dialect", mismatch, fit)
	add(isShort(c.Admin.Token), Medium, "admin.token",
		"the token is short enough to be guessed", "use 32 random characters")
	prometheus := parsed(c.Admin.Prometheus.URL)
	add(c.Admin.Prometheus.Token != "" && prometheus.Scheme == "http" && !isLoopbackHost(prometheus.Hostname()), Medium, "admin.prometheus.url",
		"the token for Prometheus is sent over the network unencrypted", "use https://")
	add(slices.ContainsFunc(c.Webhooks.AllSecrets(), isShort), Medium, "webhooks.secret",
		"a secret is short enough to be guessed, and forged deliveries invalidate cached responses",
		"use 32 random characters")
	add(c.Callers.PassThrough && public, Medium, "callers.pass_through",
		"every client that reaches the listener may use the gateway, and anonymous requests share one budget",
		"set it to false and give each program a key under clients, or restrict access to the listener")
	add(c.Callers.Anonymous.Credential != "", Medium, "callers.anonymous.credential",
		"every client that reaches the listener reads what the credential sees",
		"use a token that sees public data only: a classic token without scopes, or a fine-grained one for public repositories")
	anyProxy := func(n netip.Prefix) bool { return n.Bits() == 0 }
	add(slices.ContainsFunc(c.Callers.Networks(), anyProxy), Medium, "callers.trusted_proxies",
		"every client can forge its address and bypass the limit per address", "list the addresses of your own proxies")
	for i, client := range c.Clients {
		key := fmt.Sprintf("clients[%d]", i)
		add(matchesAllTokens(client), High, key+".jwt.claims",
			"every holder of a token of this issuer becomes this client and uses its credentials",
			`require a claim that distinguishes tokens, such as {sub: "repo:acme/widgets:*"}`)
		add(openName.MatchString(client.JWT.Claims["sub"]), Medium, key+".jwt.claims.sub",
			"the asterisk extends a name: acme* also matches acme-evil", "end the name before the asterisk: acme/*")
		add(len(c.Credentials) > 1 && len(client.Credentials) >= len(c.Credentials), Medium, key+".credentials",
			"the client may use every credential, so a lost key exposes all of them", "list only the credentials that it needs")
	}
	add(c.Limits.ColdStart == "trust" && c.Store.URL == "memory:" && remoteUpstream, Medium, "limits.cold_start",
		"after a restart, spent budgets count as unspent, and the API may ban the token",
		"use ramp, or keep the ledger in a file: store.url memory:/FILE")
	for _, key := range plain {
		add(true, Medium, key, "the secret is in the file in plain text, and in every copy of the file",
			`use "${NAME}" for an environment variable, or "file:PATH" for a separate file`)
	}
	for i, issuer := range c.Issuers {
		key := fmt.Sprintf("issuers[%d]", i)
		ownAudience := func(a string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(issuer.URL, "/") }
		add(slices.ContainsFunc(issuer.Audiences, ownAudience), Medium, key+".audiences",
			"tokens for the issuer itself are accepted, and every program that signs in there has one",
			"let the issuer create tokens for this gateway, and list only that audience")
		add(strings.HasPrefix(issuer.URL, "http:"), Low, key+".url",
			"a program that takes over this local port can impersonate every client", "use https://")
		add(len(issuer.Algorithms) > maxAlgorithms, Low, key+".algorithms",
			"a weakness in any of these algorithms affects the gateway", "list only the algorithm that the issuer uses")
	}
	add(c.Admin.Token == "" && c.Admin.TLS.ClientCA == "", Low, "admin.token",
		"every user of this machine can read all statistics, purge the cache and reload the configuration", "set a token")
	_, hasHooks := p["webhooks.path"]
	add(hasHooks && c.Webhooks.Secret == "", Low, "webhooks.path",
		"no delivery is accepted without a secret, so a repository that became private stays cached until revalidation",
		"set webhooks.secret, or remove webhooks")
	add(redis && c.Cache.Key == "" && usesApp, Low, "cache.key",
		"without a key, replicas share no installation tokens, and each replica requests its own", setCacheKey)
	add(c.Limits.Inbound.Rate == 0 && public, Low, "limits.inbound.rate",
		"one client address can use the whole capacity of the gateway",
		"set a rate, unless all clients come through one address that has a limit")

	order := []Grade{High, Medium, Low}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Grade), slices.Index(order, b.Grade)),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return found
}

// plainSecrets returns the keys of the secrets that the file contains in plain text.
func plainSecrets(c *Config, p Positions) (keys []string) {
	eachValue(reflect.ValueOf(*c), "", func(v reflect.Value, _ reflect.StructTag, key string) {
		isSecret := v.Type() == reflect.TypeFor[credential.Secret]() && (key != "upstream.proxy" || hasPassword(parsed(c.Upstream.Proxy.Reveal())))
		if isSecret && !v.IsZero() && p.Plain(key) {
			keys = append(keys, key)
		}
	})
	if hasPassword(parsed(c.Store.URL)) && p.Plain("store.url") {
		keys = append(keys, "store.url")
	}
	return keys
}

// matchesAllTokens reports whether a client's claims do not distinguish the issuer's tokens.
func matchesAllTokens(c Client) bool {
	for name, pattern := range c.JWT.Claims {
		if name != "iss" && name != "aud" && !anyValue.MatchString(pattern) {
			return false
		}
	}
	return len(c.JWT.Claims) > 0
}

// parsed returns a URL of a valid configuration; a path of the memory store need not be a URL.
func parsed(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		return &url.URL{}
	}
	return u
}

func hasPassword(store *url.URL) bool {
	_, set := store.User.Password()
	return set || store.Query().Get("password") != ""
}

func isShort(s credential.Secret) bool { n := len(s.Reveal()); return n > 0 && n < minSecret }

// isLoopback reports whether an address, host:port, is reachable from this machine only.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopbackHost(host)
}

func isLoopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
