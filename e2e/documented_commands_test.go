//go:build e2e

package e2e

// documentedCommand is a command of the documentation that the test runs.
type documentedCommand struct {
	command string // the text in the documentation; bin/weir is written weir
	want    string // pattern of the output
	as      string // script to run instead, where the command contains placeholders such as FILE
	stays   bool   // the command runs until it is interrupted, and must exit with code 0
	while   string // script that runs repeatedly until the output matches
}

// documentedCommands run in this order, in one folder, against one demo. The addresses in the documentation are
// replaced by the addresses of the demo and of two more gateways.
var documentedCommands = []documentedCommand{
	// docs/migration.md, docs/concepts.md. These commands are first because they need statistics that are not cached.
	{command: "weir tail --cache waited", want: ` waited .*statistics/commit-activity`, stays: true, while: "curl 127.0.0.1:8080/repos/acme/widgets/stats/commit_activity"},
	{command: `weir tail --json | grep '"background": *true'`, as: "weir tail --json", want: `"operation":"statistics/[^\n]*"background":true`, stays: true, while: "for s in participation contributors; do curl 127.0.0.1:8080/repos/acme/monolith/stats/$s; done"},

	// README.md
	{command: "curl -i 127.0.0.1:8080/gitignore/templates", want: `(?s)Cache-Status: weir; (fwd=uri-miss|hit).*X-Ratelimit-Limit: 60.*"Go"`},
	{command: "curl -i 127.0.0.1:8080/repos/acme/widgets/stats/commit_activity", want: `(?s)^HTTP/1.1 200 .*"total"`},
	{command: "curl -s 127.0.0.1:9090/api/v1/requests", want: `(?s)"operation": "statistics/commit-activity".*"why": "(Hit|Miss): `},
	{command: "curl 127.0.0.1:9000/_service/violations", want: `"violations":0`},
	{command: "weir demo --traffic=off", want: `Weir is running; Ctrl-C ends it`, stays: true},
	{command: "make help", as: `make -s -C "$CHECKOUT" help`, want: `(?s)make demo .*make test .*make lint `},
	{command: "weir init", as: "weir init --out first.yaml --upstream https://api.example.com --credential none", want: `wrote first.yaml, a valid configuration`},
	{command: "weir serve --upstream https://api.example.com", want: `msg="gateway started" address=`, stays: true},
	{command: "weir serve --config weir.yaml", want: `msg="gateway started" address=`, stays: true},
	{command: "weir check weir.yaml", want: `^weir.yaml: valid$`},
	{command: "weir audit weir.yaml", want: `0 high`},
	{command: "weir catalogue 'search/*'", want: `search/code +GET +/search/code +code_search +1 `},
	{command: "weir explain --live ID", as: "weir explain --live last", want: `request +[A-Z2-7]{26}`},
	{command: "weir explain --live last", want: `(?s)request +[A-Z2-7]{26}.*response +\d{3} in .*why +\S`},
	{command: "weir explain GET '/search/code?q=x'", want: `(?s)operation +search/code.*resource +code_search: 10 in 1m`},
	{command: "weir budget --watch", want: `BUDGET +USED +LEFT`, stays: true},
	{command: "weir tail --cache refused", want: ` refused .*search/code`, stays: true, while: "curl '127.0.0.1:8080/search/code?q=x'"},
	{command: "weir cache purge --url /user", want: `0 entries`},
	{command: "weir key new builds", want: `(?s)  weir_[A-Z0-9]{26}\n.*\{name: "builds", key: "sha256:[0-9a-f]{64}", credentials: \[NAME\]\}`},
	{command: "weir health", want: `^ready$`},
	{command: "weir schema", want: `"\$schema"`},
	{command: "weir budget", want: `(?s)egress:shared \(unauthenticated\).*core +\d+/60 +\d+`, as: "weir budget"},

	// docs/get-started.md. TestGetStarted runs the whole page.
	{command: "curl -i -H 'Authorization: Bearer tok-owner' 127.0.0.1:8080/repos/acme/widgets/subscribers", want: `(?s)Remaining: 499\d.*"watcher-01"`},
	{command: "weir explain GET /repos/acme/widgets/subscribers", want: `operation +watching/list-subscribers`},
	{command: `for i in $(seq 31); do curl -s -o /dev/null -w '%{http_code} ' -H 'Authorization: Bearer tok-owner' "127.0.0.1:8080/search/commits?q=gear+$i"; done; echo`, want: `^(200 ){30}429`},
	{command: "weir tail", want: ` hit .*gitignore/list-templates`, stays: true, while: "curl 127.0.0.1:8080/gitignore/templates"},

	// docs/concepts.md
	{command: "weir tail --client builds", as: "weir tail --client builds --admin 127.0.0.1:9091", want: ` builds .*watching/list-subscribers`, stays: true, while: `curl -H "Authorization: Bearer $BUILDS_KEY" 127.0.0.1:8081/repos/acme/widgets/subscribers`},
	{command: "curl -s 127.0.0.1:9090/api/v1/credentials", want: `^\[\]$`},
	{command: "weir explain GET '/search/commits?q=gear'", want: `resource +search: 30 in 1m for a user`},
	{command: `curl -s -H "Authorization: Bearer $TOKEN" 127.0.0.1:8080/rate_limit`, want: `"core":\{"limit":5000,`},
	{command: "curl -si -H 'Authorization: Bearer tok-owner' 127.0.0.1:8080/orgs/acme/members | grep Cache-Status", want: `uri-miss.*stored`},
	{command: "curl -si -H 'Authorization: Bearer tok-outsider' 127.0.0.1:8080/orgs/acme/members | grep Cache-Status", want: `uri-miss.*stored`},
	{command: "for i in 1 2 3 4; do curl -si 127.0.0.1:8080/gitignore/templates/Erlang | grep Cache-Status & done; wait", want: `^1 of 4$`,
		as: `(for i in 1 2 3 4; do curl -si 127.0.0.1:8080/gitignore/templates/Erlang | grep Cache-Status & done; wait) >all; echo $(grep -c 'stored' all) of $(grep -Ec 'stored|collapsed|hit' all)`},
	{command: "curl -s 127.0.0.1:9090/api/v1/state", want: `(?s)"version": "\w.*"upstream": "http://127\.0\.0\.1:.*"dialect": "service".*` +
		`"guarded": false,\s+"store": \{\s+"kind": "memory",\s+"replicas": 1.*"polling": \[.*"refused": \[`},

	// docs/operations.md
	{command: "weir tail --status 5xx", want: `  504  .*only-if-cached`, stays: true, while: "curl -H 'Cache-Control: only-if-cached' 127.0.0.1:8080/gitignore/templates/Swift"},
	{command: "curl -s 127.0.0.1:9090/metrics | grep weir_spent_total", want: `weir_client="pass-through",weir_operation="search/commits",weir_resource="search"\} 30`},
	{command: "curl -s 127.0.0.1:9090/metrics | grep http_client_request_duration_seconds_count", want: `http_response_status_code="200"`},
	{command: "curl -s 127.0.0.1:9090/metrics | grep weir_admissions_total", want: `weir_reason="primary",weir_resource="search"\} 1`},
	{command: "curl -s 127.0.0.1:9090/metrics | grep weir_store_replicas", want: `weir_store_replicas 1`},
	{command: `curl -sS -o /dev/null -w '%{http_code}\n' "$UPSTREAM_URL"`, as: `UPSTREAM_URL=http://127.0.0.1:9000; curl -sS -o /dev/null -w '%{http_code}\n' "$UPSTREAM_URL"`, want: `^200$`},
	{command: "weir catalogue --config weir.yaml --json >catalogue.json", as: "weir catalogue --config weir.yaml --json >catalogue.json; grep search/code catalogue.json", want: `"id": "search/code"`},
	{command: "weir catalogue --config weir.yaml --diff catalogue.json", want: `^$`},
	{command: "curl -s -X POST 127.0.0.1:9090/api/v1/reload", as: "curl -s -X POST 127.0.0.1:9091/api/v1/reload", want: `"reloaded": true`},
	{command: "curl -s 127.0.0.1:9090/api/v1/audit", as: "curl -s 127.0.0.1:9091/api/v1/audit", want: `(?s)"action": "reload".*"outcome": "in force"`},
	{command: "weir cache purge --tag org:acme", want: `^[1-9]\d* entr`},
	{command: "weir check weir.yaml && weir audit weir.yaml", want: `(?s)valid.*0 high`},

	// docs/migration.md
	{command: "curl -s 127.0.0.1:9090/metrics | grep weir_saved_total", want: `weir_operation="gitignore/list-templates"\} [1-9]`},
	{command: `curl -s -H "Authorization: Bearer $TOKEN" -H 'Cache-Control: no-cache' 127.0.0.1:8080/rate_limit`, want: `"search":\{"limit":30,("\w+":\d+,)*"used":30`},
	{command: "weir check ghproxy.yaml", want: `^ghproxy.yaml: valid\nghproxy.yaml: warning: upstream.rewrite_urls is off: .*$`},
	{command: "weir serve --config ghproxy.yaml", want: `msg="gateway started" address=.* dialect=github`, stays: true},
	{command: `curl -s -H 'Prefer: wait=60' -H "Authorization: Bearer $TOKEN" "127.0.0.1:8080/search/commits?q=gear"`, as: `curl -si -H 'Prefer: wait=60' -H "Authorization: Bearer tok-member" "127.0.0.1:8080/search/commits?q=gear"`, want: `(?s)Preference-Applied: wait=60.*"total_count"`},

	// docs/organization.md. TestOrganization runs the rest of the page.
	{command: "for client in triage-bot release-bot ci person; do weir key new $client; done", want: `(?s)(weir_[A-Z0-9]{26}.*){4}`},
	{command: "openssl rand -hex 32 >admin; openssl rand -hex 32 >cache; openssl rand -hex 32 >hook", as: "openssl rand -hex 32 >admin; openssl rand -hex 32 >cache; openssl rand -hex 32 >hook; cat admin cache hook", want: `^([0-9a-f]{64}\n?){3}$`},

	// SECURITY.md, deploy/README.md
	{command: "weir version", want: `^weir `},
	{command: "weir audit FILE", as: "weir audit weir.yaml", want: `0 high`},
	{command: "weir serve --config FILE", as: "weir serve --config weir.yaml", want: `msg="gateway started" address=`, stays: true},
	{command: "docker run -p 8080:8080 weir demo --listen :8080", as: "weir demo --listen :0", want: `Weir is running`, stays: true},
	{command: "export WEIR_ADMIN_TOKEN=$(openssl rand -hex 32) WEIR_CACHE_KEY=$(openssl rand -hex 32)",
		as:   "export WEIR_ADMIN_TOKEN=$(openssl rand -hex 32) WEIR_CACHE_KEY=$(openssl rand -hex 32); echo $WEIR_ADMIN_TOKEN $WEIR_CACHE_KEY",
		want: `^[0-9a-f]{64} [0-9a-f]{64}$`},

	// docs/cache.md
	{command: `curl -si -H "Authorization: Bearer $TOKEN" 127.0.0.1:8080/orgs/acme/members | grep -iE '^(age|cache-status)'`, want: `Cache-Status: weir; (hit|fwd=)`},
	{command: `curl -H 'Cache-Control: no-cache' -H "Authorization: Bearer $TOKEN" 127.0.0.1:8080/orgs/acme/members`, want: `"login":`},
	{command: "weir cache purge --url /orgs/acme/members", want: `^[1-9]\d* entr`},
	{command: "weir cache purge --url /repos/acme/widgets", want: `0 entries`},
	{command: "weir cache purge --tag repo:acme/widgets", want: `^[1-9]\d* entr`},
	{command: "weir cache purge --tag account:octo-bot --hard", want: `0 entries`},

	// docs/configuration.md
	{command: "weir check FILE", as: "weir check weir.yaml", want: `^weir.yaml: valid$`},
	{command: "weir key new NAME", as: "weir key new reports", want: `\{name: "reports", key: "sha256:`},
	{command: `printf %s "$KEY" | sha256sum`, want: `^467b465cdb963912172506225993e5d750903382fc2bcb529bdb8770a8353117 `},
	{command: "openssl x509 -noout -fingerprint -sha256", want: `(?i)sha256 fingerprint=([0-9a-f]{2}:){31}`,
		as: "openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -subj /CN=builds 2>/dev/null | openssl x509 -noout -fingerprint -sha256"},
	{command: "weir catalogue --dialect github 'issues/*' --method GET", want: `(?m)^issues/list-for-repo +GET `},
	{command: "weir catalogue --dialect github --select cache=never", want: `(?m)^rate-limit/get +GET +/rate_limit +core +1 +- +never$`},
	{command: "weir explain METHOD PATH", as: "weir explain PUT /repos/acme/widgets/subscription", want: `operation +watching/set-subscription`},

	// docs/reference-service.md
	{command: "weir service", want: `msg="reference service started" address=`, stays: true},
	{command: "weir service --seed 7 --config weir.yaml", want: `msg="reference service started" address=`, stays: true},
	{command: `weir service --quirks '{"latency":"200ms","error_every":10}'`, want: `msg="reference service started" address=`, stays: true},
	{command: "curl -H 'Authorization: Bearer tok-owner' 127.0.0.1:9000/orgs/acme/organization-roles", want: `"roles":\[\{`},
	{command: `curl -X PUT 127.0.0.1:9000/_service/webhooks -d '[{"url":"http://127.0.0.1:8080/_weir/webhooks","secret":"s","events":["*"],"target":"acme"}]'`, want: `"target":"acme"`},
	{command: `curl -X POST 127.0.0.1:9000/_service/events -d '{"event":"push","repository":"acme/widgets","commits":3}'`, want: `"deliveries":\["[0-9a-f-]{36}"`},
	{command: "weir service --webhook URL", as: "WEIR_WEBHOOK_SECRET=s weir service --webhook http://127.0.0.1:8080/_weir/webhooks", want: `msg="reference service started" address=`, stays: true},

	// docs/judge.md
	{command: "weir judge --programs 3 -- ./my-program", as: "weir judge --listen 127.0.0.1:0 --programs 3 -- true", want: `(?m)^programs +3, for \ds$`},
	{command: "weir serve --config .ci/judge/weir.yaml", as: "weir serve --config $CHECKOUT/.ci/judge/weir.yaml", want: `msg="gateway started" address=`, stays: true},

	// docs/clients.md
	{command: "export WEIR=https://weir.example.com", as: "export WEIR=https://weir.example.com; echo ${WEIR#https://}", want: `^weir.example.com$`},
	{command: "export TOKEN=...", as: `export TOKEN=tok-owner; curl -s -H "Authorization: Bearer $TOKEN" 127.0.0.1:8080/rate_limit`, want: `"core":\{"limit":5000,`},
	{command: `curl -H "Authorization: Bearer $TOKEN" -H "Weir-Tag: nightly/42" "$WEIR/repos/acme/widgets/subscribers"`, as: `curl -s -H "Authorization: Bearer tok-owner" -H "Weir-Tag: nightly/42" 127.0.0.1:8080/repos/acme/widgets/subscribers; weir explain --live last`, want: `(?m)^tag +nightly/42$`},
}
