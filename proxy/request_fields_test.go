package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// credentialNames are names of request fields that carry a credential somewhere, and parts of such names.
var credentialNames = func() []string {
	names := strings.Fields(`
		Private-Token Job-Token Deploy-Token Access-Token Auth-Token Apikey Api-Key Authentication Token Secret Password Passwd Session
		Sessionid Sid Jwt Auth Signature Assertion Api_Key Account Tenant Tenant-Id User Username Login Impersonate Sudo Otp Totp Pin Id
		Client-Id Client-Secret Ticket Grant Bearer License Passphrase Cert Client-Cert Ssl-Client-Cert Dpop Mcp-Session-Id From Referer
		Origin Content-Type Content-Language Foo Accept Accept-Charset X-Api-Key X-Access-Token X-Mcp-Readonly
	`)
	for _, last := range strings.Fields("Token Key Secret Signature Auth Password Session Jwt") {
		names = append(names, "Acme-"+last, strings.ToLower("acme-"+last))
	}
	return names
}()

// echoFields answers with the request fields of the upstream's request that a client can choose.
func echoFields(cacheControl string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		setFields(w, "Cache-Control: "+cacheControl, "Content-Type: text/plain")
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			if !slices.Contains([]string{"Via", "User-Agent", "Authorization"}, name) {
				_, _ = fmt.Fprintf(w, "%s=%s\n", name, strings.Join(r.Header[name], ", "))
			}
		}
	}
}

// isHit reports whether a response is a hit.
func (r got) isHit() bool { return strings.HasPrefix(r.Header.Get("Cache-Status"), "weir; hit") }

// TestForwardedFieldsSeparateResponses sends requests of one caller that differ in their fields. No request may get a
// response to other fields: a field is part of the cache key, or does not reach the upstream.
func TestForwardedFieldsSeparateResponses(t *testing.T) {
	known := []string{"/repos/acme/widgets/subscribers", "/gitignore/templates", "/feeds"}
	paths := []string{"/made/up", "/repos/acme/widgets/made-up", known[0], known[1], known[2]}
	rapid.Check(t, func(rt *rapid.T) {
		path := rapid.SampledFrom(paths).Draw(rt, "path")
		control := rapid.SampledFrom([]string{"private, max-age=60", "max-age=60", "public, max-age=60"}).Draw(rt, "control")
		authorization := rapid.SampledFrom([]string{"", "Bearer shared"}).Draw(rt, "authorization")
		files := rapid.Bool().Draw(rt, "files")
		value := rapid.SampledFrom([]string{"alice", "bob", "a, b", "true", "12345", "0123456789abcdef0123456789abcdef01234567"})
		var requests [][]string
		for range rapid.IntRange(2, 6).Draw(rt, "requests") {
			var fields []string
			if authorization != "" {
				fields = append(fields, "Authorization: "+authorization)
			}
			if slices.Contains(known, path) && !files {
				fields = append(fields, "Accept-Language: "+rapid.SampledFrom([]string{"de", "fr"}).Draw(rt, "language"))
			}
			for range rapid.IntRange(0, 2).Draw(rt, "fields") {
				fields = append(fields, rapid.SampledFrom(credentialNames).Draw(rt, "name")+": "+value.Draw(rt, "value"))
			}
			requests = append(requests, fields)
		}
		failure := "" // rapid must fail in its own goroutine
		setup(echoFields(control), func(c *Config) {
			if files {
				c.Catalogue, c.Host = policy.Files, "files.test"
			}
		}).run(t, func(w *world) {
			for _, fields := range requests {
				r := newGet(path, fields...)
				want := httptest.NewRecorder()
				sent := r.Clone(r.Context())
				sent.Header = w.question(r).Header
				echoFields(control)(want, sent)
				if got := w.get(path, fields...); got.body != want.Body.String() {
					failure = fmt.Sprintf("%s with %q: got the response to other fields (%s):\n%s\nwant\n%s", path, fields, got.Header.Get("Cache-Status"), got.body, want.Body)
				}
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// question returns the question of a request.
func (w *world) question(r *http.Request) *question {
	q, err := w.gateway.ask(w.gateway.open(httptest.NewRecorder(), r))
	noError(w, err)
	return q
}

// TestCredentialsInFieldsSeparateCallers checks each name alone: with a held credential and with none, the second caller's
// response is that of its own field, and a repetition of the first request is still a hit.
func TestCredentialsInFieldsSeparateCallers(t *testing.T) {
	for authorization, control := range map[string]string{"Bearer shared": "private, max-age=60", "": "max-age=60"} {
		setup(echoFields(control)).sub(t, authorization, func(w *world) {
			for i, name := range credentialNames {
				get := func(value string) got {
					return w.get(fmt.Sprint("/made/up/", i), "Authorization: "+authorization, name+": "+value)
				}
				first, second, again := get("alice"), get("bob"), get("alice")
				failIf(w, strings.Contains(second.body, "alice"), "%s: the second caller gets %q (%s)", name, second.body, second.Header.Get("Cache-Status"))
				w.want(name+": repetition", again.body, first.body)
				w.want(name+": a repetition is a hit", again.isHit(), true)
			}
		})
	}
}

// TestNumbersSeparateResponses checks that a small number in any field reaches the upstream and separates responses.
func TestNumbersSeparateResponses(t *testing.T) {
	setup(echoFields("max-age=60")).run(t, func(w *world) {
		for _, name := range strings.Fields(`
			Sudo Tenant Tenant-Id Account Acct-Id User Userid Uid On-Behalf-Of-User Impersonate-User As Pin Client Customer Project-Id
			Org Group On-Behalf-Of Impersonate Delegate Mfa Employee Badge Device Profile View Visitor Realm Domain Site Store Uuid X-Mcp-Readonly X-Mcp-Lockdown Dry-Run Foo
		`) {
			for _, value := range []string{"7", "8"} {
				w.want(name, strings.Contains(w.get("/made/up", name+": "+value).body, "="+value), true)
			}
		}
	})
}

// TestVaryDecidesAboutNumbersIfItListsAFieldOfTheUpstream sends the same request twice, with two numbers in a field without a row.
func TestVaryDecidesAboutNumbersIfItListsAFieldOfTheUpstream(t *testing.T) {
	for _, c := range []struct {
		vary, first, second string
		hit                 bool
	}{
		{"Foo", "Req: 1", "Req: 2", true},
		{"Foo, Req", "Req: 1", "Req: 2", false},
		{"Accept-Encoding", "Req: 1", "Req: 2", false},
		{"", "Req: 1", "Req: 2", false},
		{"", "Req: 1", "Req: 1", true},
		{"Foo", "Foo: bar", "Req: 1", false},
		{"Foo", "Req: 1", "Req: one", false},
		{"Foo", "Tenant: 1", "Tenant: 2", false},
	} {
		setup(replies("x", "Cache-Control: max-age=60", "Vary: "+c.vary)).sub(t, c.vary+" "+c.first+" "+c.second, func(w *world) {
			w.get("/made/up", c.first)
			w.want("hit", w.get("/made/up", c.second).isHit(), c.hit)
		})
	}
}

// TestRequestsWithOtherFieldsAreNotCoalesced sends simultaneous requests that differ in one field.
func TestRequestsWithOtherFieldsAreNotCoalesced(t *testing.T) {
	setup(delayed(echoFields("max-age=60"))).run(t, func(w *world) {
		var clients sync.WaitGroup
		for _, value := range []string{"alice", "bob", "alice"} {
			clients.Go(func() {
				body := w.get("/made/up", bearer("shared"), "Acme-Token: "+value).body
				w.want("own response", strings.Contains(body, "Acme-Token="+value), true)
			})
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// TestFieldsThatDescribeARequestShareResponses checks that the names of programs and of single requests do not divide the
// cache.
func TestFieldsThatDescribeARequestShareResponses(t *testing.T) {
	describing := lines("User-Agent: other", "Request-Id: 1", "Correlation-Id: 1", "Date: "+testStart, `If-None-Match: "x"`, "Accept-Encoding: gzip",
		"Content-Type: application/json", "Via: 1.1 other", "Traceparent: 00-1-2-03", "Cookie: session=1")
	for path, more := range map[string]string{"/made/up": "Req-Num: 2", "/gitignore/templates": "Accept-Language: *"} {
		steps := []step{{}}
		for _, field := range append(describing, more) {
			steps = append(steps, step{request: lines(field), cached: true, cache: "weir; hit*"})
		}
		runScenarios(t, scenario{name: path, path: path, upstream: echoFields("max-age=60"), steps: steps})
	}
}

// TestStoredEntriesContainNoFieldOfTheKey checks that a Vary field does not make the cache keep the value of a field.
func TestStoredEntriesContainNoFieldOfTheKey(t *testing.T) {
	setup(replies("", fresh, "Vary: Private-Token")).run(t, func(w *world) {
		r := newGet("/made/up", "Private-Token: secret-value")
		w.get("/made/up", "Private-Token: secret-value")
		ex := w.question(r)
		e, _ := w.gateway.Cache.Memory.Lookup(ex.key, ex.Header)
		failIf(w, e == nil || strings.Contains(fmt.Sprint(e.Vary), "secret-value"), "got %+v", e)
	})
}

// TestKeysOfTheGatewayAreNotForwarded puts a key of the gateway into each part of a request.
func TestKeysOfTheGatewayAreNotForwarded(t *testing.T) {
	const key = "a-key-of-this-gateway"
	holdsOwn := func(c *Config) {
		c.HoldsOwn = func(_ *http.Request, text string) bool { return strings.Contains(text, key) }
	}
	setup(echoFields("max-age=60"), holdsOwn).run(t, func(w *world) {
		for _, c := range []struct{ method, path, field, place string }{
			{"GET", "/made/up", "Private-Token: " + key, "the field Private-Token"},
			{"POST", "/made/up", "Token: Bearer " + key, "the field Token"},
			{"GET", "/user", "User-Agent: " + key, "the field User-Agent"},
			{"GET", "/made/up?private_token=" + key, "", "the query parameter private_token"},
			{"GET", "/user/repos?page=1&access_token=" + key, "", "the query parameter access_token"},
			{"DELETE", "/repos/acme/widgets?token=" + key, "", "the query parameter token"},
			{"GET", "/made/up?" + key, "", "the name of a query parameter"},
			{"GET", "/made/" + key + "/up", "", "the path"},
			{"GET", "/gitignore/templates/" + key, "", "the path"},
		} {
			r := w.do(c.method, c.path, nil, cmp.Or(c.field, "Accept: */*"))
			w.want(c.path+" "+c.field, r.StatusCode, http.StatusBadRequest)
			failIf(w, !strings.Contains(r.body, c.place) || c.place != "the path" && strings.Contains(r.body, key), "%s %s: got %s", c.path, c.field, r.body)
		}
		w.want("requests upstream", w.upstreamSaw(), 0)
		for _, field := range []string{"Cookie: session=" + key, "Proxy-Authorization: " + key} { // not forwarded
			w.want(field, w.get("/user", field).StatusCode, http.StatusOK)
		}
		w.get("/gitignore/templates")
		before := w.upstreamSaw()
		w.wantFields("hit", w.get("/gitignore/templates", "User-Agent: "+key).Header, "Cache-Status: weir; hit*") // sends nothing
		w.want("requests for a hit", w.upstreamSaw()-before, 0)
	})
}
