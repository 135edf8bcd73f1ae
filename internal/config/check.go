package config

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// wrong reports a value that was given at key, or that a default left there.
// A value that could not be read, alone or with all around it, has its one
// report already.
func (d *decoder) wrong(key, format string, args ...any) {
	reported := func(p Problem) bool {
		return p.Key != "" && (p.Key == key || strings.HasPrefix(key, p.Key+".") || strings.HasPrefix(key, p.Key+"["))
	}
	if slices.ContainsFunc(d.problems, reported) {
		return
	}
	p := Problem{Key: key, Message: fmt.Sprintf(format, args...)}
	switch at, given := d.at[key]; {
	case at.flag != "":
		p.Key = at.flag
	case given:
		p.File, p.Line, p.Column = d.source.Path, at.line, at.column
	default:
		// Missing: the nearest place that was given is where it belongs.
		p.File = d.source.Path
		if p.File != "" {
			p.Line, p.Column = 1, 1
		}
		for parent := key; parent != ""; {
			parent = parent[:max(0, strings.LastIndexAny(parent, ".["))]
			if at, ok := d.at[parent]; ok {
				p.Line, p.Column = at.line, at.column
				break
			}
		}
	}
	d.problems = append(d.problems, p)
}

// check holds each value against its range and against the others.
func (d *decoder) check(c *Config) {
	d.enums(reflect.ValueOf(c).Elem(), "")
	d.address("listen", c.Listen)
	d.address("admin.listen", c.Admin.Listen)
	if c.Admin.Token == "" && !isLoopback(c.Admin.Listen) {
		d.wrong("admin.token", "required because admin.listen %q is not on loopback", c.Admin.Listen)
	}
	d.upstream(c.Upstream)
	d.store(c.Store)
	d.clients(c)
	d.limits(c.Limits)
	d.cache(c)
	d.statistics(c.Statistics)
	if !strings.HasPrefix(c.Webhooks.Path, "/_weir/") {
		d.wrong("webhooks.path", "%q: must begin with /_weir/", c.Webhooks.Path)
	}
	if c.Telemetry.Sample < 0 || c.Telemetry.Sample > 1 {
		d.wrong("telemetry.sample", "%v: must be from 0 to 1", c.Telemetry.Sample)
	}
}

// enums holds every field with an enum tag against it.
func (d *decoder) enums(v reflect.Value, key string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			path := key
			if !f.Anonymous {
				name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				path = strings.TrimPrefix(key+"."+name, ".")
			}
			if allowed := f.Tag.Get("enum"); allowed != "" {
				if value := fmt.Sprint(v.Field(i).Interface()); !slices.Contains(strings.Split(allowed, ","), value) {
					d.wrong(path, "%q: must be one of %s", value, strings.ReplaceAll(allowed, ",", ", "))
				}
				continue
			}
			d.enums(v.Field(i), path)
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

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // reported as no address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
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
	case parsed.RawQuery != "" || parsed.Fragment != "":
		d.wrong("upstream.url", "%q: must have neither query nor fragment", u.URL)
	}
	d.positive("upstream.timeout", u.Timeout)
	if u.Egress == "" {
		d.wrong("upstream.egress", "must not be empty")
	}
}

var storeSchemes = []string{"memory", "redis", "rediss", "redis+sentinel", "redis+cluster"}

func (d *decoder) store(s Store) {
	u, err := url.Parse(s.URL)
	if err != nil || !slices.Contains(storeSchemes, u.Scheme) || u.Scheme != "memory" && u.Host == "" {
		d.wrong("store.url", "%q: must be memory: or a URL of one of %s", redacted(s.URL), strings.Join(storeSchemes[1:], ", "))
	}
}

func (d *decoder) clients(c *Config) {
	held := map[string]bool{}
	for i, cred := range c.Credentials {
		key := fmt.Sprintf("credentials[%d]", i)
		d.name(key+".name", cred.Name, held)
		if cred.Token == "" {
			d.wrong(key+".token", "required")
		}
		if cred.Kind == policy.OAuthApp && !strings.Contains(cred.Token.Reveal(), ":") {
			d.wrong(key+".token", "of an oauth_app must be id:secret")
		}
	}
	seen := map[string]bool{}
	for i, client := range c.Clients {
		key := fmt.Sprintf("clients[%d]", i)
		d.name(key+".name", client.Name, seen)
		if sum, ok := strings.CutPrefix(client.Key, "sha256:"); !ok || !isSHA256(sum) {
			d.wrong(key+".key", "must be sha256: and 64 hexadecimal digits")
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
	for i, w := range l.Content {
		key := fmt.Sprintf("limits.content[%d]", i)
		if w.Max < 1 {
			d.wrong(key+".max", "%d: must be 1 or more", w.Max)
		}
		d.positive(key+".window", w.Window)
	}
	if l.Headroom < 0 || l.Headroom >= 1 {
		d.wrong("limits.headroom", "%v: must be from 0 to below 1", l.Headroom)
	}
}

func (d *decoder) positive(key string, span time.Duration) {
	if span <= 0 {
		d.wrong(key, "must be more than 0")
	}
}

func (d *decoder) cache(c *Config) {
	if c.Cache.Memory < 1<<20 {
		d.wrong("cache.memory", "%s: must be 1MiB or more", c.Cache.Memory)
	}
	for id, o := range c.Cache.Operations {
		key := "cache.operations." + id
		switch op := policy.Embedded().Operation(id); {
		case op == nil:
			d.wrong(key, "unknown operation; weir explain METHOD PATH tells the name")
		case op.Cache.Class != policy.Shared:
			d.wrong(key, "is not reference data: how long its answers are fresh is the upstream's to say")
		}
		d.positive(key+".ttl", o.TTL)
	}
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
