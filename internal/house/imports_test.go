package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// room is one package of the module and the others it may know.
type room struct {
	dir  string
	may  []string // directories; anything is all but test code
	test bool     // for tests only: no production code may import it
	why  string
}

// anything stands for every package and every dependency.
const anything = "*"

// rooms is the import table. Arrows point down: whoever stands in a row may
// import only what stands in its second column. Test files may import the test
// rooms as well, and nothing else on top.
var rooms = []room{
	{dir: "policy", why: "what the API is, pure data: it knows nobody, so that everybody may know it"},

	{dir: "limits/signals", may: nil, why: "reads what an answer says of limits; what follows is for others"},
	{dir: "limits", may: []string{"policy", "limits/signals"}, why: "what may be sent; what could be answered without sending is not its business"},
	{dir: "limits/redisledger", may: []string{"limits", "limits/signals", "policy", "internal/redisclient"}, why: "one of the two ledgers"},
	{dir: "limits/ledgertest", may: []string{"limits", "limits/signals", "policy"}, test: true, why: "the suite that makes a ledger a ledger"},
	{dir: "limits/hostile", may: []string{"limits", "limits/signals", "policy"}, test: true, why: "an upstream that counts by itself, and means ill"},

	{dir: "cache", may: []string{"policy", "internal/redisclient"}, why: "what may be answered; what sending would cost is not its business"},
	{dir: "cache/redisstore", may: []string{"cache", "policy", "internal/redisclient"}, why: "the tier that replicas share"},

	{dir: "proxy", may: []string{"policy", "limits", "limits/signals", "cache"}, why: "a request's journey: where limits and cache meet"},

	{dir: "internal/front", why: "what can be answered at once, before net/http; what that is others say"},
	{dir: "internal/history", may: []string{"limits", "proxy"}, why: "remembers records and accounts; who looks at them is for others"},
	{dir: "internal/admin", may: []string{"limits", "internal/credential", "internal/history"}, why: "shows accounts and the last hour, and knows its token; it gets everything else as functions"},
	{dir: "internal/config", may: []string{"policy", "internal/credential", "internal/installation", "internal/issuer"}, why: "reads the file into plain values; what they do is for cmd/weir to wire"},
	{dir: "internal/credential", may: []string{"policy", "internal/issuer"}, why: "who calls, told as a policy.Caller"},
	{dir: "internal/installation", may: []string{"internal/credential"}, why: "gets the tokens of apps; who spends them is for others to say"},
	{dir: "internal/tokenstore", may: []string{"internal/credential", "internal/installation", "internal/redisclient"}, why: "where replicas share these tokens"},
	{dir: "internal/issuer", why: "whether a token is its issuer's; whose token it is others say"},
	{dir: "internal/service", may: []string{"policy", "internal/credential"}, why: "judges the gateway, so it shares only the truth about the API with it, and how secrets are kept"},
	{dir: "internal/redisclient", why: "opens clients on the store's URL, in one way for all who keep something there"},
	{dir: "internal/risk", may: []string{"internal/config", "internal/credential"}, why: "reads a configuration and judges it"},
	{dir: "internal/telemetry", may: []string{"limits", "policy", "proxy"}, why: "knows the SDK, so that nobody else has to; makes metrics of records and accounts"},
	{dir: "internal/tlsauto", may: []string{"internal/redisclient"}, why: "certificates and where they are kept"},
	{dir: "internal/webhook", may: []string{"policy"}, why: "turns deliveries into the names of stale operations"},

	{dir: "internal/benchmark", may: []string{"proxy"}, test: true, why: "measures the binary from outside; of its packages it knows how connections are kept, for a reverse proxy beside it"},
	{dir: "internal/browsertest", test: true, why: "a real browser, for tests of the dashboard"},
	{dir: "internal/authority", test: true, why: "a private CA, for what runs real clients against the binary"},
	{dir: "internal/acmetest", test: true, why: "a real ACME server, and what stands before replicas, for tests"},
	{dir: "internal/otlptest", test: true, why: "a receiver of what telemetry sends, for tests"},
	{dir: "internal/redistest", test: true, why: "real Redis servers, for tests"},
	{dir: "internal/pipe", test: true, why: "a network in memory, for tests in virtual time"},
	{dir: "internal/records", test: true, why: "the records of the documents, for tests of the reference service"},
	{dir: "internal/house", test: true, why: "reads source, imports none of it"},

	{dir: "cmd/weir", may: []string{anything}, why: "the only place that wires"},
}

// dependency is something from outside the module that not everybody may know.
type dependency struct {
	path  string   // of a package or of all below it; the longest match counts
	may   []string // directories, or anything
	tests bool     // test files and test rooms may know it, wherever they are
	why   string
}

// dependencies lists every module that is imported, and those packages of the
// standard library that have one home. What stands in no row is not used.
var dependencies = []dependency{
	{path: "net/http/httputil", may: []string{"proxy", "internal/benchmark"}, why: "one reverse proxy; a second would have rules of its own, and is there to be measured beside the first"},
	{path: "testing", tests: true, why: "must not be linked into what users run"},

	{path: "go.yaml.in/yaml/v4", may: []string{"policy", "internal/config", "internal/credential", "internal/service"}, tests: true, why: "the catalogue, the configuration, the reference data"},
	{path: "github.com/vektah/gqlparser/v2", may: []string{"policy", "internal/service"}, why: "a mutation costs more than a query; the reference service answers both"},
	{path: "github.com/alecthomas/kong", may: []string{"cmd/weir"}, why: "the command line"},
	{path: "github.com/fsnotify/fsnotify", may: []string{"internal/config"}, why: "reload when the file changes"},
	{path: "github.com/go-jose/go-jose/v4", may: []string{"internal/issuer"}, tests: true, why: "one place decides which signature counts"},
	{path: "github.com/gofrs/flock", may: []string{"cmd/weir"}, why: "one process at a time has the file of a ledger"},
	{path: "github.com/invopop/jsonschema", may: []string{"internal/config"}, why: "the schema of the configuration"},
	{path: "github.com/klauspost/compress", may: []string{"cache"}, why: "what the second tier holds is compressed"},
	{path: "github.com/dunglas/httpsfv", may: []string{"proxy", "cache"}, tests: true, why: "structured fields (RFC 9651)"},
	{path: "github.com/redis/go-redis", may: []string{"limits/redisledger", "cache/redisstore", "internal/redisclient", "internal/tokenstore", "internal/tlsauto"}, tests: true, why: "everybody else knows a ledger, a store or a storage"},
	{path: "github.com/caddyserver/certmagic", may: []string{"internal/tlsauto"}, why: "orders and renews certificates; everybody else knows a TLS configuration"},
	{path: "github.com/mholt/acmez/v3", may: []string{"internal/tlsauto"}, why: "the ACME of certmagic, for the name of a protocol"},
	{path: "go.uber.org/zap", may: []string{"internal/tlsauto"}, why: "what certmagic logs by; it is handed on to slog"},
	{path: "github.com/letsencrypt/pebble/v2", may: []string{"internal/acmetest"}, why: "an ACME server that validates as real ones do"},
	{path: "github.com/miekg/dns", may: []string{"internal/acmetest"}, why: "names that an ACME server in a test resolves"},
	{path: "github.com/alicebob/miniredis/v2", tests: true, why: "a Redis in virtual time"},
	{path: "go.opentelemetry.io/otel", may: []string{anything}, tests: true, why: "the API is free where no SDK is set"},
	{path: "go.opentelemetry.io/otel/sdk", may: []string{"internal/telemetry"}, tests: true, why: "one place decides where telemetry goes"},
	{path: "go.opentelemetry.io/otel/exporters", may: []string{"internal/telemetry"}, tests: true, why: "as the SDK"},
	{path: "go.opentelemetry.io/contrib", may: []string{"internal/telemetry"}, tests: true, why: "as the SDK"},
	{path: "go.opentelemetry.io/proto/otlp", tests: true, why: "a receiver, to see what is sent"},
	{path: "google.golang.org/grpc", tests: true, why: "what a receiver is reached by"},
	{path: "github.com/prometheus/client_golang", may: []string{"internal/telemetry"}, tests: true, why: "the text that Prometheus reads"},
	{path: "github.com/prometheus/common", tests: true, why: "reads that text as Prometheus does"},
	{path: "golang.org/x/sync", may: []string{anything}, tests: true, why: "the standard library's waiting room"},
	{path: "golang.org/x/time", may: []string{anything}, tests: true, why: "the standard library's waiting room"},

	{path: "github.com/chromedp", tests: true, why: "a real browser looks at the dashboard"},
	{path: "github.com/google/go-cmp", tests: true, why: "differences in tests"},
	{path: "github.com/rogpeppe/go-internal", tests: true, why: "scripts that drive the command line"},
	{path: "go.uber.org/goleak", tests: true, why: "no goroutine stays behind"},
	{path: "pgregory.net/rapid", tests: true, why: "properties on random histories"},
}

func roomOf(dir string) (room, bool) {
	i := slices.IndexFunc(rooms, func(r room) bool { return r.dir == dir })
	if i < 0 {
		return room{}, false
	}
	return rooms[i], true
}

// testOnly reports whether the package is made for tests.
func testOnly(dir string) bool {
	r, _ := roomOf(dir)
	return r.test
}

// allows reports whether a list of directories lets dir in.
func allows(may []string, dir string) bool {
	return slices.Contains(may, dir) || slices.Contains(may, anything)
}

// below reports whether the import path is of the package path or below it.
func below(importPath, path string) bool {
	return importPath == path || strings.HasPrefix(importPath, path+"/")
}

// ours returns the directory of an import of this module.
func ours(importPath string) (dir string, ok bool) {
	if importPath == modulePath {
		return ".", true
	}
	return strings.CutPrefix(importPath, modulePath+"/")
}

// eachImport calls visit with every import of every file.
func (m *module) eachImport(visit func(f *file, importPath string)) {
	for _, f := range m.files(everyFile) {
		for _, spec := range f.syntax.Imports {
			visit(f, strings.Trim(spec.Path.Value, `"`))
		}
	}
}

func importsPointDown(m *module) []finding {
	var findings []finding
	for _, p := range m.packages {
		if _, ok := roomOf(p.dir); !ok {
			findings = append(findings, finding{p.dir, "stands in no row of the import table: say there what it may know and why"})
		}
	}
	m.eachImport(func(f *file, importPath string) {
		dir, ok := ours(importPath)
		if !ok || dir == f.pkg.dir || testOnly(dir) {
			return
		}
		if r, ok := roomOf(f.pkg.dir); ok && !allows(r.may, dir) {
			findings = append(findings, finding{f.path, fmt.Sprintf("imports %s; %s may import %s (%s)", dir, r.dir, list(r.may), r.why)})
		}
	})
	return findings
}

func dependenciesStay(m *module) []finding {
	var findings []finding
	m.eachImport(func(f *file, importPath string) {
		if _, ok := ours(importPath); ok {
			return
		}
		d, known := dependencyOf(importPath)
		standard := !strings.Contains(strings.Split(importPath, "/")[0], ".")
		switch {
		case !known && !standard:
			findings = append(findings, finding{f.path, fmt.Sprintf("imports %s, which no row of the dependency table has", importPath)})
		case known && !allows(d.may, f.pkg.dir) && (production(f) || !d.tests):
			findings = append(findings, finding{f.path, fmt.Sprintf("imports %s, which is for %s (%s)", importPath, list(d.may), d.why)})
		}
	})
	return findings
}

// dependencyOf returns the row with the longest match.
func dependencyOf(importPath string) (found dependency, ok bool) {
	for _, d := range dependencies {
		if below(importPath, d.path) && len(d.path) > len(found.path) {
			found, ok = d, true
		}
	}
	return found, ok
}

func testCodeStays(m *module) []finding {
	var findings []finding
	m.eachImport(func(f *file, importPath string) {
		if dir, ok := ours(importPath); ok && testOnly(dir) && production(f) {
			findings = append(findings, finding{f.path, "imports " + dir + ", which is for tests"})
		}
	})
	return findings
}

func list(dirs []string) string {
	if len(dirs) == 0 {
		return "no other"
	}
	return strings.Join(dirs, ", ")
}

func TestRoomsAndDependenciesHaveReasons(t *testing.T) {
	seen := map[string]bool{}
	row := func(name, why string) {
		if seen[name] {
			t.Errorf("%s stands twice", name)
		}
		seen[name] = true
		if len(strings.Fields(why)) < 3 {
			t.Errorf("%s: %q is no reason", name, why)
		}
	}
	for _, r := range rooms {
		row(r.dir, r.why)
	}
	for _, d := range dependencies {
		row(d.path, d.why)
	}
}

// TestRoomsStackUp makes sure that the table itself has no circle.
func TestRoomsStackUp(t *testing.T) {
	placed := map[string]bool{anything: true}
	for progress := true; progress; {
		progress = false
		for _, r := range rooms {
			if !placed[r.dir] && !slices.ContainsFunc(r.may, func(dir string) bool { return !placed[dir] }) {
				placed[r.dir], progress = true, true
			}
		}
	}
	for _, r := range rooms {
		if !placed[r.dir] {
			t.Errorf("%s is part of a circle, or may import a package without a row", r.dir)
		}
	}
}

func importing(path, pkg string, imports ...string) map[string]string {
	return one(path, "package "+pkg+"\n\nimport (\n\t_ \""+strings.Join(imports, "\"\n\t_ \"")+"\"\n)\n")
}

func TestImportsPointDown(t *testing.T) {
	try(t, importsPointDown, []trial{
		{"limits knows policy", importing("limits/a.go", "limits", modulePath+"/policy"), nil},
		{"limits knows cache", importing("limits/a.go", "limits", modulePath+"/cache"), []string{"limits/a.go"}},
		{"cache knows limits in a test", importing("cache/a_test.go", "cache_test", modulePath+"/limits"), []string{"cache/a_test.go"}},
		{"policy knows somebody", importing("policy/a.go", "policy", modulePath+"/limits"), []string{"policy/a.go"}},
		{"the service knows the gateway", importing("internal/service/a.go", "service", modulePath+"/proxy"), []string{"internal/service/a.go"}},
		{"an external test knows its package", importing("policy/a_test.go", "policy_test", modulePath+"/policy"), nil},
		{"a test knows test code", importing("proxy/a_test.go", "proxy", modulePath+"/internal/pipe"), nil},
		{"the command knows all", importing("cmd/weir/a.go", "main", modulePath+"/proxy", modulePath+"/limits/redisledger"), nil},
		{"a package without a row", importing("internal/attic/a.go", "attic", "fmt"), []string{"internal/attic"}},
	})
}

func TestDependenciesStay(t *testing.T) {
	const redis, sdk = "github.com/redis/go-redis/v9", "go.opentelemetry.io/otel/sdk/trace"
	try(t, dependenciesStay, []trial{
		{"the Redis ledger knows Redis", importing("limits/redisledger/a.go", "redisledger", redis), nil},
		{"limits knows Redis", importing("limits/a.go", "limits", redis), []string{"limits/a.go"}},
		{"the command knows Redis", importing("cmd/weir/a.go", "main", redis), []string{"cmd/weir/a.go"}},
		{"the proxy knows the API of OpenTelemetry", importing("proxy/a.go", "proxy", "go.opentelemetry.io/otel/trace"), nil},
		{"the proxy knows its SDK", importing("proxy/a.go", "proxy", sdk), []string{"proxy/a.go"}},
		{"telemetry knows its SDK", importing("internal/telemetry/a.go", "telemetry", sdk), nil},
		{"a test looks at spans", importing("proxy/a_test.go", "proxy", sdk), nil},
		{"the proxy knows httputil", importing("proxy/a.go", "proxy", "net/http/httputil"), nil},
		{"admin knows httputil", importing("internal/admin/a.go", "admin", "net/http/httputil"), []string{"internal/admin/a.go"}},
		{"a name that only begins alike", importing("internal/admin/a.go", "admin", "net/http/httputilities"), nil},
		{"a module of no row", importing("proxy/a.go", "proxy", "github.com/stretchr/testify/assert"), []string{"proxy/a.go"}},
		{"a module of no row, in a test", importing("proxy/a_test.go", "proxy", "github.com/stretchr/testify/assert"), []string{"proxy/a_test.go"}},
		{"testing in what users run", importing("proxy/a.go", "proxy", "testing"), []string{"proxy/a.go"}},
		{"testing in test code", importing("internal/pipe/a.go", "pipe", "testing"), nil},
		{"a library for tests in what users run", importing("proxy/a.go", "proxy", "github.com/google/go-cmp/cmp"), []string{"proxy/a.go"}},
	})
}

func TestTestCodeStays(t *testing.T) {
	try(t, testCodeStays, []trial{
		{"a test imports test code", importing("proxy/a_test.go", "proxy", modulePath+"/internal/pipe"), nil},
		{"test code imports test code", importing("limits/ledgertest/a.go", "ledgertest", modulePath+"/internal/pipe"), nil},
		{"the command imports test code", importing("cmd/weir/a.go", "main", modulePath+"/internal/pipe"), []string{"cmd/weir/a.go"}},
	})
}
