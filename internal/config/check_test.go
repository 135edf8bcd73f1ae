package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
)

// A password with a reserved character ends the authority of the URL, so that other parts seem to be wrong.
func TestReservedCharactersInPasswordsAreReported(t *testing.T) {
	const want = `2:14: store.url: "redis://•••@127.0.0.1:6379/0": the user name or the password has a reserved character; write it as %XX, such as %2F for /`
	var mistakes []mistake
	for _, password := range []string{"a#b", "a/b", "a?b", "a b", "a[b", "%sb", "1#2", "1/2", "1?2"} {
		mistakes = append(mistakes, mistake{password, fmt.Sprintf("store: {url: \"redis://:%s@127.0.0.1:6379/0\"}", password), want})
	}
	checkMistakes(t, minimal, mistakes)
	for _, url := range []string{"redis://:a@b@h:1/0", "redis://:a:b@h:1/0", "redis://:a%2Fb@h:1/0", "redis://h:1/0?client_name=a@b"} {
		valid(t, minimal+"store: {url: \""+url+"\"}")
	}
}

func TestInvalidValuesAreReported(t *testing.T) {
	stores := "must be memory:, memory:/FILE or a URL of one of redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster"
	checkMistakes(t, minimal, []mistake{
		{"invalid address", "listen: here", `2:9: listen: "here" is not an address; use host:port or :port, with a port up to 65535`},
		{"service name as port", "listen: \":http\"", `2:9: listen: ":http" is not an address; use host:port or :port, with a port up to 65535`},
		{"port out of range", "listen: \":65536\"", `2:9: listen: ":65536" is not an address; use host:port or :port, with a port up to 65535`},
		{"address without brackets", "admin: {listen: \"::1:9090\"}", `2:17: admin.listen: "::1:9090" is not an address; use host:port or :port, with a port up to 65535`},
		{"socket without a path", "listen: \"unix:\"", `2:9: listen: "unix:" has no path; use unix:/run/weir.sock`},
		{"socket with HTTPS", "listen: unix:/run/weir.sock\ntls: {domains: [weir.example.com]}", "2:9: listen: a Unix socket has no HTTPS; remove tls, or use host:port"},
		{"mode of a socket", "listen: unix:/run/weir.sock\nsocket: {mode: rw}", `3:16: socket.mode: "rw": must be octal digits such as 0660`},
		{"host without a name", "hosts: [{kind: api}]", `2:9: hosts[0].name: "": must be a host name in lower case, without scheme and port`},
		{"URL as the name of a host", "hosts: [{name: \"https://a.example\"}]", `2:16: hosts[0].name: "https://a.example": must be a host name in lower case, without scheme and port`},
		{"duplicate host", "hosts: [{name: a.example}, {name: a.example}]", `2:35: hosts[1].name: "a.example" is a duplicate; each needs its own`},
		{"the API as a further host", "hosts: [{name: api.example.com}]", `2:16: hosts[0].name: "api.example.com" is the host of upstream.url, which needs no entry`},
		{"URL of a host", "hosts: [{name: a.example, url: \"ftp://a\"}]", `2:32: hosts[0].url: "ftp://a": must be an absolute http or https URL`},
		{"path of a host", "hosts: [{name: a.example, path: uploads}]", `2:33: hosts[0].path: "uploads": must begin with a slash and contain no empty or dot segment, as in /api/uploads`},
		{"duplicate path of a host", "hosts: [{name: a.example, path: /a}, {name: b.example, path: /a}]", `2:62: hosts[1].path: "/a" is a duplicate; each needs its own`},
		{"kind of a host", "hosts: [{name: a.example, kind: git}]", `2:33: hosts[0].kind: "git": must be one of api, files`},
		{"proxy without an authority", "proxy: {listen: \":3128\"}", "2:8: proxy.ca: needs certificate and key, both PEM files; create an authority with weir ca init"},
		{"address of the proxy", "proxy: {listen: \"3128\"}", `2:17: proxy.listen: "3128" is not an address; use host:port or :port, with a port up to 65535`},
		{"network of the proxy", "proxy: {allow: [home]}", `2:17: proxy.allow[0]: "home": must be an address or a network such as 10.0.0.0/8`},
		{"other hosts of the proxy", "proxy: {others: allow}", `2:17: proxy.others: "allow": must be one of refuse, tunnel`},
		{"public admin listener without a token", "admin: {listen: \":9090\"}", `2:8: admin.token: required because admin.listen ":9090" is not on loopback; set it or tls.client_ca, or listen on 127.0.0.1`},
		{"admin listener on a host name without a token", "admin: {listen: \"weir:9090\"}", `2:8: admin.token: required because admin.listen "weir:9090" is not on loopback; set it or tls.client_ca, or listen on 127.0.0.1`},
		{"empty admin token", "admin: {listen: \":9090\", token: \"${EMPTY:-}\"}", `2:33: admin.token: required because admin.listen ":9090" is not on loopback; set it or tls.client_ca, or listen on 127.0.0.1`},
		{"admin token of an empty variable", "admin: {token: \"${EMPTY}\"}", `2:16: admin.token: environment variable "EMPTY" is empty; set it, or use ${EMPTY:-VALUE} for a default`},
		{"Prometheus without a scheme", "admin: {prometheus: {url: \"prometheus:9090\"}}", `2:27: admin.prometheus.url: "prometheus:9090": must be an absolute http or https URL`},
		{"Prometheus with a user name", "admin: {prometheus: {url: \"http://u:p@prometheus:9090\"}}", "2:27: admin.prometheus.url: contains a user name; Weir sends only a bearer token (admin.prometheus.token)"},
		{"Prometheus with a query", "admin: {prometheus: {url: \"http://prometheus:9090/?tenant=a\"}}", `2:27: admin.prometheus.url: "http://prometheus:9090/?tenant=a": must have neither query nor fragment`},
		{"token for Prometheus of two lines", "admin: {prometheus: {url: \"http://prometheus:9090\", token: \"a\\nb\"}}", "2:60: admin.prometheus.token: contains a space, a line break or another character that no token has; remove it"},
		{"token without a Prometheus", "admin: {prometheus: {token: a}}", "2:21: admin.prometheus.url: required because admin.prometheus.token is set"},
		{"token of two lines", "admin: {token: \"a\\nb\"}", "2:16: admin.token: contains a space, a line break or another character that no token has; remove it"},
		{"token that is not ASCII", "credentials: [{name: a, kind: user, token: “x”}]", "2:44: credentials[0].token: contains a space, a line break or another character that no token has; remove it"},
		{"negative sample", "telemetry: {sample: -1}", "2:21: telemetry.sample: -1: must be from 0 to 1"},
		{"unknown store scheme", "store: {url: \"mysql://b\"}", `2:14: store.url: "mysql://b": ` + stores},
		{"store without a host", "store: {url: \"redis:\"}", `2:14: store.url: "redis:": ` + stores},
		{"memory store with a relative path", "store: {url: \"memory:256MiB\"}", `2:14: store.url: "memory:256MiB": ` + stores},
		{"invalid store URL", "store: {url: \"redis://h:port\"}", `2:14: store.url: "redis://h:port": the port must be a number from 1 to 65535, as in redis://127.0.0.1:6379`},
		{"store with two ports", "store: {url: \"redis://:hunter2@h:1:2\"}", `2:14: store.url: "redis://•••@h:1:2": the port must be a number from 1 to 65535, as in redis://127.0.0.1:6379`},
		{"store with the name of a database", "store: {url: \"redis://h:1/weir\"}", `2:14: store.url: "redis://h:1/weir": redis: invalid database number: "weir"; use a URL such as redis://HOST:6379/0`},
		{"store with an unknown parameter", "store: {url: \"redis://h:1?pol_size=1\"}", `2:14: store.url: "redis://h:1?pol_size=1": redis: unexpected option: pol_size; use a URL such as redis://HOST:6379/0`},
		{"sentinels without a master", "store: {url: \"redis+sentinel://h:1\"}", `2:14: store.url: "redis+sentinel://h:1": redis: the name of the master is missing: add ?master_name=NAME; use a URL such as redis://HOST:6379/0`},
		{"variable without braces", "credentials: [{name: a, kind: user, token: $TOKEN}]", "2:44: credentials[0].token: is the name of a variable; write ${NAME} for its value"},
		{"one token in two accounts", "credentials: [{name: a, kind: user, token: x, account: u}, {name: b, kind: user, token: x}]", `2:60: credentials[1].account: "": credentials[0] is the same credential, but has the account "u"; remove one of them, or give both one account`},
		{"one installation in two accounts", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: \"${PEM}\"}}, {name: b, kind: installation, account: u, app: {id: y, installation: 1, key: \"${PEM}\"}}]", `2:131: credentials[1].account: "u": credentials[0] is the same credential, but has the account ""; remove one of them, or give both one account`},
		{"one account with two kinds", "credentials: [{name: a, kind: user, token: x, account: u}, {name: b, kind: enterprise, token: y, account: u}]", `2:76: credentials[1].kind: "enterprise": credentials[0] has the same account, but the kind "user"; correct one of them, because an account has one kind`},
		{"one token of two kinds", "credentials: [{name: a, kind: user, token: x}, {name: b, kind: enterprise, token: x}]", `2:64: credentials[1].kind: "enterprise": credentials[0] has the same account, but the kind "user"; correct one of them, because an account has one kind`},
		{"huge limit", "limits: {concurrent: 9000000000000000000}", "2:22: limits.concurrent: 9000000000000000000: must be at most 1000000000"},
		{"huge window", "limits: {points: {window: 2000000h}}", "2:27: limits.points.window: 2000000h: must be at most 744h"},
		{"credential without token", "credentials: [{name: a, kind: user}]", "2:15: credentials[0].token: required: the token, or app for an installed app"},
		{"credential without name", "credentials: [{kind: user, token: x}]", "2:15: credentials[0].name: required; each needs its own"},
		{"credential without kind", "credentials: [{name: a, token: x}]", `2:15: credentials[0].kind: "": must be one of user, enterprise, installation, enterprise_installation, oauth_app, enterprise_oauth_app, workflow, enterprise_workflow`},
		{"credential of kind unauthenticated", "credentials: [{name: a, kind: unauthenticated, token: x}]", `2:31: credentials[0].kind: "unauthenticated": must be one of user, enterprise, installation, enterprise_installation, oauth_app, enterprise_oauth_app, workflow, enterprise_workflow`},
		{"duplicate credential name", "credentials: [{name: a, kind: user, token: x}, {name: a, kind: user, token: x}]", `2:55: credentials[1].name: "a" is a duplicate; each needs its own`},
		{"app of a user", "credentials: [{name: a, kind: user, app: {id: x, installation: 1, key: \"${PEM}\"}}]", `2:42: credentials[0].app: requires kind installation or enterprise_installation, not "user"`},
		{"app and token", "credentials: [{name: a, kind: installation, token: x, app: {id: x, installation: 1, key: \"${PEM}\"}}]", "2:52: credentials[0].token: must be empty if app is set; remove token or app"},
		{"app without an id", "credentials: [{name: a, kind: installation, app: {installation: 1, key: \"${PEM}\"}}]", "2:50: credentials[0].app.id: required: the number or client ID of the app"},
		{"app without an installation", "credentials: [{name: a, kind: installation, app: {id: x, key: \"${PEM}\"}}]", "2:50: credentials[0].app.installation: 0: must be the number of the installation"},
		{"app without a key", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1}}]", "2:50: credentials[0].app.key: required: the private key of the app, such as file:app.pem"},
		{"app with an invalid key", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: hunter2}}]", "2:80: credentials[0].app.key: not an RSA private key in PEM (BEGIN RSA PRIVATE KEY or BEGIN PRIVATE KEY)"},
		{"app with an unknown permission level", "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: \"${PEM}\", permissions: {contents: all}}}]", `2:114: credentials[0].app.permissions.contents: "all": must be one of read, write, admin`},
		{"OAuth app of an enterprise without a secret", "credentials: [{name: a, kind: enterprise_oauth_app, token: id}]", "2:60: credentials[0].token: must be id:secret for kind enterprise_oauth_app"},
		{"app of a workflow", "credentials: [{name: a, kind: enterprise_workflow, app: {id: x, installation: 1, key: \"${PEM}\"}}]", `2:57: credentials[0].app: requires kind installation or enterprise_installation, not "enterprise_workflow"`},
		{"OAuth app without a secret", "credentials: [{name: a, kind: oauth_app, token: id}]", "2:49: credentials[0].token: must be id:secret for kind oauth_app"},
		{"trusted proxy by host name", "callers: {trusted_proxies: [10.0.0.0/8, balancer]}", `2:41: callers.trusted_proxies[1]: "balancer": must be an address or a network such as 10.0.0.0/8`},
		{"unknown credential for anonymous clients", "callers: {anonymous: {credential: b, operations: [gitignore/*]}}", `2:35: callers.anonymous.credential: "b" is not one of the credentials; add it to credentials`},
		{"no operations for anonymous clients", "credentials: [{name: a, kind: user, token: x}]\ncallers: {anonymous: {credential: a}}", "3:22: callers.anonymous.operations: required: the operations that anonymous clients may read, such as repos/get"},
		{"unknown operations for anonymous clients", "credentials: [{name: a, kind: user, token: x}]\ncallers: {anonymous: {credential: a, operations: [none/x]}}", `3:51: callers.anonymous.operations[0]: "none/x": matches no operation; list the names with weir catalogue`},
		{"operations for anonymous clients without a credential", "callers: {anonymous: {operations: [gitignore/*]}}", "2:22: callers.anonymous.credential: required: the name of one of the credentials"},
		{"client with the name of anonymous clients", "credentials: [{name: a, kind: user, token: x}]\ncallers: {anonymous: {credential: a, operations: [gitignore/*]}}\nclients: [{name: anonymous, key: \"sha256:" + strings.Repeat("0", 64) + "\", credentials: [a]}]", `3:22: callers.anonymous: a client or group has the name "anonymous", which is that of anonymous clients; rename it`},
		{"no clients and no pass-through", "callers: {pass_through: false}", "2:25: callers.pass_through: is false and there are no clients, so every request would be refused"},
		{"headroom of 1", "limits: {headroom: 1}", "2:20: limits.headroom: 1: must be from 0 to below 1"},
		{"no probes", "limits: {probes: 0}", "2:18: limits.probes: 0: must be 1 or more"},
		{"negative headroom", "limits: {headroom: -0.1}", "2:20: limits.headroom: -0.1: must be from 0 to below 1"},
		{"cold start", "limits: {cold_start: hot}", `2:22: limits.cold_start: "hot": must be one of ramp, strict, trust`},
		{"store loss", "limits: {on_store_loss: open}", `2:25: limits.on_store_loss: "open": must be one of share, closed`},
		{"refusal status", "limits: {refusal_status: 503}", `2:26: limits.refusal_status: "503": must be one of 0, 429, 403`},
		{"negative rate", "limits: {inbound: {rate: -1}}", "2:26: limits.inbound.rate: -1: must be 1 or more, or 0 for no limit"},
		{"fractional rate", "limits: {inbound: {rate: 0.5}}", `2:26: limits.inbound.rate: "0.5" is not a whole number; use only digits`},
		{"body timeout of 0", "limits: {inbound: {body: 0s}}", "2:26: limits.inbound.body: 0s: must be more than 0"},
		{"burst of 0", "limits: {inbound: {burst: 0}}", "2:27: limits.inbound.burst: 0: must be 1 or more"},
		{"negative burst without a rate", "limits: {inbound: {rate: 0, burst: -1}}", "2:36: limits.inbound.burst: -1: must be 1 or more"},
		{"misspelled inbound key", "limits: {inbound: {rates: 1}}", `2:20: limits.inbound.rates: unknown key; did you mean "rate"?`},
		{"cache too small", "cache: {memory: 512KiB}", "2:17: cache.memory: 512KiB: must be 1MiB or more"},
		{"unknown operation", "cache: {operations: {gitignore/none: {ttl: 1h}}}", "2:38: cache.operations.gitignore/none: unknown operation; list the names with weir catalogue"},
		{"misspelled operation", "cache: {operations: {gitignore/get-templates: {ttl: 1h}}}", `2:47: cache.operations.gitignore/get-templates: unknown operation; did you mean "gitignore/get-template"?`},
		{"TTL for an operation that is not reference data", "cache: {operations: {watching/list-mine: {ttl: 1h}}}", "2:42: cache.operations.watching/list-mine: is neither reference data nor immutable; remove ttl, because the upstream sets the lifetime of its responses"},
		{"lifetime of a query below a second", "cache: {graphql: {rules: [{operation: List, ttl: 500ms}]}}", "2:50: cache.graphql.rules[0].ttl: 500ms: must be from 1s to 10m"},
		{"lifetime of a query above ten minutes", "cache: {graphql: {rules: [{field: viewer, ttl: 11m}]}}", "2:48: cache.graphql.rules[0].ttl: 11m: must be from 1s to 10m"},
		{"query without a lifetime", "cache: {graphql: {rules: [{operation: List}]}}", "2:27: cache.graphql.rules[0].ttl: 0s: must be from 1s to 10m"},
		{"rule for no query", "cache: {graphql: {rules: [{ttl: 1s}]}}", "2:27: cache.graphql.rules[0]: needs either operation or field"},
		{"rule for an operation and a field", "cache: {graphql: {rules: [{operation: List, field: viewer, ttl: 1s}]}}", "2:27: cache.graphql.rules[0]: needs either operation or field"},
		{"second rule for an operation", "cache: {graphql: {rules: [{operation: List, ttl: 1s}, {operation: List, ttl: 2s}]}}", `2:55: cache.graphql.rules[1]: "List" is a duplicate`},
		{"operation that is no name", "cache: {graphql: {rules: [{operation: gh pr list, ttl: 1s}]}}", `2:39: cache.graphql.rules[0].operation: "gh pr list" is not a name in GraphQL`},
		{"misspelled root field", "cache: {graphql: {rules: [{field: repositry, ttl: 1s}]}}", `2:35: cache.graphql.rules[0].field: "repositry": unknown root field; did you mean "repository"?`},
		{"root field that cannot be stored", "cache: {graphql: {rules: [{field: rateLimit, ttl: 1s}]}}", `2:35: cache.graphql.rules[0].field: "rateLimit" may report the budget of the moment and cannot be stored`},
		{"renamed key", "cache: {operations: {gitignore/get-template: {ttl: 1h, alone: true}}}", "2:56: cache.operations.gitignore/get-template.alone: the key is now called coalesce; replace alone: true with coalesce: false"},
		{"operation without an override", "cache: {operations: {gitignore/get-template: {}}}", "2:46: cache.operations.gitignore/get-template.ttl: 0s: must be more than 0"},
		{"poll factor below 1", "statistics: {poll: {factor: 0.5}}", "2:29: statistics.poll.factor: 0.5: must be 1 or more"},
		{"first poll pause above the maximum", "statistics: {poll: {first: 20s}}", "2:20: statistics.poll.max: 15s: must not be less than first, 20s"},
		{"webhook path of the API", "webhooks: {path: /hooks}", `2:18: webhooks.path: "/hooks": must begin with /_weir/ and contain no empty or dot segment`},
		{"webhook path with a dot segment", "webhooks: {path: /_weir/../user}", `2:18: webhooks.path: "/_weir/../user": must begin with /_weir/ and contain no empty or dot segment`},
		{"webhook freshness without a secret", "webhooks: {fresh: 30m}", `2:19: webhooks.fresh: requires webhooks.secret`},
		{"lag above a minute", "cache: {lag: 61s}", "2:14: cache.lag: 1m1s: must be from 0s to 1m"},
		{"webhook freshness above a day", "webhooks: {secret: 0123456789abcdef0123456789abcdef, fresh: 25h}", `2:61: webhooks.fresh: 25h: must be from 0s to 24h`},
		{"empty webhook path", "webhooks: {path: /_weir/}", `2:18: webhooks.path: "/_weir/": must begin with /_weir/ and contain no empty or dot segment`},
		{"sample above 1", "telemetry: {sample: 1.5}", "2:21: telemetry.sample: 1.5: must be from 0 to 1"},
		{"invalid domain", "tls: {domains: [\"weir_1.example.com\"]}", `2:17: tls.domains[0]: "weir_1.example.com": must be a full domain name in lower case such as weir.example.com (non-ASCII names as xn--…)`},
		{"domain with one label", "tls: {domains: [localhost]}", `2:17: tls.domains[0]: "localhost": must be a full domain name in lower case such as weir.example.com (non-ASCII names as xn--…)`},
		{"domain in upper case", "tls: {domains: [Weir.example.com]}", `2:17: tls.domains[0]: "Weir.example.com": must be a full domain name in lower case such as weir.example.com (non-ASCII names as xn--…)`},
		{"domain with a trailing dot", "tls: {domains: [weir.example.com.]}", `2:17: tls.domains[0]: "weir.example.com.": must be a full domain name in lower case such as weir.example.com (non-ASCII names as xn--…)`},
		{"wildcard domain", "tls: {domains: [\"*.example.com\"]}", `2:17: tls.domains[0]: "*.example.com": wildcards need a DNS-01 challenge, which is not supported; add your own certificate to tls.certificates`},
		{"IP address as domain", "tls: {domains: [192.0.2.1]}", `2:17: tls.domains[0]: "192.0.2.1" is an IP address; use a domain name`},
		{"duplicate domain", "tls: {domains: [a.example, a.example]}", `2:28: tls.domains[1]: "a.example" is a duplicate`},
		{"ACME directory without TLS", "tls: {ca: \"http://u:p@ca.internal\"}", `2:11: tls.ca: "http://•••@ca.internal": must be the absolute https URL of an ACME directory`},
		{"invalid email address", "tls: {email: ops}", `2:14: tls.email: "ops" is not an email address`},
		{"empty TLS storage", "tls: {storage: \"\"}", `2:16: tls.storage: must be store or a directory`},
		{"HTTP redirect without HTTPS", "tls: {http: \":80\"}", `2:13: tls.http: HTTPS is off, because tls.domains and tls.certificates are empty`},
		{"invalid address for the HTTP redirect", "tls: {http: here, domains: [a.example]}", `2:13: tls.http: "here" is not an address; use host:port or :port, with a port up to 65535`},
		{"certificate without a key", "tls: {certificates: [{certificate: a.pem}]}", `2:22: tls.certificates[0]: needs certificate and key, both PEM files`},
		{"missing certificate file", "tls: {certificates: [{certificate: /none/a.pem, key: /none/a.key}]}", `2:22: tls.certificates[0]: "/none/a.pem" with "/none/a.key": open /none/a.pem: no such file or directory; create the file, or correct its path`},
		{"long drain delay", "drain: {delay: 2h}", "2:16: drain.delay: 2h: must be from 0s to 1h"},
		{"drain timeout of 0", "drain: {timeout: 0s}", "2:18: drain.timeout: 0s: must be from 1s to 1h"},
		{"unknown RateLimit version", "headers: {ratelimit: \"on\"}", `2:22: headers.ratelimit: "on": must be one of off, draft-08`},
		{"content window of 0", "limits: {content: [{max: 1, window: 0s}]}", "2:37: limits.content[0].window: 0s: must be more than 0"},
		{"duplicate content window", "limits: {content: [{max: 1, window: 1s}, {max: 2, window: 1s}]}", "2:59: limits.content[1].window: 1s is a duplicate"},
		{"too many content windows", "limits: {content: [{max: 1, window: 1s}, {max: 1, window: 2s}, {max: 1, window: 3s}, {max: 1, window: 4s}, {max: 1, window: 5s}]}", "2:19: limits.content: 5 windows; at most 4 are allowed"},
		{"content limit of 0", "limits: {content: [{max: 0, window: 1s}]}", "2:26: limits.content[0].max: 0: must be 1 or more"},
		{"CPU factor of 0", "limits: {cpu: {factor: 0}}", "2:24: limits.cpu.factor: 0: must be more than 0"},
	})
}

func TestNumbersAndWindowsMustBePositive(t *testing.T) {
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
		t.Run(key, func(t *testing.T) { rejects(t, key, "0s", "0s: must be more than 0") })
	}
}

// rejects sets a key to a value and expects one problem at the key.
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
	failIf(t, err == nil || strings.Count(message(err), "\n") > 0 || !strings.HasSuffix(message(err), ": "+key+": "+want), "%s: %s: got %v, want %s", key, value, err, want)
}

func TestUpstreamURL(t *testing.T) {
	mistakes := []mistake{
		{"empty egress", `upstream: {url: "https://h", egress: ""}`, "1:38: upstream.egress: must not be empty"},
		{"alias with a user name", `upstream: {url: "https://h", aliases: ["https://u:p@b.test"]}`, "1:40: upstream.aliases[0]: contains a user name; move the credential to credentials"},
		{"alias with a path and no scheme", `upstream: {url: "https://h", aliases: [b.test, c.test/api]}`, `1:48: upstream.aliases[1]: "c.test/api": must be a host such as api.example.com, or a base URL`},
		{"proxy with another scheme", `upstream: {url: "https://h", proxy: "ftp://u:hidden@b.test"}`, "1:37: upstream.proxy: must be a URL such as http://USER:PASSWORD@proxy.example.com:3128, with the scheme http, https or socks5"},
		{"exception without a proxy", `upstream: {url: "https://h", no_proxy: [b.test]}`, "1:40: upstream.no_proxy: requires upstream.proxy"},
	}
	for bad, want := range map[string]string{
		"":                     "required: the base URL of the API",
		"api.example.com":      `"api.example.com": must be an absolute http or https URL`,
		"/api":                 `"/api": must be an absolute http or https URL`,
		"https:///api":         `"https:///api": must be an absolute http or https URL`,
		"ftp://h":              `"ftp://h": must be an absolute http or https URL`,
		"http://a b":           `"http://a b": must be an absolute http or https URL`,
		"https://h:port":       `"https://h:port": the port must be a number from 1 to 65535, as in https://api.example.com:8443`,
		"https://u@h":          "contains a user name; move the credential to credentials",
		"https://u:p@h?q":      "contains a user name; move the credential to credentials",
		"https://h?a=b":        `"https://h?a=b": must have neither query nor fragment`,
		"https://h?":           `"https://h?": must have neither query nor fragment`,
		"https://h#top":        `"https://h#top": must have neither query nor fragment`,
		"https://h#":           `"https://h#": must have neither query nor fragment`,
		"https://h?token=abcd": `"https://h?token=•••": must have neither query nor fragment`,
	} {
		mistakes = append(mistakes, mistake{bad, fmt.Sprintf("upstream: {url: %q}", bad), "1:17: upstream.url: " + want})
	}
	checkMistakes(t, "", mistakes)
}

// TestFilesThatAreAccepted checks the exceptions to checks, and unusual syntax.
func TestFilesThatAreAccepted(t *testing.T) {
	texts := []string{
		"\ufeff" + minimal, // a byte order mark
		`{"upstream": {"url": "https://api.example.com"}, "limits": {"wait": "1s"}}`,
		minimal + "limits: {concurrent: '5'}",
		"upstream:\r\n  url: https://api.example.com\r\n",
		"upstream: {url: &u \"https://api.example.com\", egress: *u}",
		minimal + "...\n",
		minimal + "# the end",
	}
	for format, values := range map[string][]string{
		"upstream: {url: %q}":                  {"http://h", "https://h:8443/api/v3", "https://h/", "http://[::1]:9000", "HTTPS://h", "http://:9000"},
		minimal + "admin: {listen: %q}":        {"127.0.0.1:9090", "127.0.0.2:0", "[::1]:9090", "localhost:9090"}, // without a token
		minimal + "store: {url: %q}":           {"memory:", "memory:/var/lib/weir/ledger", "redis://h", "rediss://u:p@h:6379/0"},
		minimal + "store: {url: \"redis+%s\"}": {"sentinel://h?master_name=m", "cluster://h?addr=other:6379"},
	} {
		for _, value := range values {
			texts = append(texts, fmt.Sprintf(format, value))
		}
	}
	for _, text := range texts {
		_, err := parse(t, text)
		failIf(t, err != nil, "%s: %v", text, err)
	}
}

func TestInboundRateZeroMeansNoLimit(t *testing.T) {
	rateAndBurst := func(text string) [2]int {
		in := valid(t, minimal+"limits: {inbound: "+text+"}").Limits.Inbound
		return [2]int{in.Rate, in.Burst}
	}
	testservers.EqualEach(t, rateAndBurst, map[string][2]int{
		"{rate: 0}": {0, 1000}, "{rate: 0, burst: 0}": {0, 0}, "{rate: 1, burst: 1}": {1, 1}, "{rate: 2000}": {2000, 1000}, "{}": {500, 1000},
	})
}

func TestClientMistakesAreReported(t *testing.T) {
	hash := func(digit string) string { return `"sha256:` + strings.Repeat(digit, 64) + `"` }
	hashes := strings.NewReplacer("%a", hash("a"), "%A", hash("A"), "%b", hash("b"))
	mistakes := []mistake{
		{"no name", "{key: %a, credentials: [ci]}", "3:11: clients[0].name: required; each needs its own"},
		{"no key", "{name: a, credentials: [ci]}", "3:11: clients[0].key: required; create one with weir key new, or set certificate or jwt"},
		{"key instead of its hash", "{name: a, key: hunter2, credentials: [ci]}", "3:26: clients[0].key: must be sha256: and 64 hexadecimal digits, not the key; create both with weir key new"},
		{"half a hash", "{name: a, key: \"sha256:00\", credentials: [ci]}", "3:26: clients[0].key: must be sha256: and 64 hexadecimal digits, not the key; create both with weir key new"},
		{"no credentials", "{name: a, key: %a}", "3:11: clients[0].credentials: must name at least one credential that the client may spend, such as [main]"},
		{"credential that does not exist", "{name: a, key: %a, credentials: [ci, ic]}", `3:119: clients[0].credentials[1]: "ic" is not among credentials; add it to credentials, or use one of ci`},
		{"empty credential name", "{name: a, key: %a, credentials: [ci, ~]}", `3:114: clients[0].credentials[1]: "" is not among credentials; add it to credentials, or use one of ci`},
		{"no share", "{name: a, key: %a, credentials: [ci], share: 0}", "3:127: clients[0].share: 0: must be from 1 to 1000"},
		{"limit of 0", "{name: a, key: %a, credentials: [ci], limit: 0}", "3:127: clients[0].limit: 0: must be above 0 and at most 1"},
		{"limit in percent", "{name: a, key: %a, credentials: [ci], limit: 50}", "3:127: clients[0].limit: 50: must be above 0 and at most 1"},
		{"removed pace", "{name: a, key: %a, credentials: [ci], pace: even}", "3:120: clients[0].pace: the key was removed; remove pace: burst, and replace pace: even with priority: batch"},
		{"limit of tags in percent", "{name: a, key: %a, credentials: [ci], tag_limit: 50}", "3:131: clients[0].tag_limit: 50: must be from 0 to 1"},
		{"negative depth", "{name: a, key: %a, credentials: [ci], graphql: {depth: -1}}", "3:137: clients[0].graphql.depth: -1: must not be negative"},
		{"repository without owner", "{name: a, key: %a, credentials: [ci], graphql: {repositories: [widgets]}}", `3:145: clients[0].graphql.repositories[0]: "widgets": must be OWNER/NAME, such as acme/*`},
		{"pattern of repositories without owner", "{name: a, key: %a, credentials: [ci], repositories: ['*']}", `3:135: clients[0].repositories[0]: "*": must be OWNER/NAME or !OWNER/NAME, such as acme/* or !acme/secret`},
		{"exceptions only", "{name: a, key: %a, credentials: [ci], repositories: ['!acme/secret']}", "3:134: clients[0].repositories: has only exceptions, so no repository is permitted; add a pattern such as */*"},
		{"repository as organization", "{name: a, key: %a, credentials: [ci], organizations: [acme/widgets]}", `3:136: clients[0].organizations[0]: "acme/widgets": must be the name of an organization or a user; list repositories in clients[0].repositories`},
		{"claim without issuer", "{name: a, key: %a, credentials: [ci], repositories: ['*/*'], jwt: {repositories: repository}}", "3:163: clients[0].jwt.repositories: needs clients[0].jwt.issuer"},
		{"text of a query", "{name: a, key: %a, credentials: [ci], graphql: {persisted: ['{viewer{login}}']}}", "3:142: clients[0].graphql.persisted[0]: must be 64 lower-case hexadecimal digits: the SHA-256 of the query"},
		{"client with the name of a tag", "{name: a, key: %a, credentials: [ci], tag_limit: 0.5}, {name: a/b, key: %b, credentials: [ci]}", `3:131: clients[0].tag_limit: "a/b" could be a tag of this client; rename the client or group "a/b"`},
		{"negative writes", "{name: a, key: %a, credentials: [ci], writes: {per_minute: -1}}", "3:141: clients[0].writes.per_minute: -1: must be 1 or more, or 0 for no limit"},
		{"huge writes", "{name: a, key: %a, credentials: [ci], writes: {per_hour: 9000000000000000000}}", "3:139: clients[0].writes.per_hour: 9000000000000000000: must be at most 1000000000"},
		{"client with the name of a tag with writes", "{name: a, key: %a, credentials: [ci], tag_writes: {per_hour: 9}}, {name: a/b, key: %b, credentials: [ci]}", `3:132: clients[0].tag_writes: "a/b" could be a tag of this client; rename the client or group "a/b"`},
		{"guarantee above the limit", "{name: a, key: %a, credentials: [ci], guarantee: 0.6, limit: 0.5}", "3:131: clients[0].guarantee: 0.6: must be from 0 to the limit, 0.5"},
		{"group", "{name: a, key: %a, credentials: [ci], group: qa}", `3:127: clients[0].group: "qa" is not among groups; add it to groups`},
		{"guarantees above 1", "{name: a, key: %a, credentials: [ci], guarantee: 0.6}, {name: b, key: %b, credentials: [ci], guarantee: 0.5}", `3:257: clients[1].guarantee: 0.5: the guarantees for credential "ci" exceed 1; lower one of them`},
		{"priority", "{name: a, key: %a, credentials: [ci], priority: urgent}", `3:130: clients[0].priority: "urgent": must be one of interactive, normal, batch`},
		{"duplicate name", "{name: a, key: %a, credentials: [ci]}, {name: a, key: %b, credentials: [ci]}", `3:128: clients[1].name: "a" is a duplicate; each needs its own`},
		{"duplicate key", "{name: a, key: %a, credentials: [ci]}, {name: b, key: %A, credentials: [ci]}", "3:136: clients[1].key: is also the key of clients[0]; each client needs its own"},
	}
	for _, c := range []struct {
		key, text string
		column    int
	}{
		{"methods", "methods: []", 129},
		{"operations", "operations: []", 132},
		{"operations", "operations: ~", 132},
		{"repositories", "repositories: []", 134},
		{"organizations", "organizations: ", 135},
		{"graphql.operations", "graphql: {operations: ~}", 142},
		{"graphql.repositories", "graphql: {repositories: []}", 144},
		{"graphql.persisted", "graphql: {persisted: []}", 141},
	} {
		mistakes = append(mistakes, mistake{"empty " + c.text, "{name: a, key: %a, credentials: [ci], " + c.text + "}", fmt.Sprintf(
			"3:%d: clients[0].%s: is empty, which would permit all; list the permitted ones, or remove the key", c.column, c.key)})
	}
	for i := range mistakes {
		mistakes[i].text = hashes.Replace(mistakes[i].text) + "]"
	}
	checkMistakes(t, minimal+"credentials: [{name: ci, kind: user, token: x}]\nclients: [", mistakes)
}

func TestUndecodableValueHasOneProblem(t *testing.T) {
	for _, text := range []string{"limits: {primary: {user: x}}", "limits: {primary: x}", "limits: x", "clients: x", "cache: {memory: x}", "store: {url: [x]}", "upstream: x"} {
		base := minimal
		if strings.HasPrefix(text, "upstream") {
			base = ""
		}
		_, err := parse(t, base+text)
		failIf(t, err == nil || strings.Contains(message(err), "\n"), "%s: want one problem, got %v", text, err)
	}
}

// certificates returns a directory with a self-signed certificate, its key and an empty file.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	own := must(testservers.SelfSigned(&x509.Certificate{IsCA: true, BasicConstraintsValid: true}))
	err := testservers.WritePair(own, filepath.Join(dir, "own.pem"), filepath.Join(dir, "own.key"))
	noError(t, errors.Join(err, os.WriteFile(filepath.Join(dir, "empty.pem"), nil, 0o600)))
	return dir
}

func TestAdminCertificates(t *testing.T) {
	dir := certificates(t)
	for _, c := range []struct{ name, tls, want string }{
		{"certificate without a key", "certificate: own.pem", "2:31: admin.tls: needs certificate and key"},
		{"client_ca without a certificate", "client_ca: own.pem", "2:31: admin.tls: needs certificate and key"},
		{"missing certificate file", "certificate: none.pem, key: own.key", "no such file or directory"},
		{"certificate instead of a key", "certificate: own.pem, key: own.pem", "admin.tls: "},
		{"missing client_ca file", "certificate: own.pem, key: own.key, client_ca: none.pem", "none.pem: no such file or directory"},
		{"empty client_ca file", "certificate: own.pem, key: own.key, client_ca: empty.pem", `empty.pem" contains no PEM certificate`},
		{"key instead of client_ca", "certificate: own.pem, key: own.key, client_ca: own.key", `own.key" contains no PEM certificate`},
		{"public HTTPS without token and client_ca", "certificate: own.pem, key: own.key", "2:8: admin.token: required"},
		{"client_ca without token", "certificate: own.pem, key: own.key, client_ca: " + filepath.Join(dir, "own.pem"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := minimal + fmt.Sprintf("admin: {listen: \":9090\", tls: {%s}, hosts: [weir.internal]}", c.tls)
			got, err := parseAt(filepath.Join(dir, "weir.yaml"), text)
			if c.want != "" {
				failIf(t, err == nil || got != nil || !strings.Contains(err.Error(), c.want), "got %v, want %s", err, c.want)
				return
			}
			loaded := must(must(got, err).Admin.TLS.Load())
			failIf(t, loaded.ClientAuth != tls.VerifyClientCertIfGiven || loaded.ClientCAs == nil || loaded.MinVersion != tls.VersionTLS13, "TLS configuration %+v", loaded)
		})
	}
}

func TestAdminHostsMustBeNames(t *testing.T) {
	var mistakes []mistake
	for name, host := range map[string]string{"name with a port": "weir:9090", "URL": "https://weir", "empty": ""} {
		mistakes = append(mistakes, mistake{name, fmt.Sprintf("admin: {hosts: [%q]}", host),
			fmt.Sprintf("2:17: admin.hosts[0]: %q: must be only a name such as weir.internal, without scheme and port", host)})
	}
	checkMistakes(t, minimal, mistakes)
}

func TestPrometheusURLMayHaveAPathPrefix(t *testing.T) {
	c := valid(t, minimal+`admin: {prometheus: {url: "https://metrics.example.com/prometheus/", token: "${TOKEN}"}}`)
	p := c.Admin.Prometheus
	failIf(t, p.URL != "https://metrics.example.com/prometheus/" || p.Token.Reveal() != "s3cret", "got %+v", p)
}

func TestPositionsOfValues(t *testing.T) {
	text := minimal + "admin: {token: plain}\ncredentials: [{name: a, kind: user, token: \"${TOKEN}\"}]\nwebhooks: {secret: \"\"}\n"
	_, positions, err := ParseWithPositions(Source{Path: "weir.yaml", Getenv: env("TOKEN", "s3cret")}, []byte(text))
	noError(t, err)
	position := func(key string) string {
		line, column := positions.At(key)
		return fmt.Sprintf("%d:%d %v", line, column, positions.Plain(key))
	}
	testservers.EqualEach(t, position, map[string]string{
		"upstream.url": "1:17 true", "admin.token": "2:16 true", "admin.listen": "2:8 false",
		"credentials[0].token": "3:44 false", "webhooks.secret": "4:20 false", "store.url": "1:1 false",
	})
}

const heldAndIssuers = minimal + `credentials: [{name: ci, kind: user, token: x}]
issuers: [{name: actions, url: "https://issuer.example", audiences: [weir]}]
`

func TestIdentityMistakesAreReported(t *testing.T) {
	algorithms := "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"
	mistakes := []mistake{
		{"short fingerprint", "clients: [{name: a, certificate: \"sha256:00\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "sha256:00": the fingerprint must have 64 hexadecimal digits`},
		{"certificate without a form", "clients: [{name: a, certificate: builds, credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "builds": must be sha256:FINGERPRINT, subject:NAME, dns:NAME, uri:URI or email:ADDRESS`},
		{"name without an authority", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "dns:a": a name needs tls.client_ca, which is not set`},
		{"certificate without HTTPS", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]", "4:34: clients[0].certificate: HTTPS is off, because tls.domains and tls.certificates are empty"},
		{"client_ca without certificates", "tls: {client_ca: config.go}", `4:18: tls.client_ca: "config.go": must contain certificates in PEM, and nothing after them`},
		{"unknown issuer", "clients: [{name: a, jwt: {issuer: b, claims: {sub: x}}, credentials: [ci]}]", `4:35: clients[0].jwt.issuer: "b" is not among issuers; add it to issuers, or use one of actions`},
		{"claims without an issuer", "clients: [{name: a, jwt: {claims: {sub: x}}, credentials: [ci]}]", `4:26: clients[0].jwt.issuer: "" is not among issuers; add it to issuers, or use one of actions`},
		{"no claims", "clients: [{name: a, jwt: {issuer: actions}, credentials: [ci]}]", `4:26: clients[0].jwt.claims: required; select this client's tokens, for example {sub: "repo:acme/widgets:*"}`},
		{"claim for tags without an issuer", "clients: [{name: a, key: \"sha256:" + strings.Repeat("0", 64) + "\", jwt: {tag: repository}, credentials: [ci]}]", "4:112: clients[0].jwt.tag: needs jwt.issuer and jwt.claims"},
		{"empty claim", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: \"\"}}, credentials: [ci]}]", "4:58: clients[0].jwt.claims.sub: must not be empty"},
		{"method in lower case", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, methods: [get], credentials: [ci]}]", `4:73: clients[0].methods[0]: "get": must be one of GET, POST, PUT, PATCH, DELETE, OPTIONS`},
		{"misspelled operation", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [gitignore/get-templates], credentials: [ci]}]", `4:76: clients[0].operations[0]: "gitignore/get-templates": matches no operation; did you mean "gitignore/get-template"?`},
		{"pattern without a match", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [\"nothing/*\"], credentials: [ci]}]", `4:76: clients[0].operations[0]: "nothing/*": matches no operation; list the names with weir catalogue`},
		{"issuer without TLS", "issuers: [{name: b, url: \"http://b.example\", audiences: [weir]}]", `4:26: issuers[0].url: "http://b.example": must begin with https:// unless the host is loopback`},
		{"issuer without URL", "issuers: [{name: b, audiences: [weir]}]", "4:11: issuers[0].url: required; each needs its own"},
		{"issuer without audiences", "issuers: [{name: b, url: \"https://b.example\"}]", "4:11: issuers[0].audiences: must name this gateway; otherwise tokens for other services would be accepted"},
		{"algorithm none", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [none]}]", `4:79: issuers[0].algorithms[0]: "none": must be one of ` + algorithms},
		{"HMAC algorithm", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [HS256]}]", `4:79: issuers[0].algorithms[0]: "HS256": must be one of ` + algorithms},
		{"no algorithms", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: []}]", "4:78: issuers[0].algorithms: must not be empty"},
		{"large skew", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], skew: 6m}]", "4:72: issuers[0].skew: 6m: must be from 0s to 5m"},
		{"duplicate issuer URL", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir]}, {name: c, url: \"https://b.example\", audiences: [weir]}]", `4:82: issuers[1].url: "https://b.example" is a duplicate; each needs its own`},
	}
	for _, m := range mistakes {
		beginning := heldAndIssuers
		if strings.HasPrefix(m.text, "issuers") {
			beginning = minimal + "credentials: [{name: ci, kind: user, token: x}]\n\n"
		}
		checkMistakes(t, beginning, []mistake{m})
	}
}

func TestClientsWithCertificatesAndTokens(t *testing.T) {
	c := valid(t, heldAndIssuers+`tls: {domains: [weir.example], client_ca: "`+certificates(t)+`/own.pem"}
clients:
  - {name: a, certificate: "dns:a.example", methods: [GET], operations: ["search/*", unknown], credentials: [ci]}
  - {name: b, jwt: {issuer: actions, claims: {sub: "repo:acme/*"}}, credentials: [ci]}
  - {name: c, certificate: "sha256:`+strings.Repeat("0", 64)+`", credentials: [ci]}
`)
	failIf(t, c.Clients[0].Share != 1 || c.Clients[2].Priority != "normal", "clients %+v", c.Clients)
	want := []credential.Issuer{{
		Name: "actions", URL: "https://issuer.example", Audiences: []string{"weir"}, Algorithms: []string{"RS256", "ES256"}, Skew: 30 * time.Second,
	}}
	equal(t, "configuration", c.Issuers, want)
	_, err := parse(t, heldAndIssuers+`tls: {client_ca: /nonexistent}`)
	failIf(t, err == nil || !strings.Contains(message(err), "4:18: tls.client_ca: open /nonexistent: no such file"), "unreadable client_ca: %v", err)
}

// The guarantees of many interactive clients exceed a window together. The ledger shrinks them.
func TestManyInteractiveClientsAreValid(t *testing.T) {
	var clients []string
	for i := range 30 {
		name := fmt.Sprint("person-", i)
		clients = append(clients, fmt.Sprintf(`{name: %s, key: "sha256:%x", credentials: [ci], priority: interactive}`, name, sha256.Sum256([]byte(name))))
	}
	valid(t, heldAndIssuers+"clients: ["+strings.Join(clients, ", ")+"]")
}

func TestClaimOfRepositoriesNeedsAListBesideAKey(t *testing.T) {
	_, err := parse(t, `
credentials: [{name: ci, kind: user, token: t}]
issuers: [{name: i, url: "https://issuer.example.com", audiences: [weir]}]
clients: [{name: a, key: "sha256:`+strings.Repeat("0", 63)+`1", credentials: [ci], jwt: {issuer: i, claims: {sub: "*"}, repositories: repository}}]
`)
	failIf(t, err == nil || !strings.Contains(err.Error(), "clients[0].repositories: required: a key or a certificate has no claim"), "got %v", err)
}
