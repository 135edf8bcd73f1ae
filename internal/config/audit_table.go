package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/weirgate/weir/internal/credential"
)

// row is one risk.
type row struct {
	grade   Grade
	why, do string
	at      func(AuditedFile) []string // the keys where it is
}

// shortest is how long a secret must be that nothing but its length protects.
const shortest = 16

// table is every risk that is looked for. It is not changed.
var table = []row{
	{High, "others than its owner may change the file, and so send every token where they like", "chmod go-w FILE",
		one("", func(f AuditedFile) bool { return f.Mode&0o022 != 0 })},
	{High, "others than its owner may read the file, and it holds secrets", "chmod 600 FILE, and read secrets from the environment or a file of their own",
		one("", func(f AuditedFile) bool { return f.Mode&0o044 != 0 && len(written(f)) > 0 })},
	{High, "tokens cross the network to the API unencrypted", "write https://",
		one("upstream.url", func(f AuditedFile) bool {
			u, err := url.Parse(f.Config.Upstream.URL)
			return err == nil && u.Scheme == "http" && !near(u.Hostname())
		})},
	{High, "clients send their tokens and keys unencrypted, from other machines too", "set tls, or listen on 127.0.0.1, behind what ends TLS on this machine",
		one("listen", func(f AuditedFile) bool { return exposed(f) && !f.Config.TLS.Enabled() })},
	{High, "whoever reaches this Redis may read what is cached and rewrite what was spent: it asks for no password", "set one, in the URL: rediss://USER:PASSWORD@HOST",
		one("store.url", func(f AuditedFile) bool { return far(f) && !password(f.Config.Store.URL) })},
	{High, "private keys of the listener's certificates lie open in Redis", "set it, to the same 32 characters or more for all replicas",
		one("cache.key", func(f AuditedFile) bool {
			return shared(f) && f.Config.Cache.Key == "" && len(f.Config.TLS.Domains) > 0 && f.Config.TLS.Storage == "store"
		})},
	{High, "everybody to whom the issuer gives a token is this client, and spends its credentials", "name a claim by which its tokens differ, such as {sub: \"repo:acme/widgets:*\"}",
		each(func(c *Config, i int) (string, bool) { return ".jwt.claims", everybody(c.Clients[i]) })},
	{Medium, "its asterisk stands in the middle of a name: whoever takes a longer one, acme-evil for acme*, is this client too", "end the name before it: acme/*",
		each(func(c *Config, i int) (string, bool) { return ".jwt.claims.sub", alike(c.Clients[i]) })},
	{Medium, "tokens count that are for the issuer itself, as every program has that signs in with it", "have the issuer make tokens for this gateway, and name that audience alone",
		eachIssuer(".audiences", itself)},
	{Medium, "what goes to Redis and comes from it crosses the network unencrypted", "write rediss:// for redis://",
		one("store.url", func(f AuditedFile) bool { return far(f) && !strings.HasPrefix(f.Config.Store.URL, "rediss") })},
	{Medium, "answers lie open in Redis, those that only some may see among them", "set it, to the same 32 characters or more for all replicas",
		one("cache.key", func(f AuditedFile) bool { return shared(f) && f.Config.Cache.Key == "" })},
	{Medium, "the admin token, and who spends what, cross the network unencrypted", "set admin.tls, or listen on 127.0.0.1 and come by a tunnel",
		one("admin.listen", func(f AuditedFile) bool { return !nearAddress(f.Config.Admin.Listen) && !f.Config.Admin.TLS.Enabled() })},
	{Medium, "is short enough to be guessed: nothing slows guessing down", "make it 32 random characters",
		one("admin.token", func(f AuditedFile) bool { return short(f.Config.Admin.Token) })},
	{Medium, "is short enough to be guessed, and who has it may have what is cached asked for again and again", "make it 32 random characters",
		one("webhooks.secret", func(f AuditedFile) bool { return short(f.Config.Webhooks.Secret) })},
	{Medium, "whoever reaches the listener may use it, with a token of their own or with none, and spends what anonymous calls of this egress have", "set it to false and give each program a key under clients, or let nobody else reach the listener",
		one("callers.pass_through", func(f AuditedFile) bool { return f.Config.Callers.PassThrough && exposed(f) })},
	{Medium, "every client is believed about its own address: a limit by address is none", "list the addresses of your own proxies",
		one("callers.trusted_proxies", func(f AuditedFile) bool {
			return slices.ContainsFunc(f.Config.Callers.Networks(), func(n netip.Prefix) bool { return n.Bits() == 0 })
		})},
	{Medium, "may spend every credential: its key, lost, is all of them lost", "list those that it needs",
		each(func(c *Config, i int) (string, bool) {
			return ".credentials", len(c.Credentials) > 1 && len(c.Clients[i].Credentials) >= len(c.Credentials)
		})},
	{Medium, "after a start everything counts as unspent: what was spent before it is spent again, and the API may ban the token", "leave it at ramp, or keep the ledger: store.url memory:/FILE",
		one("limits.cold_start", func(f AuditedFile) bool {
			return f.Config.Limits.ColdStart == "trust" && f.Config.Store.URL == "memory:" && !nearUpstream(f)
		})},
	{Medium, "stands in the file in plain text: whoever sees a copy of the file has it", `write "${NAME}" for a variable, or "file:PATH" for a file of its own`,
		written},
	{Low, "anybody on this machine may see who spends what, purge and reload", "set it",
		one("admin.token", func(f AuditedFile) bool { return f.Config.Admin.Token == "" && f.Config.Admin.TLS.ClientCA == "" })},
	{Low, "no deliveries are received without a secret: what has become private is shown until it is validated", "set webhooks.secret, or leave webhooks out",
		one("webhooks.path", func(f AuditedFile) bool { return f.Positions.Given("webhooks.path") && f.Config.Webhooks.Secret == "" })},
	{Low, "whoever takes this port of this machine says who the clients are", "write https://",
		eachIssuer(".url", func(i Issuer) bool { return strings.HasPrefix(i.URL, "http:") })},
	{Low, "names more algorithms than an issuer signs by: each is one more whose weakness counts here", "name the one that it signs by",
		eachIssuer(".algorithms", func(i Issuer) bool { return len(i.Algorithms) > usual })},
	{Low, "without it each replica asks for installation tokens of its own: they are shared sealed, or not at all", "set it, to the same 32 characters or more for all replicas",
		one("cache.key", func(f AuditedFile) bool {
			return shared(f) && f.Config.Cache.Key == "" && slices.ContainsFunc(f.Config.Credentials, func(c Credential) bool { return c.App.Key != "" })
		})},
	{Low, "one address may keep the gateway busy", "set it, unless all clients come by one address that has a bound of its own",
		one("limits.inbound.rate", func(f AuditedFile) bool { return f.Config.Limits.Inbound.Rate == 0 && exposed(f) })},
}

// one is a risk of one key.
func one(key string, when func(AuditedFile) bool) func(AuditedFile) []string {
	return func(f AuditedFile) []string {
		if when(f) {
			return []string{key}
		}
		return nil
	}
}

// each is a risk of every client, at the key below it that when names.
func each(when func(c *Config, i int) (string, bool)) func(AuditedFile) []string {
	return func(f AuditedFile) (keys []string) {
		for i := range f.Config.Clients {
			if key, is := when(f.Config, i); is {
				keys = append(keys, fmt.Sprintf("clients[%d]%s", i, key))
			}
		}
		return keys
	}
}

// written are the keys of the secrets that stand in the file.
func written(f AuditedFile) (keys []string) {
	eachSecret(reflect.ValueOf(*f.Config), "", func(key string) {
		if f.Positions.Plain(key) {
			keys = append(keys, key)
		}
	})
	if password(f.Config.Store.URL) && f.Positions.Plain("store.url") {
		keys = append(keys, "store.url")
	}
	return keys
}

// eachSecret calls visit with the key of every secret that is set.
func eachSecret(v reflect.Value, key string, visit func(key string)) {
	if v.Type() == reflect.TypeFor[credential.Secret]() {
		if v.String() != "" {
			visit(key)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
			eachSecret(v.Field(i), strings.Trim(key+"."+name, "."), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachSecret(v.Index(i), fmt.Sprintf("%s[%d]", key, i), visit)
		}
	}
}

// exposed reports whether other machines reach the clients' listener.
func exposed(f AuditedFile) bool { return !nearAddress(f.Config.Listen) }

// shared reports whether the store is a Redis.
func shared(f AuditedFile) bool { return !strings.HasPrefix(f.Config.Store.URL, "memory:") }

// far reports whether any server of the store is another machine.
func far(f AuditedFile) bool {
	u, err := url.Parse(f.Config.Store.URL)
	if err != nil || !shared(f) {
		return false
	}
	if !near(u.Hostname()) {
		return true
	}
	for _, address := range u.Query()["addr"] {
		if !nearAddress(address) {
			return true
		}
	}
	return false
}

// password reports whether a store's URL has one.
func password(store string) bool {
	u, err := url.Parse(store)
	if err != nil {
		return false
	}
	_, set := u.User.Password()
	return set || u.Query().Get("password") != ""
}

// near reports whether a host is this machine.
func near(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// nearAddress is near of the host in an address, host:port.
func nearAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && near(host)
}

// nearUpstream reports whether the API is on this machine: a reference service to try
// things with.
func nearUpstream(f AuditedFile) bool {
	u, err := url.Parse(f.Config.Upstream.URL)
	return err == nil && near(u.Hostname())
}

func short(s credential.Secret) bool { n := len(s.Reveal()); return n > 0 && n < shortest }
