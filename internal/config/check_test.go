package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestMistakesOfValue(t *testing.T) {
	stores := "must be memory:, memory:/FILE or a URL of one of redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster"
	report(t, []mistake{
		{"no address", "listen: here", `weir.yaml:2:9: listen: "here" is not an address: write host:port or :port`},
		{"address of a service name", "listen: \":http\"", `weir.yaml:2:9: listen: ":http" is not an address: write host:port or :port`},
		{"port that does not exist", "listen: \":65536\"", `weir.yaml:2:9: listen: ":65536" is not an address: write host:port or :port`},
		{"address without brackets", "admin: {listen: \"::1:9090\"}", `weir.yaml:2:17: admin.listen: "::1:9090" is not an address: write host:port or :port`},
		{"admin on every interface without a token", "admin: {listen: \":9090\"}", `weir.yaml:2:8: admin.token: required because admin.listen ":9090" is not on loopback`},
		{"admin on a name without a token", "admin: {listen: \"weir:9090\"}", `weir.yaml:2:8: admin.token: required because admin.listen "weir:9090" is not on loopback`},
		{"admin whose token is empty", "admin: {listen: \":9090\", token: \"${EMPTY}\"}", `weir.yaml:2:33: admin.token: required because admin.listen ":9090" is not on loopback`},
		{"token of two lines", "admin: {token: \"a\\nb\"}", "weir.yaml:2:16: admin.token: holds a blank, a line break or another character that a token cannot have"},
		{"token that is not ASCII", "credentials: [{name: a, kind: user, token: “x”}]", "weir.yaml:2:44: credentials[0].token: holds a blank, a line break or another character that a token cannot have"},
		{"sample below nothing", "telemetry: {sample: -1}", "weir.yaml:2:21: telemetry.sample: -1: must be from 0 to 1"},
		{"store of another kind", "store: {url: \"mysql://b\"}", `weir.yaml:2:14: store.url: "mysql://b": ` + stores},
		{"store without a host", "store: {url: \"redis:\"}", `weir.yaml:2:14: store.url: "redis:": ` + stores},
		{"memory with more", "store: {url: \"memory:256MiB\"}", `weir.yaml:2:14: store.url: "memory:256MiB": ` + stores},
		{"store that is no URL", "store: {url: \"redis://h:port\"}", `weir.yaml:2:14: store.url: "redis://h:port": ` + stores},
		{"credential without token", "credentials: [{name: a, kind: user}]", "weir.yaml:2:15: credentials[0].token: required"},
		{"credential without name", "credentials: [{kind: user, token: x}]", "weir.yaml:2:15: credentials[0].name: required"},
		{"credential without kind", "credentials: [{name: a, token: x}]", `weir.yaml:2:15: credentials[0].kind: "": must be one of user, enterprise, installation, oauth_app, workflow`},
		{"credential of nobody", "credentials: [{name: a, kind: unauthenticated, token: x}]", `weir.yaml:2:31: credentials[0].kind: "unauthenticated": must be one of user, enterprise, installation, oauth_app, workflow`},
		{"credentials of one name", "credentials: [{name: a, kind: user, token: x}, {name: a, kind: user, token: x}]", `weir.yaml:2:55: credentials[1].name: "a" stands twice`},
		{"app of a user", "credentials: [{name: a, kind: user, app: {id: x, installation: 1, key: \"${PEM}\"}}]", `weir.yaml:2:42: credentials[0].app: goes with kind installation; this is "user"`},
		{"app beside a token", "credentials: [{name: a, kind: installation, token: x, app: {id: x, installation: 1, key: \"${PEM}\"}}]", "weir.yaml:2:52: credentials[0].token: goes not with app, which gets its tokens by itself"},
		{"app without an id", "credentials: [{name: a, kind: installation, app: {installation: 1, key: \"${PEM}\"}}]", "weir.yaml:2:50: credentials[0].app.id: required"},
		{"app installed nowhere", "credentials: [{name: a, kind: installation, app: {id: x, key: \"${PEM}\"}}]", "weir.yaml:2:50: credentials[0].app.installation: 0: must be the number of the installation"},
		{"app without a key", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1}}]", "weir.yaml:2:50: credentials[0].app.key: required"},
		{"app whose key is none", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: hunter2}}]", "weir.yaml:2:80: credentials[0].app.key: is not an RSA private key in PEM (BEGIN RSA PRIVATE KEY, or BEGIN PRIVATE KEY)"},
		{"app with a permission to do everything", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: \"${PEM}\", permissions: {contents: all}}}]", `weir.yaml:2:114: credentials[0].app.permissions.contents: "all": must be one of read, write, admin`},
		{"app without a secret", "credentials: [{name: a, kind: oauth_app, token: id}]", "weir.yaml:2:49: credentials[0].token: of an oauth_app must be id:secret"},
		{"a proxy by name", "callers: {trusted_proxies: [10.0.0.0/8, balancer]}", `weir.yaml:2:41: callers.trusted_proxies[1]: "balancer": must be an address or a network such as 10.0.0.0/8`},
		{"nobody could call", "callers: {pass_through: false}", "weir.yaml:2:25: callers.pass_through: is false and there are no clients: nobody could call"},
		{"no headroom for the gateway itself", "limits: {headroom: 1}", "weir.yaml:2:20: limits.headroom: 1: must be from 0 to below 1"},
		{"headroom below nothing", "limits: {headroom: -0.1}", "weir.yaml:2:20: limits.headroom: -0.1: must be from 0 to below 1"},
		{"cold start", "limits: {cold_start: hot}", `weir.yaml:2:22: limits.cold_start: "hot": must be one of ramp, strict, trust`},
		{"store loss", "limits: {on_store_loss: open}", `weir.yaml:2:25: limits.on_store_loss: "open": must be one of share, closed`},
		{"refusal status", "limits: {refusal_status: 503}", `weir.yaml:2:26: limits.refusal_status: "503": must be one of 429, 403`},
		{"a rate below nothing", "limits: {inbound: {rate: -1}}", "weir.yaml:2:26: limits.inbound.rate: -1: must be 1 or more, or 0 for no limit"},
		{"a rate of half a request", "limits: {inbound: {rate: 0.5}}", `weir.yaml:2:26: limits.inbound.rate: "0.5" is not a whole number`},
		{"no time for a body", "limits: {inbound: {body: 0s}}", "weir.yaml:2:26: limits.inbound.body: must be more than 0"},
		{"no request at once", "limits: {inbound: {burst: 0}}", "weir.yaml:2:27: limits.inbound.burst: 0: must be 1 or more"},
		{"fewer than no request at once, though it is off", "limits: {inbound: {rate: 0, burst: -1}}", "weir.yaml:2:36: limits.inbound.burst: -1: must be 1 or more"},
		{"a limit by another name", "limits: {inbound: {rates: 1}}", `weir.yaml:2:20: limits.inbound.rates: unknown key; did you mean "rate"?`},
		{"cache too small", "cache: {memory: 512KiB}", "weir.yaml:2:17: cache.memory: 512KiB: must be 1MiB or more"},
		{"operation", "cache: {operations: {gitignore/none: {ttl: 1h}}}", "weir.yaml:2:38: cache.operations.gitignore/none: unknown operation; weir explain METHOD PATH tells the name"},
		{"operation with a slip", "cache: {operations: {gitignore/get-templates: {ttl: 1h}}}", `weir.yaml:2:47: cache.operations.gitignore/get-templates: unknown operation; did you mean "gitignore/get-template"?`},
		{"operation that is not reference data", "cache: {operations: {watching/list-mine: {ttl: 1h}}}", "weir.yaml:2:42: cache.operations.watching/list-mine: is not reference data: how long its answers are fresh is the upstream's to say"},
		{"renamed key", "cache: {operations: {gitignore/get-template: {ttl: 1h, alone: true}}}", "weir.yaml:2:56: cache.operations.gitignore/get-template.alone: the key is now called coalesce; replace alone: true with coalesce: false"},
		{"operation without a lifetime", "cache: {operations: {gitignore/get-template: {}}}", "weir.yaml:2:46: cache.operations.gitignore/get-template.ttl: must be more than 0"},
		{"polls that come faster and faster", "statistics: {poll: {factor: 0.5}}", "weir.yaml:2:29: statistics.poll.factor: 0.5: must be 1 or more"},
		{"first poll after the longest pause", "statistics: {poll: {first: 20s}}", "weir.yaml:2:20: statistics.poll.max: 15s: must not be less than first, 20s"},
		{"webhooks among the API's paths", "webhooks: {path: /hooks}", `weir.yaml:2:18: webhooks.path: "/hooks": must begin with /_weir/ and hold no empty or dot segment`},
		{"webhooks outside by a detour", "webhooks: {path: /_weir/../user}", `weir.yaml:2:18: webhooks.path: "/_weir/../user": must begin with /_weir/ and hold no empty or dot segment`},
		{"webhooks at no path", "webhooks: {path: /_weir/}", `weir.yaml:2:18: webhooks.path: "/_weir/": must begin with /_weir/ and hold no empty or dot segment`},
		{"sample", "telemetry: {sample: 1.5}", "weir.yaml:2:21: telemetry.sample: 1.5: must be from 0 to 1"},
		{"a domain that is none", "tls: {domains: [\"weir_1.example.com\"]}", `weir.yaml:2:17: tls.domains[0]: "weir_1.example.com": must be a full name in lower case, such as weir.example.com, beyond ASCII as xn--…`},
		{"a domain of one label", "tls: {domains: [localhost]}", `weir.yaml:2:17: tls.domains[0]: "localhost": must be a full name in lower case, such as weir.example.com, beyond ASCII as xn--…`},
		{"a domain in capitals", "tls: {domains: [Weir.example.com]}", `weir.yaml:2:17: tls.domains[0]: "Weir.example.com": must be a full name in lower case, such as weir.example.com, beyond ASCII as xn--…`},
		{"a domain with the root's dot", "tls: {domains: [weir.example.com.]}", `weir.yaml:2:17: tls.domains[0]: "weir.example.com.": must be a full name in lower case, such as weir.example.com, beyond ASCII as xn--…`},
		{"a domain that is a pattern", "tls: {domains: [\"*.example.com\"]}", `weir.yaml:2:17: tls.domains[0]: "*.example.com": wildcards take a DNS-01 challenge, which is not there; name a certificate of your own under tls.certificates`},
		{"a domain that is an address", "tls: {domains: [192.0.2.1]}", `weir.yaml:2:17: tls.domains[0]: "192.0.2.1" is an address: must be a name`},
		{"a domain twice", "tls: {domains: [a.example, a.example]}", `weir.yaml:2:28: tls.domains[1]: "a.example" stands twice`},
		{"an ACME directory without TLS", "tls: {ca: \"http://u:p@ca.internal\"}", `weir.yaml:2:11: tls.ca: "http://•••@ca.internal": must be an absolute https URL, of an ACME directory`},
		{"mail to nobody", "tls: {email: ops}", `weir.yaml:2:14: tls.email: "ops" is no address of mail`},
		{"certificates kept nowhere", "tls: {storage: \"\"}", `weir.yaml:2:16: tls.storage: must be store, or a folder`},
		{"nothing to send plain HTTP to", "tls: {http: \":80\"}", `weir.yaml:2:13: tls.http: there is no HTTPS to send to: tls.domains and tls.certificates are empty`},
		{"plain HTTP at no address", "tls: {http: here, domains: [a.example]}", `weir.yaml:2:13: tls.http: "here" is not an address: write host:port or :port`},
		{"a certificate without its key", "tls: {certificates: [{certificate: a.pem}]}", `weir.yaml:2:22: tls.certificates[0]: needs certificate and key, both PEM files`},
		{"a certificate that is not there", "tls: {certificates: [{certificate: /none/a.pem, key: /none/a.key}]}", `weir.yaml:2:22: tls.certificates[0]: "/none/a.pem" with "/none/a.key": open /none/a.pem: no such file or directory`},
		{"a drain that nobody waits for", "drain: {delay: 2h}", "weir.yaml:2:16: drain.delay: must be from 0 to 1h0m0s"},
		{"a drain in which no request ends", "drain: {timeout: 0s}", "weir.yaml:2:18: drain.timeout: must be from 1s to 1h0m0s"},
		{"rate limit fields", "headers: {ratelimit: \"on\"}", `weir.yaml:2:22: headers.ratelimit: "on": must be one of off, draft-08`},
		{"no duration of nothing in a list", "limits: {content: [{max: 1, window: 0s}]}", "weir.yaml:2:37: limits.content[0].window: must be more than 0"},
		{"content windows of one length", "limits: {content: [{max: 1, window: 1s}, {max: 2, window: 1s}]}", "weir.yaml:2:59: limits.content[1].window: 1s stands twice"},
		{"too many content windows", "limits: {content: [{max: 1, window: 1s}, {max: 1, window: 2s}, {max: 1, window: 3s}, {max: 1, window: 4s}, {max: 1, window: 5s}]}", "weir.yaml:2:19: limits.content: 5 windows: there may be 4"},
		{"content creation never", "limits: {content: [{max: 0, window: 1s}]}", "weir.yaml:2:26: limits.content[0].max: 0: must be 1 or more"},
		{"CPU time that costs nothing", "limits: {cpu: {factor: 0}}", "weir.yaml:2:24: limits.cpu.factor: 0: must be more than 0"},
	})
}

func TestEveryNumberAndWindowHasABound(t *testing.T) {
	for _, key := range []string{
		"limits.primary.unauthenticated", "limits.primary.user", "limits.primary.enterprise", "limits.primary.installation", "limits.primary.oauth_app",
		"limits.primary.workflow", "limits.search.authenticated", "limits.search.code", "limits.search.unauthenticated", "limits.concurrent",
		"limits.points.rest", "limits.points.graphql",
	} {
		t.Run(key, func(t *testing.T) {
			rejects(t, key, "0", "0: must be 1 or more")
			rejects(t, key, "-1", "-1: must be 1 or more")
		})
	}
	for _, key := range []string{
		"limits.primary.window", "limits.search.window", "limits.points.window", "limits.cpu.window", "limits.cpu.total", "limits.cpu.graphql",
		"upstream.timeout", "statistics.poll.first", "statistics.poll.budget",
	} {
		t.Run(key, func(t *testing.T) { rejects(t, key, "0s", "must be more than 0") })
	}
}

// rejects sets one key to a value and wants one report about it.
func rejects(t *testing.T, key, value, want string) {
	t.Helper()
	parts := strings.Split(key, ".")
	text := strings.Join(parts, ": {") + ": " + value + strings.Repeat("}", len(parts)-1)
	if !strings.HasPrefix(key, "upstream.") {
		text = minimal + text
	} else {
		text = strings.Replace(text, "{", `{url: "https://api.example.com", `, 1)
	}
	_, err := parse(t, text)
	if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.HasSuffix(err.Error(), ": "+key+": "+want) {
		t.Errorf("%s: %s: got %v, want %s", key, value, err, want)
	}
}

func TestUpstreamURL(t *testing.T) {
	for _, good := range []string{"http://h", "https://h:8443/api/v3", "https://h/", "http://[::1]:9000", "HTTPS://h", "http://:9000"} {
		if _, err := parse(t, fmt.Sprintf("upstream: {url: %q}", good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                     "required: the base URL of the API",
		"api.example.com":      `"api.example.com": must be an absolute http or https URL`,
		"/api":                 `"/api": must be an absolute http or https URL`,
		"https:///api":         `"https:///api": must be an absolute http or https URL`,
		"ftp://h":              `"ftp://h": must be an absolute http or https URL`,
		"http://a b":           `"http://a b": must be an absolute http or https URL`,
		"https://h:port":       `"https://h:port": must be an absolute http or https URL`,
		"https://u@h":          "holds a user name: credentials belong under credentials",
		"https://u:p@h?q":      "holds a user name: credentials belong under credentials",
		"https://h?a=b":        `"https://h?a=b": must have neither query nor fragment`,
		"https://h?":           `"https://h?": must have neither query nor fragment`,
		"https://h#top":        `"https://h#top": must have neither query nor fragment`,
		"https://h#":           `"https://h#": must have neither query nor fragment`,
		"https://h?token=abcd": `"https://h?token=•••": must have neither query nor fragment`,
	} {
		_, err := parse(t, fmt.Sprintf("upstream: {url: %q}", bad))
		if want = "weir.yaml:1:17: upstream.url: " + want; err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", bad, err, want)
		}
	}
}

func TestEgressHasAName(t *testing.T) {
	_, err := parse(t, `upstream: {url: "https://h", egress: ""}`)
	if want := "weir.yaml:1:38: upstream.egress: must not be empty"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAdminNeedsNoTokenOnLoopback(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:9090", "127.0.0.2:0", "[::1]:9090", "localhost:9090"} {
		valid(t, minimal+fmt.Sprintf("admin: {listen: %q}", listen))
	}
}

func TestInboundLimitIsOffByARateOfNothing(t *testing.T) {
	for text, want := range map[string][2]int{
		"{rate: 0}": {0, 1000}, "{rate: 0, burst: 0}": {0, 0}, "{rate: 1, burst: 1}": {1, 1}, "{rate: 2000}": {2000, 1000}, "{}": {500, 1000},
	} {
		in := valid(t, minimal+"limits: {inbound: "+text+"}").Limits.Inbound
		if got := [2]int{in.Rate, in.Burst}; got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

func TestStores(t *testing.T) {
	for _, store := range []string{"memory:", "memory:/var/lib/weir/ledger", "redis://h", "rediss://u:p@h:6379/0", "redis+sentinel://h?master_name=m", "redis+cluster://h?addr=other:6379"} {
		valid(t, minimal+fmt.Sprintf("store: {url: %q}", store))
	}
}

func TestMistakesOfClients(t *testing.T) {
	hash := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	held := minimal + "credentials: [{name: ci, kind: user, token: x}]\n"
	for _, c := range []struct{ name, clients, want string }{
		{"no name", "{key: %a, credentials: [ci]}", "3:11: clients[0].name: required"},
		{"no key", "{name: a, credentials: [ci]}", "3:11: clients[0].key: required: weir key new makes one; or give certificate or jwt"},
		{"the key itself", "{name: a, key: hunter2, credentials: [ci]}", "3:26: clients[0].key: must be sha256: and 64 hexadecimal digits"},
		{"half a hash", "{name: a, key: \"sha256:00\", credentials: [ci]}", "3:26: clients[0].key: must be sha256: and 64 hexadecimal digits"},
		{"no credentials", "{name: a, key: %a}", "3:11: clients[0].credentials: must name at least one credential"},
		{"credential that does not exist", "{name: a, key: %a, credentials: [ci, ic]}", `3:119: clients[0].credentials[1]: "ic" is not among credentials`},
		{"nothing for a credential", "{name: a, key: %a, credentials: [ci, ~]}", `3:114: clients[0].credentials[1]: "" is not among credentials`},
		{"no share", "{name: a, key: %a, credentials: [ci], share: 0}", "3:127: clients[0].share: 0: must be 1 or more"},
		{"priority", "{name: a, key: %a, credentials: [ci], priority: urgent}", `3:130: clients[0].priority: "urgent": must be one of interactive, normal, batch`},
		{"two of one name", "{name: a, key: %a, credentials: [ci]}, {name: a, key: %b, credentials: [ci]}", `3:128: clients[1].name: "a" stands twice`},
		{"two of one key", "{name: a, key: %a, credentials: [ci]}, {name: b, key: %A, credentials: [ci]}", "3:136: clients[1].key: is that of clients[0] too: a key tells clients apart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			clients := strings.NewReplacer("%a", `"`+hash("a")+`"`, "%A", `"`+hash("A")+`"`, "%b", `"`+hash("b")+`"`).Replace(c.clients)
			_, err := parse(t, held+"clients: ["+clients+"]")
			if want := "weir.yaml:" + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestOneReportForWhatCouldNotBeRead(t *testing.T) {
	for _, text := range []string{"limits: {primary: {user: x}}", "limits: {primary: x}", "limits: x", "clients: x", "cache: {memory: x}", "store: {url: [x]}", "upstream: x"} {
		base := minimal
		if strings.HasPrefix(text, "upstream") {
			base = ""
		}
		if _, err := parse(t, base+text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
