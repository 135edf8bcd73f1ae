package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
)

// wrong reports a value that was given at key, or that a default left there.
// What has a report already, alone or with all around it, gets no second one.
func (d *decoder) wrong(key, format string, args ...any) {
	for k := key; k != ""; k = parent(k) {
		if d.failed[k] {
			return
		}
	}
	d.failed[key] = true
	p := Problem{Key: key, Message: fmt.Sprintf(format, args...)}
	switch at, given := d.at[key]; {
	case at.flag != "":
		p.Key = at.flag
	case given:
		p.File, p.Line, p.Column = d.source.Path, at.line, at.column
	case d.source.Path != "":
		at := d.around(key)
		p.File, p.Line, p.Column = d.source.Path, at.line, at.column
	}
	d.problems = append(d.problems, p)
}

// around is where a value that is missing belongs: the nearest place around it
// that was given.
func (d *decoder) around(key string) position {
	for key != "" {
		key = parent(key)
		if at, given := d.at[key]; given && at.flag == "" {
			return at
		}
	}
	return position{line: 1, column: 1}
}

// parent is the key around a key, empty for the whole file.
func parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// check holds each value against its range and against the others.
func (d *decoder) check(c *Config) {
	d.enums(reflect.ValueOf(c).Elem(), "")
	d.address("listen", c.Listen)
	d.admin(&c.Admin)
	d.upstream(c.Upstream)
	d.store(c.Store)
	d.authorities(&c.TLS)
	issuers := d.issuers(c.Issuers)
	d.clients(c)
	for i, client := range c.Clients {
		d.recognized(fmt.Sprintf("clients[%d]", i), client, c, issuers)
	}
	for i, proxy := range c.Callers.TrustedProxies {
		if _, err := parseNetwork(proxy); err != nil {
			d.wrong(fmt.Sprintf("callers.trusted_proxies[%d]", i), "%q: must be an address or a network such as 10.0.0.0/8", proxy)
		}
	}
	d.limits(c.Limits)
	d.cache(c)
	d.statistics(c.Statistics)
	if !strings.HasPrefix(c.Webhooks.Path, "/_weir/") || path.Clean(c.Webhooks.Path) != c.Webhooks.Path {
		d.wrong("webhooks.path", "%q: must begin with /_weir/ and hold no empty or dot segment", c.Webhooks.Path)
	}
	d.tls(c)
	if c.Telemetry.Sample < 0 || c.Telemetry.Sample > 1 {
		d.wrong("telemetry.sample", "%v: must be from 0 to 1", c.Telemetry.Sample)
	}
	d.drain(c.Drain)
}

// enums holds every field with an enum tag against it.
func (d *decoder) enums(v reflect.Value, key string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			inner := key
			if !f.Anonymous {
				name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				inner = strings.TrimPrefix(key+"."+name, ".")
			}
			if allowed := f.Tag.Get("enum"); allowed != "" {
				if value := fmt.Sprint(v.Field(i).Interface()); !slices.Contains(strings.Split(allowed, ","), value) {
					d.wrong(inner, "%q: must be one of %s", value, strings.ReplaceAll(allowed, ",", ", "))
				}
				continue
			}
			d.enums(v.Field(i), inner)
		}
	case reflect.Slice:
		for i := range v.Len() {
			d.enums(v.Index(i), fmt.Sprintf("%s[%d]", key, i))
		}
	}
}

func (d *decoder) address(key, value string) {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		d.wrong(key, "%q is not an address: write host:port or :port", value)
	}
}

func (d *decoder) upstream(u Upstream) {
	parsed, err := url.Parse(u.URL)
	switch {
	case u.URL == "":
		d.wrong("upstream.url", "required: the base URL of the API")
	case err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https":
		d.wrong("upstream.url", "%q: must be an absolute http or https URL", redacted(u.URL))
	case parsed.User != nil:
		d.wrong("upstream.url", "holds a user name: credentials belong under credentials")
	case strings.ContainsAny(u.URL, "?#"):
		d.wrong("upstream.url", "%q: must have neither query nor fragment", redacted(u.URL))
	}
	d.positive("upstream.timeout", u.Timeout)
	if u.Egress == "" {
		d.wrong("upstream.egress", "must not be empty")
	}
}

var storeSchemes = []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}

func (d *decoder) store(s Store) {
	if file, ok := strings.CutPrefix(s.URL, "memory:"); ok && (file == "" || filepath.IsAbs(file)) {
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil || !slices.Contains(storeSchemes, u.Scheme) || u.Host == "" {
		d.wrong("store.url", "%q: must be memory:, memory:/FILE or a URL of one of %s", redacted(s.URL), strings.Join(storeSchemes, ", "))
	}
}

// credentials returns the names of those that are held.
func (d *decoder) credentials(held []Credential) map[string]bool {
	names := map[string]bool{}
	for i, cred := range held {
		key := fmt.Sprintf("credentials[%d]", i)
		d.name(key+".name", cred.Name, names)
		switch {
		case cred.isApp():
			d.app(key, cred)
		case cred.Token == "":
			d.wrong(key+".token", "required")
		}
		if cred.Kind == policy.OAuthApp && cred.Token != "" && !strings.Contains(cred.Token.Reveal(), ":") {
			d.wrong(key+".token", "of an oauth_app must be id:secret")
		}
		d.token(key+".token", cred.Token)
	}
	return names
}

// app checks the app that stands in the place of a token.
func (d *decoder) app(key string, c Credential) {
	switch {
	case c.Kind != policy.Installation:
		d.wrong(key+".app", "goes with kind installation; this is %q", c.Kind)
	case c.Token != "":
		d.wrong(key+".token", "goes not with app, which gets its tokens by itself")
	}
	if c.App.ID == "" {
		d.wrong(key+".app.id", "required")
	}
	if c.App.Installation < 1 {
		d.wrong(key+".app.installation", "%d: must be the number of the installation", c.App.Installation)
	}
	if c.App.Key == "" {
		d.wrong(key+".app.key", "required")
	} else if _, err := credential.ParseAppKey(c.App.Key); err != nil {
		d.wrong(key+".app.key", "%v", err)
	}
	for name, level := range c.App.Permissions {
		if level != "read" && level != "write" && level != "admin" {
			d.wrong(key+".app.permissions."+name, "%q: must be one of read, write, admin", level)
		}
	}
}

func (d *decoder) clients(c *Config) {
	held := d.credentials(c.Credentials)
	names, keys := map[string]bool{}, map[string]string{}
	for i, client := range c.Clients {
		key := fmt.Sprintf("clients[%d]", i)
		d.name(key+".name", client.Name, names)
		if client.Key != "" {
			d.clientKey(key, client.Key, keys)
		}
		if len(client.Credentials) == 0 {
			d.wrong(key+".credentials", "must name at least one credential")
		}
		for j, name := range client.Credentials {
			if !held[name] {
				d.wrong(fmt.Sprintf("%s.credentials[%d]", key, j), "%q is not among credentials", name)
			}
		}
		if client.Share < 1 {
			d.wrong(key+".share", "%d: must be 1 or more", client.Share)
		}
	}
	if !c.Callers.PassThrough && len(c.Clients) == 0 {
		d.wrong("callers.pass_through", "is false and there are no clients: nobody could call")
	}
}

// clientKey checks the key of the client at a path; seen tells whose a key is
// already. What is no hash may be the key itself, so it is not quoted.
func (d *decoder) clientKey(client, hash string, seen map[string]string) {
	sum, ok := strings.CutPrefix(hash, "sha256:")
	sum = strings.ToLower(sum)
	owner, taken := seen[sum]
	switch {
	case !ok || !isSHA256(sum):
		d.wrong(client+".key", "must be sha256: and 64 hexadecimal digits")
	case taken:
		d.wrong(client+".key", "is that of %s too: a key tells clients apart", owner)
	default:
		seen[sum] = client
	}
}

// token reports a token that no header field can carry: it would fail with
// every request. A file of two lines makes one.
func (d *decoder) token(key string, token credential.Secret) {
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		d.wrong(key, "holds a blank, a line break or another character that a token cannot have")
	}
}

func (d *decoder) name(key, name string, seen map[string]bool) {
	switch {
	case name == "":
		d.wrong(key, "required")
	case seen[name]:
		d.wrong(key, "%q stands twice", name)
	}
	seen[name] = true
}

func isSHA256(s string) bool {
	sum, err := hex.DecodeString(s)
	return err == nil && len(sum) == 32
}

// maxContent bounds the windows of content creation. Each of them costs one
// sliding log in every account.
const maxContent = 4

func (d *decoder) limits(l Limits) {
	for key, n := range map[string]int{
		"primary.unauthenticated": l.Primary.Unauthenticated, "primary.user": l.Primary.User, "primary.enterprise": l.Primary.Enterprise,
		"primary.installation": l.Primary.Installation, "primary.oauth_app": l.Primary.OAuthApp, "primary.workflow": l.Primary.Workflow,
		"search.authenticated": l.Search.Authenticated, "search.code": l.Search.Code, "search.unauthenticated": l.Search.Unauthenticated,
		"concurrent": l.Concurrent, "points.rest": l.Points.REST, "points.graphql": l.Points.GraphQL,
	} {
		if n < 1 {
			d.wrong("limits."+key, "%d: must be 1 or more", n)
		}
	}
	for key, span := range map[string]time.Duration{
		"primary.window": l.Primary.Window, "search.window": l.Search.Window, "points.window": l.Points.Window,
		"cpu.window": l.CPU.Window, "cpu.total": l.CPU.Total, "cpu.graphql": l.CPU.GraphQL,
	} {
		d.positive("limits."+key, span)
	}
	if l.CPU.Factor <= 0 {
		d.wrong("limits.cpu.factor", "%v: must be more than 0", l.CPU.Factor)
	}
	if n := len(l.Content); n > maxContent {
		d.wrong("limits.content", "%d windows: there may be %d", n, maxContent)
	}
	for i, w := range l.Content {
		key := fmt.Sprintf("limits.content[%d]", i)
		if slices.ContainsFunc(l.Content[:i], func(other policy.Window) bool { return other.Window == w.Window }) {
			d.wrong(key+".window", "%s stands twice", w.Window)
		}
		if w.Max < 1 {
			d.wrong(key+".max", "%d: must be 1 or more", w.Max)
		}
		d.positive(key+".window", w.Window)
	}
	if l.Headroom < 0 || l.Headroom >= 1 {
		d.wrong("limits.headroom", "%v: must be from 0 to below 1", l.Headroom)
	}
	if l.Inbound.Rate < 0 {
		d.wrong("limits.inbound.rate", "%d: must be 1 or more, or 0 for no limit", l.Inbound.Rate)
	}
	if l.Inbound.Burst < 0 || l.Inbound.Burst == 0 && l.Inbound.Rate > 0 {
		d.wrong("limits.inbound.burst", "%d: must be 1 or more", l.Inbound.Burst)
	}
	d.positive("limits.inbound.body", l.Inbound.Body)
}

func (d *decoder) positive(key string, span time.Duration) {
	if span <= 0 {
		d.wrong(key, "must be more than 0")
	}
}

func (d *decoder) drain(c Drain) {
	if c.Delay < 0 || c.Delay > maxDrain {
		d.wrong("drain.delay", "must be from 0 to %v", maxDrain)
	}
	if c.Timeout < time.Second || c.Timeout > maxDrain {
		d.wrong("drain.timeout", "must be from 1s to %v", maxDrain)
	}
}

const maxDrain = time.Hour

func (d *decoder) cache(c *Config) {
	if c.Cache.Memory < 1<<20 {
		d.wrong("cache.memory", "%s: must be 1MiB or more", c.Cache.Memory)
	}
	if n := len(c.Cache.Key.Reveal()); n > 0 && n < 32 {
		d.wrong("cache.key", "%d characters: must be 32 or more", n)
	}
	for id, o := range c.Cache.Operations {
		key := "cache.operations." + id
		switch op := policy.Embedded().Operation(id); {
		case op == nil:
			d.wrong(key, "unknown operation; %s", suggestion(id))
		case op.Cache.Class == policy.Never:
			d.wrong(key, "is never kept")
		case op.Cache.Class != policy.Shared && o.TTL != 0:
			d.wrong(key, "is not reference data: how long its answers are fresh is the upstream's to say")
		}
		if o.Coalesce || o.TTL != 0 {
			d.positive(key+".ttl", o.TTL)
		}
	}
}

// suggestion is where to find the name of an operation.
func suggestion(id string) string {
	var names []string
	for _, op := range policy.Embedded().Operations() {
		names = append(names, op.ID)
	}
	if near := nearest(id, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "weir explain METHOD PATH tells the name"
}

func (d *decoder) statistics(s Statistics) {
	d.positive("statistics.poll.first", s.Poll.First)
	d.positive("statistics.poll.budget", s.Poll.Budget)
	if s.Poll.Factor < 1 {
		d.wrong("statistics.poll.factor", "%v: must be 1 or more", s.Poll.Factor)
	}
	if s.Poll.Max < s.Poll.First {
		d.wrong("statistics.poll.max", "%s: must not be less than first, %s", s.Poll.Max, s.Poll.First)
	}
}
