package quirk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

// api is a service with a state of items, which have a content.
type api struct {
	*testing.T
	*State
	mu        sync.Mutex
	items     map[string]string
	viewer    string
	isLimited bool
	served    int
	refunded  int // requests that a quirk made cost nothing
}

// serve answers as the service behind the quirks.
func (a *api) serve(w http.ResponseWriter, r *http.Request, instead http.Handler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served++
	w.(interface{ SetRefund(refund func()) }).SetRefund(func() { a.refunded++ })
	name, isItem := strings.CutPrefix(r.URL.Path, "/items/")
	body := a.items[name]
	for field, value := range map[string]string{"Limit": "5000", "Remaining": "4000", "Used": "1000", "Reset": "1", "Resource": "core"} {
		w.Header().Set("X-Ratelimit-"+field, value)
	}
	switch {
	case a.isLimited:
		_, _ = io.WriteString(w, `{"errors":[{"type":"RATE_LIMITED"}]}`)
	case instead != nil:
		instead.ServeHTTP(w, r)
	case isItem && r.Method == http.MethodPut:
		text, _ := io.ReadAll(r.Body)
		a.items[name] = string(text)
		if w.Header().Set("Location", "/items/"+name); body == "" {
			w.WriteHeader(http.StatusCreated)
		}
	case r.URL.Path == "/limited":
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"message":"You have exceeded a secondary rate limit."}`)
	case r.URL.Path == "/exhausted":
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"message":"API rate limit exceeded"}`)
	case r.URL.Path == "/refused":
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/graphql":
		if text, _ := io.ReadAll(r.Body); strings.HasPrefix(string(text), "mutation") {
			a.items["a"] = "mutated"
		}
		_, _ = fmt.Fprintf(w, `{"data":{"viewer":{"login":%q},"zone":1}}`, cmp.Or(a.viewer, "a"))
	case strings.HasSuffix(r.URL.Path, "/access_tokens"):
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":"ghs_%d"}`, a.served)
	case isItem && body == "":
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"message":"Not Found"}`)
	default:
		tag := strconv.Quote(body)
		w.Header().Set("Etag", tag)
		w.Header().Set("Link", "<https://api.test/items>; rel=next")
		if match := r.Header.Get("If-None-Match"); match == tag || match == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body)
	}
}

// client sends requests over one version of HTTP.
type client struct {
	*api
	http.Client
	version int
	dials   int
}

// run runs a test over HTTP/1.1 and HTTP/2 in virtual time. The quirks are a JSON object.
func run(t *testing.T, quirks string, test func(c *client)) {
	t.Helper()
	for version := 1; version <= 2; version++ {
		synctest.Test(t, func(t *testing.T) {
			a := &api{T: t, State: New(1, Set{}, Hooks{}), items: map[string]string{"a": "old"}}
			a.set(quirks)
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.Serve(w, r, a.serve) })
			server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
			protocols := []string{"http/1.1", "h2"}[version-1:]
			l := testservers.ListenPipe("api.test:443")
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(a.Listener(l.TLS(protocols[0]))) })
			c := &client{api: a, version: version}
			transport := &http.Transport{TLSClientConfig: testservers.PipeClientTLS(), ForceAttemptHTTP2: version == 2}
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				c.dials++
				return l.Dial(ctx, network, address)
			}
			c.Client = http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			test(c)
			transport.CloseIdleConnections()
			_ = server.Close()
			serving.Wait()
			time.Sleep(time.Minute) // both sides of a pipe may wait to end TLS
		})
	}
}

func (a *api) set(quirks string) {
	a.Helper()
	set, err := Parse([]byte(quirks), Set{})
	testservers.NoError(a, err)
	a.Put(set)
}

// answered is a response, or an error.
type answered struct {
	*http.Response
	body string
	err  error
}

// do sends a request such as "PUT /items/a text". Each field is a name and a value.
func (c *client) do(request string, fields ...string) answered {
	c.Helper()
	parts := strings.SplitN(request, " ", 3)
	r := testservers.Must(http.NewRequestWithContext(c.Context(), parts[0], "https://api.test"+parts[1], strings.NewReader(strings.Join(parts[2:], ""))))
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		return answered{&http.Response{}, "", err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	failIf(c, resp.ProtoMajor != c.version, "%s over %s", request, resp.Proto)
	return answered{resp, string(body), err}
}

// want checks the status of a response and its body, unless the body is empty.
func (c *client) want(status int, body string, request string, fields ...string) answered {
	c.Helper()
	got := c.do(request, fields...)
	failIf(c, got.StatusCode != status || body != "" && got.body != body, "%s %q: got %d %q, %v; want %d %q", request, fields, got.StatusCode, got.body, got.err, status, body)
	return got
}

// fields checks fields of a response. An empty value is an absent field.
func (c *client) fields(got answered, fields ...string) {
	c.Helper()
	for i := 0; i < len(fields); i += 2 {
		testservers.Equal(c, fields[i], got.Header.Get(fields[i]), fields[i+1])
	}
}

// documentation returns the rows of the table in docs/reference-service.md.
func documentation() string {
	var b strings.Builder
	names, byName := fields()
	for _, name := range names {
		f := byName[name]
		value := map[reflect.Type]string{
			reflect.TypeFor[bool](): "`true`", reflect.TypeFor[int](): "number", reflect.TypeFor[Patterns](): "operations",
		}[f.Type]
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, cmp.Or(value, strings.ToLower(f.Type.Name())), f.Tag.Get("desc"))
	}
	return b.String()
}

func TestDocumentationHasTheTable(t *testing.T) {
	text := string(testservers.Must(os.ReadFile("../../../docs/reference-service.md")))
	failIf(t, !strings.Contains(text, "\n"+documentation()+"\n"), "docs/reference-service.md must have these rows:\n%s", documentation())
	for _, name := range formNames() {
		failIf(t, !strings.Contains(text, "`"+name+"`"), "docs/reference-service.md does not name %s", name)
	}
}

func TestEveryQuirkHasTypeNameAndText(t *testing.T) {
	names, byName := fields()
	for _, name := range names {
		f := byName[name]
		_, ok := kinds[f.Type]
		failIf(t, !ok || f.Tag.Get("desc") == "", "%s: the type %v is not in kinds, or the quirk has no description", name, f.Type)
	}
}

func TestParseRefusesInvalidQuirks(t *testing.T) {
	for text, want := range map[string]string{
		`{"delay":"1s"}`:                        "delay: unknown quirk; must be one of latency, delay_before, ",
		`{"replica_lag":1}`:                     `replica_lag: 1: must be a duration such as "1.5s"`,
		`{"replica_lag":"2h"}`:                  "replica_lag: 2h0m0s: must be 0s to 1h0m0s",
		`{"limit_status":429}`:                  `limit_status: was removed; use "limit_answers": ["rest_429"]`,
		`{"no_retry_after":true}`:               `no_retry_after: was removed; use "limit_answers": ["rest_403_without_retry_after"]`,
		`{"remaining_zero":true}`:               `remaining_zero: was removed; use "limit_answers": ["rest_403_remaining_0"]`,
		`{"error_status":404}`:                  "error_status: 404: must be 500 to 599",
		`{"goaway_every":-1}`:                   "goaway_every: -1: must be 0 to 1000000",
		`{"error_validators":2}`:                "error_validators: 2: must be 0 to 1",
		`{"error_validators":"yes"}`:            `error_validators: "yes": must be true, a probability from 0 to 1, or a list of operations`,
		`{"error_validators":["/repos"]}`:       `error_validators: "/repos": must be a method and a path such as`,
		`{"permission_snapshot":["GET /[a"]}`:   `permission_snapshot: "GET /[a": must be`,
		`{"limit_answers":["rest_500"]}`:        `limit_answers: "rest_500": unknown form; must be one of rest_403, `,
		`{"old_names":{"acme":"acme/widgets"}}`: `old_names: "acme": "acme/widgets": must be OWNER/NAME`,
		`{`:                                     "quirks must be one JSON object: ",
		`{} {}`:                                 "quirks must be one JSON object: ",
	} {
		_, err := Parse([]byte(text), Set{})
		failIf(t, err == nil || !strings.HasPrefix(err.Error(), want), "%s: got %v, want %s…", text, err, want)
	}
}

func TestQuirksChangeAtRunTime(t *testing.T) {
	s := New(1, Set{}, Hooks{})
	for _, c := range [][2]string{
		{`{"replica_lag":"1.5s","goaway_every":100}`, `{"replica_lag":"1.5s","goaway_every":100}`},
		{`{"goaway_every":0,"error_validators":true}`, `{"error_validators":1,"replica_lag":"1.5s"}`},
		{`{"error_validators":0.5,"replica_lag":"0s"}`, `{"error_validators":0.5}`},
		{`{"error_validators":["GET /*"]}`, `{"error_validators":["GET /*"]}`},
		{`{"error_validators":false,"limit_answers":["rest_403"]}`, `{"limit_answers":["rest_403"]}`},
		{`{"limit_answers":false}`, `{}`},
	} {
		_, err := s.Change([]byte(c[0]))
		testservers.StopIf(t, err != nil, "%v", err)
		testservers.Equal(t, fmt.Sprintf("after %s", c[0]), string(testservers.Must(json.Marshal(s.Current()))), c[1])
	}
}

// TestLimitAnswersHaveAllForms checks that each form alone shows its status, fields and text.
func TestLimitAnswersHaveAllForms(t *testing.T) {
	for _, c := range []struct {
		form, request string
		status        int
		body          string
		fields        []string
	}{
		{"rest_403", "GET /limited", 403, "secondary", []string{"Retry-After", "60", "X-Ratelimit-Remaining", "4000"}},
		{"rest_429", "GET /limited", 429, "secondary", []string{"Retry-After", "60"}},
		{"rest_403_without_retry_after", "GET /limited", 403, "secondary", []string{"Retry-After", ""}},
		{"rest_429_date", "GET /limited", 429, "secondary", []string{"Retry-After", "Sat, 01 Jan 2000 00:01:01 GMT"}},
		{"rest_403_remaining_0", "GET /limited", 403, "secondary", []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Used", "5000"}},
		{"rest_429_primary_text", "GET /exhausted", 429, "API rate limit exceeded", []string{"X-Ratelimit-Remaining", "4000"}},
		{"rest_403_secondary_text", "GET /limited", 403, "secondary", []string{"Content-Type", "application/json; charset=utf-8"}},
		{"rest_429_html", "GET /limited", 429, "<html>", []string{"Content-Type", "text/html; charset=utf-8", "X-Ratelimit-Limit", ""}},
		{"brief_graphql_403", "POST /graphql {viewer}", 403, "", []string{"Retry-After", "", "X-Ratelimit-Limit", ""}},
		{"brief_graphql_403_html", "POST /graphql {viewer}", 403, "<html>", nil},
		{"brief_content_422", "POST /repos/a/b/issues {}", 422, "was submitted too quickly", nil},
		{"brief_content_graphql", "POST /graphql mutation{addComment}", 200, "UNPROCESSABLE", nil},
	} {
		run(t, fmt.Sprintf(`{"limit_answers":[%q],"episode_every":1}`, c.form), func(a *client) {
			got := a.want(c.status, "", c.request)
			failIf(a, !strings.Contains(got.body, c.body) || c.body == "" && got.body != "", "%s: got %s", c.form, got.body)
			a.fields(got, c.fields...)
		})
	}
}

func TestGraphQLLimitErrorsHaveAllForms(t *testing.T) {
	limited := func(f string) *response {
		x := &exchange{Request: &http.Request{}, Path: "/graphql", state: New(1, Set{}, Hooks{}), set: Set{LimitAnswers: Forms{f}}}
		r := &response{status: 200, header: http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Resource": {"graphql"}}}
		r.body = []byte(`{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}`)
		x.limit(r)
		return r
	}
	for f, want := range map[string]string{
		"graphql_403":                  "secondary rate limit",
		"graphql_rate_limited":         `"type":"RATE_LIMITED"`,
		"graphql_rate_limited_partial": `{"data":{"viewer":null},"errors":[{"type":"RATE_LIMITED"`,
		"graphql_rate_limit":           `"code":"graphql_rate_limit","message":"API rate limit already exceeded`,
		"graphql_secondary_text":       `"errors":[{"message":"You have exceeded a secondary rate limit`,
	} {
		r := limited(f)
		failIf(t, !strings.Contains(string(r.body), want) || !json.Valid(r.body) || (r.status == 200) == (f == "graphql_403"), "%s: got %d %s", f, r.status, r.body)
	}
}

func TestEpisodesEndAndConcernOneKindOfRequest(t *testing.T) {
	run(t, `{"limit_answers":["brief_content_422","brief_graphql_403"],"episode_every":3}`, func(c *client) {
		const issue = "POST /repos/a/b/issues {}"
		for _, status := range []int{200, 200, 422, 422} {
			c.want(status, "", issue)
		}
		c.want(200, "", issue, "Authorization", "Bearer other")
		c.want(422, "", issue)
		c.want(200, "", "GET /repos/a/b/issues")
		c.want(200, "", "POST /graphql {viewer}")
		time.Sleep(time.Minute)
		c.want(200, "", issue)
	})
}

func TestReplicaLagReturnsTheOldState(t *testing.T) {
	run(t, `{"replica_lag":"1s"}`, func(c *client) {
		old := c.want(200, "old", "GET /items/a").Header.Get("Etag")
		c.want(200, "", "PUT /items/a new")
		time.Sleep(900 * time.Millisecond)
		c.want(200, "old", "GET /items/a")
		c.want(304, "", "GET /items/a", "If-None-Match", old)
		c.want(200, "old", "GET /items/a", "If-None-Match", `"new"`)
		time.Sleep(100 * time.Millisecond)
		c.want(200, "new", "GET /items/a", "If-None-Match", old)
		c.want(200, "", "PUT /items/a ")
		c.want(304, "", "GET /items/a", "If-None-Match", `"new"`)
		failIf(c, c.refunded != 2, "%d refunds, want one for each 304, also if the object is gone", c.refunded)

		c.want(201, "", "PUT /items/b text")
		c.want(404, "", "GET /items/b")
		time.Sleep(time.Second)
		c.want(200, "text", "GET /items/b")
	})
}

func TestQueriesLag(t *testing.T) {
	run(t, `{"replica_lag":"1s"}`, func(c *client) {
		const query, limits = "POST /graphql {viewer}", "POST /graphql {viewer,rateLimit}"
		old := c.want(200, "", query).body
		c.want(200, old, limits)
		c.mu.Lock()
		c.viewer = "b"
		c.mu.Unlock()
		c.want(200, "", "POST /graphql mutation{change}")
		c.want(200, old, query)
		changed := c.want(200, "", limits).body
		failIf(c, changed == old, "the limits lag: %s", changed)
		c.want(200, changed, "POST /graphql {viewer,zone}") // a query without an old answer
		c.mu.Lock()
		c.isLimited = true
		c.mu.Unlock()
		got := c.want(200, "", query).body
		failIf(c, !strings.Contains(got, "RATE_LIMITED"), "an old response hides a limit error: %s", got)
		c.mu.Lock()
		c.isLimited = false
		c.mu.Unlock()
		time.Sleep(time.Second)
		c.want(200, changed, query)
	})
}

func TestMutationsAreWrites(t *testing.T) {
	run(t, `{"replica_lag":"1s"}`, func(c *client) {
		c.want(200, "old", "GET /items/a")
		c.want(200, "", "POST /graphql mutation{change}")
		c.want(200, "old", "GET /items/a")
		time.Sleep(2 * time.Second)
		c.want(200, "mutated", "GET /items/a")
		c.want(200, "", "POST /graphql {viewer}")
		c.mu.Lock()
		c.items["a"] = "changed by the service itself"
		c.mu.Unlock()
		c.want(200, "changed by the service itself", "GET /items/a")
	})
}

// TestReplicaLagIsBounded checks that a state is not returned if a write replaced it before the lag.
func TestReplicaLagIsBounded(t *testing.T) {
	run(t, `{"replica_lag":"1s"}`, func(c *client) {
		c.want(200, "old", "GET /items/a")
		c.want(200, "", "PUT /items/a newer")
		time.Sleep(2 * time.Second)
		c.want(200, "", "PUT /items/a newest")
		c.want(200, "newest", "GET /items/a")
	})
}

func TestNotModifiedLacksFields(t *testing.T) {
	for quirks, want := range map[string][]string{
		`{"goaway_every":100}`:                           {"Etag", `"old"`, "Link", "<https://api.test/items>; rel=next"},
		`{"link_missing_in_304":true}`:                   {"Etag", `"old"`, "Link", ""},
		`{"etag_missing_in_304":["GET /items/*"]}`:       {"Etag", ""},
		`{"etag_missing_in_304":["GET /others/*"]}`:      {"Etag", `"old"`},
		`{"etag_other_strength":["* /items/a"]}`:         {"Etag", `W/"old"`},
		`{"etag_other_strength":["DELETE /items/a"]}`:    {"Etag", `"old"`},
		`{"etag_other_strength":1,"error_validators":0}`: {"Etag", `W/"old"`},
	} {
		run(t, quirks, func(c *client) {
			c.fields(c.want(200, "old", "GET /items/a"), "Etag", `"old"`)
			c.fields(c.want(304, "", "GET /items/a", "If-None-Match", `"old"`), want...)
		})
	}
}

func TestErrorValidatorsOutliveTheError(t *testing.T) {
	run(t, `{"error_validators":true}`, func(c *client) {
		tag := c.want(404, "", "GET /items/b").Header.Get("Etag")
		c.want(304, "", "GET /items/b", "If-None-Match", tag)
		c.want(201, "", "PUT /items/b text")
		c.want(304, "", "GET /items/b", "If-None-Match", tag)
		c.want(200, "text", "GET /items/b")
	})
}

func TestUnfinishedStatesEnd(t *testing.T) {
	run(t, `{"unfinished_for":"5s"}`, func(c *client) {
		c.items["p"] = `{"mergeable":true,"mergeable_state":"clean"}`
		c.items["r"] = `{"status":"completed","conclusion":"success"}`
		c.want(200, `{"status":"queued","conclusion":null}`, "GET /items/r")
		const unfinished = `{"mergeable":null,"mergeable_state":"unknown"}`
		tag := c.want(200, unfinished, "GET /items/p").Header.Get("Etag")
		c.want(304, "", "GET /items/p", "If-None-Match", tag)
		time.Sleep(5 * time.Second)
		c.want(200, c.items["p"], "GET /items/p", "If-None-Match", tag)
	})
}

func TestNewTokensAreUnknown(t *testing.T) {
	run(t, `{"token_unknown_for":"1.5s"}`, func(c *client) {
		var minted struct{ Token string }
		_ = json.Unmarshal([]byte(c.want(201, "", "POST /app/installations/1/access_tokens").body), &minted)
		statuses := map[int]bool{}
		for range 30 {
			statuses[c.do("GET /items/a", "Authorization", "Bearer "+minted.Token).StatusCode] = true
		}
		failIf(c, !reflect.DeepEqual(statuses, map[int]bool{401: true, 403: true, 404: true}), "got %v", statuses)
		c.want(200, "", "GET /items/a", "Authorization", "Bearer other")
		time.Sleep(1500 * time.Millisecond)
		c.want(200, "", "GET /items/a", "Authorization", "Bearer "+minted.Token)
	})
}

func TestTokensKeepThePermissionsOfTheirMinting(t *testing.T) {
	run(t, `{}`, func(c *client) {
		mint := func() string {
			var minted struct{ Token string }
			_ = json.Unmarshal([]byte(c.want(201, "", "POST /app/installations/1/access_tokens").body), &minted)
			return "Bearer " + minted.Token
		}
		c.set(`{"goaway_every":1000}`)
		before := mint()
		time.Sleep(time.Second)
		c.set(`{"permission_snapshot":["GET /items/*"]}`)
		time.Sleep(time.Second)
		c.want(403, "", "GET /items/a", "Authorization", before)
		c.want(200, "", "GET /others/a", "Authorization", before)
		c.want(200, "", "GET /items/a", "Authorization", "Bearer tok-owner")
		c.want(200, "", "GET /items/a", "Authorization", mint())
	})
}

func TestReportsOfOtherLimits(t *testing.T) {
	run(t, `{"wrong_rate_on_401":true,"odd_rate_every":3}`, func(c *client) {
		c.fields(c.want(401, "", "GET /refused"), "X-Ratelimit-Limit", "60", "X-Ratelimit-Remaining", "0", "X-Ratelimit-Used", "60")
		c.fields(c.want(200, "", "GET /items/a"), "X-Ratelimit-Limit", "5000", "X-Ratelimit-Remaining", "4000")
		c.fields(c.want(200, "", "GET /items/a"), "X-Ratelimit-Limit", "60", "X-Ratelimit-Remaining", "0")
	})
}

func TestResourceLimitsGiveAPartOfTheData(t *testing.T) {
	run(t, `{"resource_limits_exceeded":true}`, func(c *client) {
		got := c.want(200, "", "POST /graphql {viewer{login}}")
		want := `{"data":{"viewer":null,"zone":1},"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED",`
		failIf(c, !strings.HasPrefix(got.body, want), "got %s", got.body)
	})
}

func TestOldNamesRedirect(t *testing.T) {
	run(t, `{"old_names":{"acme/old":"acme/widgets"}}`, func(c *client) {
		c.fields(c.want(301, "", "GET /repos/acme/old/pulls?page=2"), "Location", "https://api.test/repos/acme/widgets/pulls?page=2")
		c.fields(c.want(307, "", "PATCH /repos/acme/old {}"), "Location", "https://api.test/repos/acme/widgets")
		c.want(200, "", "GET /repos/acme/older")
	})
}

func TestEndedVersionsAreRefused(t *testing.T) {
	run(t, `{"ended_versions":["2022-11-28"]}`, func(c *client) {
		c.want(400, "", "GET /items/a", "X-Github-Api-Version", "2022-11-28")
		c.want(200, "", "GET /items/a", "X-Github-Api-Version", "2026-03-10")
		c.want(200, "", "GET /items/a")
	})
}

func TestGoAwayEndsConnections(t *testing.T) {
	run(t, `{"goaway_every":2}`, func(c *client) {
		for range 6 {
			c.want(200, "old", "GET /items/a")
			synctest.Wait()
		}
		failIf(c, c.dials != 3, "got %d connections, want 3", c.dials)
	})
}

func TestRefusedStreamsAreNotProcessed(t *testing.T) {
	run(t, `{"refused_stream":["PUT /items/*"],"reset_after_processing":["POST /items/*"]}`, func(c *client) {
		for _, request := range []string{"PUT /items/a new", "POST /items/a new"} {
			c.want(200, "", "GET /items/a")
			served := c.served
			got, code := c.do(request), http2.StreamError{}
			isStream := errors.As(got.err, &code)
			want := map[string]http2.ErrCode{"PUT": http2.ErrCodeRefusedStream, "POST": http2.ErrCodeInternal}[request[:strings.IndexByte(request, ' ')]]
			failIf(c, got.err == nil || c.version == 2 && (!isStream || code.Code != want), "%s: got %d, %v; want %v", request, got.StatusCode, got.err, want)
			processed := c.served > served
			failIf(c, processed != strings.HasPrefix(request, "POST"), "%s: processed %t", request, processed)
		}
	})
}

func TestBodiesAreLateOrTruncated(t *testing.T) {
	run(t, `{"slow_body":"3s","truncate_every":2}`, func(c *client) {
		began := time.Now()
		c.want(200, "old", "GET /items/a")
		took := time.Since(began)
		failIf(c, took != 3*time.Second, "the body took %v", took)
		got := c.do("GET /items/a")
		failIf(c, got.err == nil || got.StatusCode != 200 || got.body != "o", "got %d %q, %v", got.StatusCode, got.body, got.err)
	})
}

func TestChancesAreSeeded(t *testing.T) {
	draw := func(seed uint64) (all []bool) {
		x := &exchange{Request: &http.Request{}, state: New(seed, Set{}, Hooks{})}
		for range 100 {
			all = append(all, x.happens(Chance{Probability: 0.3}))
		}
		return all
	}
	failIf(t, !slices.Equal(draw(1), draw(1)) || slices.Equal(draw(1), draw(2)), "choices do not depend on the seed, or not only")
}
