package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/policy"
)

const (
	maxContent  = 4 // windows of content creation that a ledger can hold (limits.MaxSpends)
	maxDrain    = time.Hour
	maxWindow   = 31 * 24 * time.Hour
	maxFresh    = 24 * time.Hour
	maxSecrets  = 9 // each is computed for every delivery
	maxLag      = time.Minute
	maxSkew     = 5 * time.Minute
	minCacheKey = 32
	minQueryTTL = time.Second
	maxQueryTTL = 10 * time.Minute // the credential may lose access
)

const httpsOff = "HTTPS is off, because tls.domains and tls.certificates are empty"

// wrong reports an invalid value at a key. If the key, or a key around it, already has a problem, wrong reports
// nothing.
func (d *decoder) wrong(key, format string, args ...any) {
	for k := key; k != ""; k = parent(k) {
		if d.failed[k] {
			return
		}
	}
	d.failed[key] = true
	p := Problem{Key: masked(key), Message: masked(fmt.Sprintf(format, args...))}
	if flag := d.at[key].flag; flag != "" {
		p.Key = flag
	} else if d.source.Path != "" {
		p.File = d.source.Path
		p.Line, p.Column = d.at.At(key)
	}
	d.problems = append(d.problems, p)
}

// require reports an invalid value at a key unless ok is true.
func (d *decoder) require(ok bool, key, format string, args ...any) {
	if !ok {
		d.wrong(key, format, args...)
	}
}

// parent returns the key around a key, or an empty text at the top level.
func parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// eachValue calls visit for every value below v that is not a struct or a list.
func eachValue(v reflect.Value, key string, visit func(v reflect.Value, tag reflect.StructTag, key string)) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			inner := strings.TrimPrefix(key+"."+yamlName(f), ".")
			switch kind := f.Type.Kind(); {
			case f.Anonymous: // the fields of f are visible, too
			case kind == reflect.Struct || kind == reflect.Slice:
				eachValue(v.FieldByIndex(f.Index), inner, visit)
			default:
				visit(v.FieldByIndex(f.Index), f.Tag, inner)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachValue(v.Index(i), fmt.Sprintf("%s[%d]", key, i), visit)
		}
	}
}

// check validates the values of a configuration and their relations. File paths become absolute or relative to the
// working directory.
func (d *decoder) check(c *Config) {
	eachValue(reflect.ValueOf(c).Elem(), "", func(v reflect.Value, tag reflect.StructTag, key string) {
		allowed := tag.Get("enum")
		value := fmt.Sprint(v.Interface())
		ok := allowed == "" || slices.Contains(strings.Split(allowed, ","), value)
		d.require(ok, key, "%q: must be one of %s", value, strings.ReplaceAll(allowed, ",", ", "))
	})
	d.checkListen(c)
	d.checkHosts(c)
	d.checkAdmin(&c.Admin)
	d.checkUpstream(c.Upstream)
	d.checkStore(c.Store)
	d.checkTLS(&c.TLS)
	d.distinct(c)
	d.checkClients(c)
	d.networks("callers.trusted_proxies", c.Callers.TrustedProxies)
	d.checkProxy(&c.Proxy)
	d.checkLimits(c.Limits)
	d.checkCache(c)
	d.within("cache.lag", c.Cache.Lag, 0, maxLag)
	poll := c.Statistics.Poll
	d.positive("statistics.poll.first", poll.First)
	d.positive("statistics.poll.budget", poll.Budget)
	d.require(poll.Factor >= 1, "statistics.poll.factor", "%v: must be 1 or more", poll.Factor)
	d.require(poll.Max >= poll.First, "statistics.poll.max", "%s: must not be less than first, %s", poll.Max, poll.First)
	hook := c.Webhooks.Path
	d.require(strings.HasPrefix(hook, "/_weir/") && path.Clean(hook) == hook, "webhooks.path",
		"%q: must begin with /_weir/ and contain no empty or dot segment", hook)
	d.within("webhooks.fresh", c.Webhooks.Fresh, 0, maxFresh)
	d.require(len(c.Webhooks.Secrets) == 0 || c.Webhooks.Secret != "", "webhooks.secrets", "requires webhooks.secret")
	d.require(len(c.Webhooks.Secrets) <= maxSecrets, "webhooks.secrets", "has %d secrets, at most %d are possible", len(c.Webhooks.Secrets), maxSecrets)
	for i, secret := range c.Webhooks.Secrets {
		d.require(secret != "", fmt.Sprintf("webhooks.secrets[%d]", i), "must not be empty")
	}
	d.require(c.Webhooks.Fresh == 0 || c.Webhooks.Secret != "", "webhooks.fresh", "requires webhooks.secret")
	sample := c.Telemetry.Sample
	d.require(sample >= 0 && sample <= 1, "telemetry.sample", "%v: must be from 0 to 1", sample)
	d.within("drain.delay", c.Drain.Delay, 0, maxDrain)
	d.within("drain.timeout", c.Drain.Timeout, time.Second, maxDrain)
}

func (d *decoder) checkListen(c *Config) {
	socket, ok := strings.CutPrefix(c.Listen, "unix:")
	if !ok {
		d.address("listen", c.Listen)
		return
	}
	d.require(socket != "", "listen", "%q has no path; use unix:/run/weir.sock", c.Listen)
	d.require(!c.TLS.Enabled(), "listen", "a Unix socket has no HTTPS; remove tls, or use host:port")
	mode, err := strconv.ParseUint(c.Socket.Mode, 8, 32)
	d.require(err == nil && mode <= 0o777, "socket.mode", "%q: must be octal digits such as 0660", c.Socket.Mode)
}

func (d *decoder) checkHosts(c *Config) {
	names, paths := map[string]bool{}, map[string]bool{}
	for i, host := range c.Hosts {
		key := fmt.Sprintf("hosts[%d]", i)
		d.require(IsDomainName(strings.TrimPrefix(host.Name, "*.")), key+".name", "%q: must be a host name in lower case, without scheme and port", host.Name)
		d.name(key+".name", host.Name, names)
		d.require(host.Name != c.APIName(), key+".name", "%q is the host of upstream.url, which needs no entry", host.Name)
		d.require(!host.IsWildcard() || host.Kind == "files" && !host.Credential && host.URL == "" && host.Path == "", key+".name",
			"%q: only files without url, path and credential may have a name with an asterisk; name the hosts that get credentials", host.Name)
		if host.URL != "" {
			d.baseURL(key+".url", host.URL, moveCredential)
		}
		if p := host.Path; p != "" {
			d.require(strings.HasPrefix(p, "/") && p != "/" && path.Clean(p) == p && !strings.HasPrefix(p, "/_weir"), key+".path",
				"%q: must begin with a slash and contain no empty or dot segment, as in /api/uploads", p)
			d.name(key+".path", p, paths)
		}
	}
}

func (d *decoder) checkProxy(p *ForwardProxy) {
	d.networks("proxy.allow", p.Allow)
	if p.Listen == "" {
		return
	}
	d.address("proxy.listen", p.Listen)
	if d.failed["proxy.listen"] {
		return
	}
	p.CA.Certificate, p.CA.Key = d.path(p.CA.Certificate), d.path(p.CA.Key)
	_, err := loadKeyPair(p.CA.Certificate, p.CA.Key)
	d.require(err == nil, "proxy.ca", "%v; create an authority with weir ca init", err)
}

// distinct reports a listener with the port of another one, unless both have different addresses. The operating system
// chooses port 0.
func (d *decoder) distinct(c *Config) {
	type listener struct{ key, address string }
	hosts := map[string]map[string]string{} // port -> host -> key
	for _, l := range []listener{{"listen", c.Listen}, {"admin.listen", c.Admin.Listen}, {"proxy.listen", c.Proxy.Listen}, {"tls.http", c.TLS.HTTP}} {
		host, port, err := net.SplitHostPort(l.address)
		if err != nil || port == "0" {
			continue
		}
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = ""
		}
		for other, key := range hosts[port] {
			d.require(host != "" && other != "" && host != other, l.key, "%q has the port of %s; choose another port", l.address, key)
		}
		if hosts[port] == nil {
			hosts[port] = map[string]string{}
		}
		hosts[port][host] = l.key
	}
}

func (d *decoder) networks(key string, texts []string) {
	for i, text := range texts {
		_, err := parseNetwork(text)
		d.require(err == nil, fmt.Sprintf("%s[%d]", key, i), "%q: must be an address or a network such as 10.0.0.0/8", text)
	}
}

func (d *decoder) address(key, value string) {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	d.require(err == nil, key, "%q is not an address; use host:port or :port, with a port up to 65535", value)
}

func (d *decoder) positive(key string, span time.Duration) {
	d.require(span > 0, key, "%s: must be more than 0", span)
}

func (d *decoder) within(key string, span, least, most time.Duration) {
	d.require(least <= span && span <= most, key, "%s: must be from %s to %s", durations.Text(span), durations.Text(least), durations.Text(most))
}

func (d *decoder) name(key, name string, seen map[string]bool) {
	d.require(name != "", key, "required; each needs its own")
	d.require(!seen[name], key, "%q is a duplicate; each needs its own", name)
	seen[name] = true
}

// bareVariable matches a reference to a variable without braces, which stays as it is.
var bareVariable = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)

// token reports a token that a header field cannot carry, for example a file of two lines.
func (d *decoder) token(key string, token credential.Secret) {
	invalid := func(r rune) bool { return r <= ' ' || r > '~' }
	d.require(!strings.ContainsFunc(token.Reveal(), invalid), key,
		"contains a space, a line break or another character that no token has; remove it")
	d.require(!bareVariable.MatchString(token.Reveal()), key, "is the name of a variable; write ${NAME} for its value")
}

func (d *decoder) checkAdmin(a *Admin) {
	d.address("admin.listen", a.Listen)
	_, _, err := net.SplitHostPort(a.Listen)
	d.require(a.Token != "" || a.TLS.ClientCA != "" || err != nil || isLoopback(a.Listen), "admin.token",
		"required because admin.listen %q is not on loopback; set it or tls.client_ca, or listen on 127.0.0.1", a.Listen)
	d.token("admin.token", a.Token)
	for i, host := range a.Hosts {
		d.require(host != "" && !strings.ContainsAny(host, ":/[]@ "), fmt.Sprintf("admin.hosts[%d]", i),
			"%q: must be only a name such as weir.internal, without scheme and port", host)
	}
	if a.TLS.Enabled() {
		a.TLS.Certificate, a.TLS.Key, a.TLS.ClientCA = d.path(a.TLS.Certificate), d.path(a.TLS.Key), d.path(a.TLS.ClientCA)
		_, err := a.TLS.Load()
		d.require(err == nil, "admin.tls", "%v%s", err, FileRemedy(err))
	}
	if a.Prometheus.URL != "" {
		d.baseURL("admin.prometheus.url", a.Prometheus.URL, "Weir sends only a bearer token (admin.prometheus.token)")
	}
	d.token("admin.prometheus.token", a.Prometheus.Token)
	d.require(a.Prometheus.Token == "" || a.Prometheus.URL != "", "admin.prometheus.url", "required because admin.prometheus.token is set")
}

func (d *decoder) checkUpstream(u Upstream) {
	d.require(u.URL != "", "upstream.url", "required: the base URL of the API")
	d.baseURL("upstream.url", u.URL, moveCredential)
	base := strings.TrimRight(u.URL, "/")
	d.require(base != "https://github.com" && base != "https://www.github.com", "upstream.url", "%q: is a web site; use https://api.github.com", u.URL)
	d.require(!strings.HasSuffix(base, "/graphql"), "upstream.url", "%q: is an endpoint of the API; remove /graphql", redacted(u.URL))
	for i, alias := range u.Aliases {
		key := fmt.Sprintf("upstream.aliases[%d]", i)
		if strings.Contains(alias, "://") {
			d.baseURL(key, alias, moveCredential)
			continue
		}
		parsed, err := url.Parse("//" + alias)
		d.require(err == nil && alias != "" && parsed.Host == alias && !strings.ContainsAny(alias, "*@"), key,
			"%q: must be a host such as api.example.com, or a base URL", redacted(alias))
	}
	d.checkEgressProxy(u)
	d.positive("upstream.timeout", u.Timeout)
	d.require(u.Egress != "", "upstream.egress", "must not be empty")
}

// checkEgressProxy checks the proxy of the upstream. The messages quote nothing, because the URL may contain a password.
func (d *decoder) checkEgressProxy(u Upstream) {
	if u.Proxy != "" {
		parsed, err := url.Parse(u.Proxy.Reveal())
		d.require(err == nil && parsed.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "socks5h"}, parsed.Scheme) &&
			strings.Trim(parsed.Path, "/") == "" && parsed.RawQuery == "" && parsed.Fragment == "", "upstream.proxy",
			"must be a URL such as http://USER:PASSWORD@proxy.example.com:3128, with the scheme http, https or socks5")
	}
	d.require(len(u.NoProxy) == 0 || u.Proxy != "", "upstream.no_proxy", "requires upstream.proxy")
	for i, exception := range u.NoProxy {
		d.require(exception != "" && !strings.ContainsAny(exception, " ,@") && !strings.Contains(exception, "://"), fmt.Sprintf("upstream.no_proxy[%d]", i),
			"%q: must be a name, .example.com, an address or a network, with an optional port", redacted(exception))
	}
}

// moveCredential is the remedy for a user name in the URL of an upstream.
const moveCredential = "move the credential to credentials"

// baseURL checks a base URL. The remedy names the place for a user name.
func (d *decoder) baseURL(key, text, remedy string) {
	parsed, err := url.Parse(text)
	switch {
	case badPort(parsed, err):
		d.wrong(key, "%q: the port must be a number from 1 to 65535, as in https://api.example.com:8443", redacted(text))
	case err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https":
		d.wrong(key, "%q: must be an absolute http or https URL", redacted(text))
	case parsed.User != nil:
		d.wrong(key, "contains a user name; %s", remedy)
	case strings.ContainsAny(text, "?#"):
		d.wrong(key, "%q: must have neither query nor fragment", redacted(text))
	}
}

func (d *decoder) checkStore(s Store) {
	if file, ok := strings.CutPrefix(s.URL, "memory:"); ok && (file == "" || filepath.IsAbs(file)) {
		return
	}
	schemes := []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}
	u, err := url.Parse(s.URL)
	d.require(!reservedInPassword(s.URL), "store.url",
		"%q: the user name or the password has a reserved character; write it as %%XX, such as %%2F for /", redacted(s.URL))
	d.require(!badPort(u, err), "store.url", "%q: the port must be a number from 1 to 65535, as in redis://127.0.0.1:6379", redacted(s.URL))
	d.require(err == nil && slices.Contains(schemes, u.Scheme) && u.Host != "", "store.url",
		"%q: must be memory:, memory:/FILE or a URL of one of %s", redacted(s.URL), strings.Join(schemes, ", "))
	if !d.failed["store.url"] {
		err := redisclient.Check(s.URL)
		d.require(err == nil, "store.url", "%q: %v; use a URL such as redis://HOST:6379/0", redacted(s.URL), err)
	}
}

// reservedInPassword reports whether a password in a URL, or a user name, has a character that ends the authority, or that is
// invalid in a URL. The errors of other checks would name a wrong part, or quote the rest of the password.
func reservedInPassword(text string) bool {
	_, text, _ = strings.Cut(text, "://")
	authority := text
	if end := strings.IndexAny(text, "/?#"); end >= 0 {
		authority = text[:end]
	}
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		_, err := url.Parse("//" + authority[:at] + "@host")
		return err != nil
	}
	rest, _, _ := strings.Cut(text[len(authority):], "=") // the value of an option may have an @
	return strings.Contains(rest, "@")
}

// badPort reports whether the result of [url.Parse] has an invalid port.
func badPort(u *url.URL, err error) bool {
	if err != nil {
		return strings.Contains(err.Error(), "invalid port")
	}
	for host := range strings.SplitSeq(u.Host, ",") { // sentinels and nodes may be a list
		if _, port, found := strings.Cut(host[strings.LastIndex(host, "]")+1:], ":"); found && port != "" {
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return true
			}
		}
	}
	return false
}

// label is a label of a domain name in lower case (RFC 5890 section 2.3.1).
const label = `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`

// IsDomainName reports whether a text is a name of two or more labels in lower case.
func IsDomainName(name string) bool { return domainName.MatchString(name) }

// domainName matches a name of two or more labels.
var domainName = regexp.MustCompile(`^(` + label + `\.)+` + label + `$`)

func (d *decoder) checkTLS(t *TLS) {
	for i, name := range t.Domains {
		key := fmt.Sprintf("tls.domains[%d]", i)
		_, notIP := netip.ParseAddr(name)
		switch {
		case strings.HasPrefix(name, "*."):
			d.wrong(key, "%q: wildcards need a DNS-01 challenge, which is not supported; add your own certificate to tls.certificates", name)
		case notIP == nil:
			d.wrong(key, "%q is an IP address; use a domain name", name)
		case len(name) > 253 || !domainName.MatchString(name):
			d.wrong(key, "%q: must be a full domain name in lower case such as weir.example.com (non-ASCII names as xn--…)", name)
		case slices.Contains(t.Domains[:i], name):
			d.wrong(key, "%q is a duplicate", name)
		}
	}
	d.require(t.Email == "" || strings.Contains(t.Email, "@"), "tls.email", "%q is not an email address", t.Email)
	ca, err := url.Parse(t.CA)
	d.require(t.CA == "" || err == nil && ca.Scheme == "https" && ca.Host != "" && ca.User == nil, "tls.ca",
		"%q: must be the absolute https URL of an ACME directory", redacted(t.CA))
	d.require(t.Storage != "", "tls.storage", "must be store or a directory")
	if t.Storage != "store" {
		t.Storage = d.path(t.Storage)
	}
	if t.HTTP != "" {
		d.address("tls.http", t.HTTP)
		d.require(t.Enabled(), "tls.http", httpsOff)
	}
	for i := range t.Certificates {
		c := &t.Certificates[i]
		c.Certificate, c.Key = d.path(c.Certificate), d.path(c.Key)
		_, err := loadKeyPair(c.Certificate, c.Key)
		d.require(err == nil, fmt.Sprintf("tls.certificates[%d]", i), "%v%s", err, FileRemedy(err))
	}
	t.ClientCA = d.path(t.ClientCA)
	_, err = t.Authorities()
	d.require(err == nil, "tls.client_ca", "%v%s", err, FileRemedy(err))
}

// FileRemedy returns what to do about a file that cannot be opened, as the end of a message, or an empty text.
func FileRemedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "; create the file, or correct its path"
	case errors.Is(err, fs.ErrPermission):
		return "; let the user of weir read the file"
	case errors.Is(err, syscall.EISDIR):
		return "; name a file in it"
	}
	return ""
}

// path makes a relative path relative to the directory of the configuration file. An empty path stays empty.
func (d *decoder) path(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.source.Path), path)
}

// checkClients checks credentials, issuers and the clients that refer to them.
func (d *decoder) checkClients(c *Config) {
	catalogue := policy.CatalogueOf(c.Upstream.Dialect)
	credentials, issuers := map[string]bool{}, map[string]bool{}
	accounts := map[string]string{} // by credential
	for i, held := range c.Credentials {
		accounts[held.Name] = cmp.Or(held.Account, held.Name)
		key := fmt.Sprintf("credentials[%d]", i)
		d.checkCredential(key, held, credentials)
		d.checkAccount(key, held, c.Credentials[:i])
	}
	issuerURLs := map[string]bool{}
	for i, issuer := range c.Issuers {
		key := fmt.Sprintf("issuers[%d]", i)
		d.name(key+".url", issuer.URL, issuerURLs)
		d.checkIssuer(key, issuer, issuers)
	}
	names, keys, guaranteed := map[string]bool{}, map[string]string{}, map[string]float64{}
	groups := map[string]bool{}
	for i, g := range c.Groups {
		key := fmt.Sprintf("groups[%d]", i)
		d.name(key+".name", g.Name, names) // groups and clients have names of one kind
		groups[g.Name] = true
		var credentials []string
		for _, client := range c.Clients {
			if client.Group == g.Name {
				credentials = append(credentials, client.Credentials...)
			}
		}
		d.checkGuarantee(key, g.Guarantee, g.Limit, credentials, accounts, guaranteed)
	}
	for i, client := range c.Clients {
		key := fmt.Sprintf("clients[%d]", i)
		d.name(key+".name", client.Name, names)
		if client.Key != "" {
			d.checkClientKey(key, client.Key, keys)
		}
		d.require(len(client.Credentials) > 0, key+".credentials", "must name at least one credential that the client may spend, such as [main]")
		for j, name := range client.Credentials {
			d.require(credentials[name], fmt.Sprintf("%s.credentials[%d]", key, j), "%q is not among credentials; %s", name, suggestionOf(credentials, "credentials"))
		}
		for name, list := range map[string][]string{
			"methods": client.Methods, "operations": client.Operations, "repositories": client.Repositories, "organizations": client.Organizations,
			"graphql.operations": client.GraphQL.Operations, "graphql.repositories": client.GraphQL.Repositories, "graphql.persisted": client.GraphQL.Persisted,
		} {
			d.require(list == nil || len(list) > 0, key+"."+name, "is empty, which would permit all; list the permitted ones, or remove the key")
		}
		d.checkGraphQL(key+".graphql", client.GraphQL)
		d.checkNames(key, client)
		d.require(client.Share >= 1 && client.Share <= 1000, key+".share", "%d: must be from 1 to 1000", client.Share)
		d.require(client.Group == "" || groups[client.Group], key+".group", "%q is not among groups; %s", client.Group, suggestionOf(groups, "groups"))
		d.require(client.TagLimit >= 0 && client.TagLimit <= 1, key+".tag_limit", "%v: must be from 0 to 1", client.TagLimit)
		for name, l := range map[string]policy.WriteLimits{"writes": client.Writes, "tag_writes": client.TagWrites} {
			for window, most := range map[string]int{"per_minute": l.PerMinute, "per_hour": l.PerHour} {
				d.require(most >= 0, key+"."+name+"."+window, "%d: must be 1 or more, or 0 for no limit", most)
				d.require(int64(most) <= policy.RateLimit.Most, key+"."+name+"."+window, "%d: must be at most %d", most, policy.RateLimit.Most)
			}
		}
		d.checkGuarantee(key, client.Guarantee, client.Limit, client.Credentials, accounts, guaranteed)
		d.checkIdentity(key, client, c.TLS, issuers)
		d.oneOf(key+".methods", client.Methods, []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
		d.checkOperations(key+".operations", client.Operations, catalogue)
	}
	for i, client := range c.Clients {
		for _, name := range slices.Sorted(maps.Keys(names)) { // the names of clients, groups and tags must differ
			setting, tagged := "tag_limit", client.TagLimit != 0
			if !tagged {
				setting, tagged = "tag_writes", client.TagWrites != policy.WriteLimits{}
			}
			d.require(!tagged || !strings.HasPrefix(name, client.Name+"/"), fmt.Sprintf("clients[%d].%s", i, setting),
				"%q could be a tag of this client; rename the client or group %q", name, name)
		}
	}
	lent := c.Callers.Anonymous
	d.require(c.Callers.PassThrough || len(c.Clients) > 0 || lent.Credential != "", "callers.pass_through",
		"is false and there are no clients, so every request would be refused")
	if lent.Credential == "" {
		d.require(len(lent.Operations) == 0, "callers.anonymous.credential", "required: the name of one of the credentials")
		return
	}
	_, known := accounts[lent.Credential]
	d.require(known, "callers.anonymous.credential", "%q is not one of the credentials; %s", lent.Credential, suggestionOf(credentials, "credentials"))
	d.require(!names[AnonymousClient], "callers.anonymous", "a client or group has the name %q, which is that of anonymous clients; rename it", AnonymousClient)
	d.require(len(lent.Operations) > 0, "callers.anonymous.operations", "required: the operations that anonymous clients may read, such as repos/get")
	d.checkOperations("callers.anonymous.operations", lent.Operations, catalogue)
}

func (d *decoder) checkOperations(key string, patterns []string, catalogue *policy.Catalogue) {
	for i, pattern := range patterns {
		d.require(catalogue.Names(pattern), fmt.Sprintf("%s[%d]", key, i), "%q: matches no operation; %s", pattern, suggestion(catalogue, pattern))
	}
}

// Patterns of clients[].repositories and clients[].organizations.
var (
	repositoryPattern = regexp.MustCompile(`^!?[a-zA-Z0-9_*-]+/[a-zA-Z0-9_.*-]+$`)
	ownerPattern      = regexp.MustCompile(`^[a-zA-Z0-9_*-]+$`)
)

// checkNames checks the repositories and organizations of a client.
func (d *decoder) checkNames(key string, client Client) {
	excludesOnly := len(client.Repositories) > 0
	for i, pattern := range client.Repositories {
		d.require(repositoryPattern.MatchString(pattern), fmt.Sprintf("%s.repositories[%d]", key, i), "%q: must be OWNER/NAME or !OWNER/NAME, such as acme/* or !acme/secret", pattern)
		excludesOnly = excludesOnly && strings.HasPrefix(pattern, "!")
	}
	d.require(!excludesOnly, key+".repositories", "has only exceptions, so no repository is permitted; add a pattern such as */*")
	for i, name := range client.Organizations {
		d.require(ownerPattern.MatchString(name), fmt.Sprintf("%s.organizations[%d]", key, i), "%q: must be the name of an organization or a user; list repositories in %s.repositories", name, key)
	}
	d.require(client.JWT.Repositories == "" || client.JWT.Issuer != "", key+".jwt.repositories", "needs %s.jwt.issuer", key)
	d.require(client.JWT.Repositories == "" || client.Key == "" && client.Certificate == "" || len(client.Repositories) > 0, key+".repositories",
		"required: a key or a certificate has no claim, so it would permit all repositories")
}

// checkGraphQL checks the rules for GraphQL calls.
func (d *decoder) checkGraphQL(key string, g policy.GraphQLRules) {
	for name, value := range map[string]int{"depth": g.Depth, "nodes": g.Nodes, "cost": g.Cost} {
		d.require(value >= 0, key+"."+name, "%d: must not be negative", value)
	}
	for i, pattern := range g.Repositories {
		owner, name, ok := strings.Cut(pattern, "/")
		d.require(ok && owner != "" && name != "", fmt.Sprintf("%s.repositories[%d]", key, i), "%q: must be OWNER/NAME, such as acme/*", pattern)
	}
	for i, sum := range g.Persisted {
		b, err := hex.DecodeString(sum)
		d.require(err == nil && len(b) == sha256.Size && sum == strings.ToLower(sum), fmt.Sprintf("%s.persisted[%d]", key, i),
			"must be 64 lower-case hexadecimal digits: the SHA-256 of the query")
	}
}

// rounding is the error that a sum of fractions may have.
const rounding = 1e-9

// checkGuarantee adds the guarantee of a client or group to the sum of each account of some credentials.
func (d *decoder) checkGuarantee(key string, part, limit float64, credentials []string, accounts map[string]string, sums map[string]float64) {
	d.require(limit > 0 && limit <= 1, key+".limit", "%v: must be above 0 and at most 1", limit)
	d.require(part >= 0 && part <= limit, key+".guarantee", "%v: must be from 0 to the limit, %v", part, limit)
	var own []string
	for _, name := range credentials {
		account := accounts[name]
		if slices.Contains(own, account) {
			continue
		}
		own = append(own, account)
		sums[account] += part
		d.require(sums[account] <= 1+rounding, key+".guarantee", "%v: the guarantees for credential %q exceed 1; lower one of them", part, name)
	}
}

func (d *decoder) oneOf(key string, values, allowed []string) {
	for i, value := range values {
		d.require(slices.Contains(allowed, value), fmt.Sprintf("%s[%d]", key, i),
			"%q: must be one of %s", value, strings.Join(allowed, ", "))
	}
}

func (d *decoder) checkCredential(key string, c Credential, names map[string]bool) {
	d.name(key+".name", c.Name, names)
	d.token(key+".token", c.Token)
	if c.App.ID == "" && c.App.Key == "" && c.App.Installation == 0 && len(c.App.Permissions) == 0 {
		d.require(c.Token != "", key+".token", "required: the token, or app for an installed app")
		d.require(c.Kind.Base() != policy.OAuthApp || strings.Contains(c.Token.Reveal(), ":"), key+".token", "must be id:secret for kind %s", c.Kind)
		return
	}
	switch {
	case c.Kind.Base() != policy.Installation:
		d.wrong(key+".app", "requires kind installation or enterprise_installation, not %q", c.Kind)
	case c.Token != "":
		d.wrong(key+".token", "must be empty if app is set; remove token or app")
	}
	d.require(c.App.ID != "", key+".app.id", "required: the number or client ID of the app")
	d.require(c.App.Installation >= 1, key+".app.installation", "%d: must be the number of the installation", c.App.Installation)
	_, err := credential.ParseAppKey(c.App.Key)
	d.require(c.App.Key != "", key+".app.key", "required: the private key of the app, such as file:app.pem")
	d.require(err == nil, key+".app.key", "%v", err)
	for name, level := range c.App.Permissions {
		d.require(level == "read" || level == "write" || level == "admin", key+".app.permissions."+name,
			"%q: must be one of read, write, admin", level)
	}
}

// checkAccount reports a credential that the ledger would count in another account, or by other limits, than an earlier one of the
// same account. Both together would exceed the limits of the account.
func (d *decoder) checkAccount(key string, c Credential, earlier []Credential) {
	for i, other := range earlier {
		same := c.Token != "" && c.Token == other.Token || c.App.ID != "" && c.App.Installation == other.App.Installation
		d.require(!same || c.Account == other.Account, key+".account", "%q: credentials[%d] is the same credential, but has the account %q; remove one of them, or give both one account",
			c.Account, i, other.Account)
		d.require(c.Kind == other.Kind || !same && (c.Account == "" || c.Account != other.Account), key+".kind",
			"%q: credentials[%d] has the same account, but the kind %q; correct one of them, because an account has one kind", c.Kind, i, other.Kind)
	}
}

func (d *decoder) checkIssuer(key string, issuer credential.Issuer, names map[string]bool) {
	d.name(key+".name", issuer.Name, names)
	err := credential.CheckIssuerURL(issuer.URL)
	d.require(err == nil, key+".url", "%q: %v", redacted(issuer.URL), err)
	d.require(len(issuer.Audiences) > 0 && !slices.Contains(issuer.Audiences, ""), key+".audiences",
		"must name this gateway; otherwise tokens for other services would be accepted")
	d.require(len(issuer.Algorithms) > 0, key+".algorithms", "must not be empty")
	d.oneOf(key+".algorithms", issuer.Algorithms, credential.SigningAlgorithms())
	d.within(key+".skew", issuer.Skew, 0, maxSkew)
}

// checkClientKey checks the key hash of a client. seen maps hashes to clients. The message does not quote an invalid
// hash, because an invalid hash may be the key itself.
func (d *decoder) checkClientKey(client, hash string, seen map[string]string) {
	text, ok := strings.CutPrefix(hash, "sha256:")
	sum, err := hex.DecodeString(text)
	owner, taken := seen[string(sum)]
	switch {
	case !ok || err != nil || len(sum) != 32:
		d.wrong(client+".key", "must be sha256: and 64 hexadecimal digits, not the key; create both with weir key new")
	case taken:
		d.wrong(client+".key", "is also the key of %s; each client needs its own", owner)
	default:
		seen[string(sum)] = client
	}
}

// checkIdentity checks the certificate and the tokens that identify a client.
func (d *decoder) checkIdentity(key string, client Client, t TLS, issuers map[string]bool) {
	hasTokens := client.JWT.Issuer != "" || len(client.JWT.Claims) > 0
	d.require(client.Key != "" || client.Certificate != "" || hasTokens, key+".key",
		"required; create one with weir key new, or set certificate or jwt")
	if client.Certificate != "" {
		certificate, err := credential.ParseCertificate(client.Certificate)
		switch {
		case err != nil:
			d.wrong(key+".certificate", "%q: %v", client.Certificate, err)
		case !t.Enabled():
			d.wrong(key+".certificate", httpsOff)
		case certificate.NeedsAuthority() && t.ClientCA == "":
			d.wrong(key+".certificate", "%q: a name needs tls.client_ca, which is not set", client.Certificate)
		}
	}
	if !hasTokens {
		d.require(client.JWT.Tag == "", key+".jwt.tag", "needs jwt.issuer and jwt.claims")
		return
	}
	d.require(issuers[client.JWT.Issuer], key+".jwt.issuer", "%q is not among issuers; %s", client.JWT.Issuer, suggestionOf(issuers, "issuers"))
	d.require(len(client.JWT.Claims) > 0, key+".jwt.claims",
		`required; select this client's tokens, for example {sub: "repo:acme/widgets:*"}`)
	for name, pattern := range client.JWT.Claims {
		d.require(pattern != "", key+".jwt.claims."+name, "must not be empty")
	}
}

func (d *decoder) checkLimits(l Limits) {
	// Every number, window and duration of the upstream's limits is positive.
	eachValue(reflect.ValueOf(l.Limits), "limits", func(v reflect.Value, _ reflect.StructTag, key string) {
		switch value := v.Interface().(type) {
		case int:
			d.require(value >= 1, key, "%d: must be 1 or more", value)
			d.require(int64(value) <= policy.RateLimit.Most, key, "%d: must be at most %d", value, policy.RateLimit.Most)
		case float64:
			d.require(value > 0, key, "%v: must be more than 0", value)
		case time.Duration:
			d.positive(key, value)
			d.require(value <= maxWindow, key, "%s: must be at most %s", durations.Text(value), durations.Text(maxWindow))
		}
	})
	d.require(len(l.Content) <= maxContent, "limits.content", "%d windows; at most %d are allowed", len(l.Content), maxContent)
	for i, w := range l.Content {
		same := func(other policy.Window) bool { return other.Window == w.Window }
		d.require(!slices.ContainsFunc(l.Content[:i], same), fmt.Sprintf("limits.content[%d].window", i), "%s is a duplicate", w.Window)
	}
	d.require(l.Headroom >= 0 && l.Headroom < 1, "limits.headroom", "%v: must be from 0 to below 1", l.Headroom)
	d.require(l.Probes >= 1, "limits.probes", "%d: must be 1 or more", l.Probes)
	in := l.Inbound
	d.require(in.Rate >= 0, "limits.inbound.rate", "%d: must be 1 or more, or 0 for no limit", in.Rate)
	d.require(in.Burst > 0 || in.Burst == 0 && in.Rate <= 0, "limits.inbound.burst", "%d: must be 1 or more", in.Burst)
	d.positive("limits.inbound.body", in.Body)
}

func (d *decoder) checkCache(c *Config) {
	d.require(c.Cache.Memory >= 1<<20, "cache.memory", "%s: must be 1MiB or more", c.Cache.Memory)
	catalogue, n := policy.CatalogueOf(c.Upstream.Dialect), len(c.Cache.Key.Reveal())
	d.require(n == 0 || n >= minCacheKey, "cache.key", "%d characters: must be %d or more", n, minCacheKey)
	d.checkQueryRules(c.Cache.GraphQL.Rules)
	for id, o := range c.Cache.Operations {
		key := "cache.operations." + id
		switch op := catalogue.Operation(id); {
		case op == nil:
			d.wrong(key, "unknown operation; %s", suggestion(catalogue, id))
		case op.Cache.Class == policy.Never:
			d.wrong(key, "is never cached")
		case op.Cache.Class != policy.Shared && op.Cache.Class != policy.Immutable && o.TTL != 0:
			d.wrong(key, "is neither reference data nor immutable; remove ttl, because the upstream sets the lifetime of its responses")
		}
		if o.Coalesce && o.MaxTTL == 0 || o.TTL != 0 {
			d.positive(key+".ttl", o.TTL)
		}
	}
}

// graphQLName matches a name in GraphQL.
var graphQLName = regexp.MustCompile(`^[_A-Za-z][_0-9A-Za-z]*$`)

// checkQueryRules checks the rules for stored GraphQL responses.
func (d *decoder) checkQueryRules(rules []policy.GraphQLCacheRule) {
	fields := policy.QueryFields()
	for i, rule := range rules {
		key := fmt.Sprintf("cache.graphql.rules[%d]", i)
		same := func(other policy.GraphQLCacheRule) bool {
			return other.Operation == rule.Operation && other.Field == rule.Field
		}
		switch {
		case (rule.Operation == "") == (rule.Field == ""):
			d.wrong(key, "needs either operation or field")
		case slices.ContainsFunc(rules[:i], same):
			d.wrong(key, "%q is a duplicate", rule.Operation+rule.Field)
		case rule.Operation != "":
			d.require(graphQLName.MatchString(rule.Operation), key+".operation", "%q is not a name in GraphQL", rule.Operation)
		case rule.Field == "rateLimit" || rule.Field == "relay":
			d.wrong(key+".field", "%q may report the budget of the moment and cannot be stored", rule.Field)
		case !slices.Contains(fields, rule.Field):
			d.wrong(key+".field", "%q: unknown root field; %s", rule.Field, suggestionAmong(fields, rule.Field))
		}
		d.within(key+".ttl", rule.TTL, minQueryTTL, maxQueryTTL)
	}
}

// suggestionAmong returns the remedy for an unknown name.
func suggestionAmong(names []string, name string) string {
	if near := nearest(name, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "use one of " + strings.Join(names, ", ")
}

// suggestionOf returns the remedy for a name that a list of the configuration lacks.
func suggestionOf(names map[string]bool, list string) string {
	if len(names) == 0 {
		return "add it to " + list
	}
	return "add it to " + list + ", or use one of " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func suggestion(catalogue *policy.Catalogue, id string) string {
	var names []string
	for _, op := range catalogue.Operations() {
		names = append(names, op.ID)
	}
	if near := nearest(id, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "list the names with weir catalogue"
}
