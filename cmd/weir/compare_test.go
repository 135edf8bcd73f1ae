package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// answer is the part of a response that the test compares.
type answer struct {
	Status int
	Body   string
	Header map[string]string
}

// counts matches the numbers that a cache may change.
var counts = regexp.MustCompile(`"(used|remaining|reset)":\d+`)

// sendCall sends a call to the service or to the gateway. It repeats the call while the response is 202.
func sendCall(t *testing.T, client *http.Client, base string, call testservers.Call, names *strings.Replacer) answer {
	t.Helper()
	for {
		resp := must(client.Do(must(call.Request(base, names))(t)))(t)
		body := must(io.ReadAll(resp.Body))(t)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusAccepted {
			time.Sleep(2 * time.Second)
			continue
		}
		a := answer{Status: resp.StatusCode, Body: counts.ReplaceAllString(string(body), `"$1":0`), Header: map[string]string{}}
		for _, name := range []string{"Content-Type", "Etag", "Last-Modified", "Link", "Location", "X-Service-Media-Type", "X-Ratelimit-Limit", "X-Ratelimit-Resource"} {
			if v := resp.Header.Get(name); v != "" {
				a.Header[name] = strings.ReplaceAll(v, base, "BASE")
			}
		}
		return a
	}
}

// withoutDifferences removes fields that the gateway computes itself from a response.
func withoutDifferences(id string, a answer, through bool) answer {
	remove := func(names ...string) {
		for _, name := range names {
			delete(a.Header, name)
		}
	}
	switch {
	case a.Status == http.StatusUnauthorized || a.Status == http.StatusBadRequest:
		remove("X-Ratelimit-Limit", "X-Ratelimit-Resource") // the service sends no budget to an unknown caller
	case id == "rate-limit/get":
		if remove("Etag"); !through { // the gateway writes this response itself, and names no media type
			remove("X-Service-Media-Type")
		}
	}
	if a.Status >= 400 {
		remove("X-Service-Media-Type")
	}
	return a
}

// unauthorizedCalls returns calls that the catalogue refuses: bad credentials, missing credentials,
// and kinds of tokens that are not accepted.
func unauthorizedCalls(op *policy.Operation, names *strings.Replacer) []testservers.Call {
	target := op.Path
	if slices.ContainsFunc(op.Query, func(p policy.Parameter) bool { return p.Required }) {
		target += "?q=gear" // the service checks required parameters before the token
	}
	call := testservers.Call{Method: op.Method, Target: names.Replace(target), As: "wrong-token", Status: http.StatusUnauthorized}
	all := []testservers.Call{call}
	if call.Target, call.As = names.Replace(op.Path), ""; op.Auth != "optional" {
		all = append(all, call)
	}
	call.Status = http.StatusForbidden
	for _, kind := range op.Refuses {
		call.As = map[string]string{"app_user": "tok-app-user", "installation": "tok-app", "fine_grained": "tok-fine-grained"}[kind]
		all = append(all, call)
	}
	return all
}

// TestGatewayRespondsLikeService sends valid, invalid and unauthorized calls of every
// operation to the service, and to a gateway in front of an identical service. A read is sent twice, because the second
// response may come from the cache.
func TestGatewayRespondsLikeService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := configure("http://service.test", func(c *config.Config) { c.Limits.Primary.Unauthenticated = 1000 })
		g, s, behind := open(t, cfg), must(newService(cfg, 1, quirk.Set{}))(t), must(newService(cfg, 1, quirk.Set{}))(t)
		t.Cleanup(s.Close)
		t.Cleanup(behind.Close)
		connectTo(t, g, behind)
		direct := pipeClient(t, testservers.ServePipe(t, "service.test:80", &http.Server{Handler: s}))
		through := pipeClient(t, testservers.ServePipe(t, "gateway.test:80", &http.Server{Handler: g}))
		names := testservers.CallNames(func(call testservers.Call, names *strings.Replacer) string {
			if call.Method == http.MethodPost {
				sendCall(t, through, "http://gateway.test", call, names)
			}
			return sendCall(t, direct, "http://service.test", call, names).Body
		})
		parameters := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-member", "{name}", "Go",
			"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{code}", "abc", "{role_id}", "1", "{configuration_id}", "1",
			"{invitation_id}", "1", "{team_slug}", "builders")
		unknown := must(policy.Embedded().Classify(http.MethodGet, "/nowhere", ""))(t)
		operations := append(slices.Clone(policy.Embedded().Operations()), unknown.Operation)
		slices.SortFunc(operations, func(a, b *policy.Operation) int { return cmp.Compare(a.ID, b.ID) })
		calls := testservers.Calls()
		for _, op := range operations {
			for i, call := range append(calls[op.ID], unauthorizedCalls(op, parameters)...) {
				at := fmt.Sprintf("%s: call %d as %q", op.ID, i, call.As)
				want := sendCall(t, direct, "http://service.test", call, names)
				failIf(t, want.Status != call.Status, "%s: %d %.300s, want %d", at, want.Status, want.Body, call.Status)
				if want.Status == http.StatusUnauthorized && (op.Cache.Class == policy.Shared || op.ID == "rate-limit/get") {
					continue // the gateway serves shared responses and the rate limit without authentication
				}
				attempts := []string{"first", "again"}
				if call.Method != http.MethodGet && call.Method != http.MethodHead {
					attempts = attempts[:1] // a write may have an effect only once
				}
				for _, attempt := range attempts {
					got := sendCall(t, through, "http://gateway.test", call, names)
					diff := gocmp.Diff(withoutDifferences(op.ID, want, false), withoutDifferences(op.ID, got, true))
					failIf(t, diff != "", "%s, %s: direct (-), through the gateway (+):\n%s", at, attempt, diff)
				}
			}
			time.Sleep(20 * time.Second) // a new search window
		}
	})
}

// TestInvalidQueriesCauseNoViolation sends many queries that parse and fail validation. The gateway counts them as queries, and
// so does the service.
func TestInvalidQueriesCauseNoViolation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := configure("http://service.test", trusting)
		g, s := open(t, cfg), must(newService(cfg, 1, quirk.Set{}))(t)
		t.Cleanup(s.Close)
		connectTo(t, g, s)
		queries := []string{
			"{ nosuch%d: nosuch }", "query($unused%d: Int) { viewer { login } }", "{ viewer { x%d: login @nosuch } }",
			"query Q%d($n: String!) { repository(owner: \\\"acme\\\", name: $n) { id } }",
		}
		for i := range 95 { // more than the contents of a minute
			query := strings.ReplaceAll(queries[i%len(queries)], "%d", strings.Repeat("i", 1+i))
			w := sendTo(g, http.MethodPost, "/graphql", `{"query":"`+query+`"}`, "Authorization: Bearer tok-owner")
			stopIf(t, w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "errors"), "query %d: got status %d: %s", i, w.Code, w.Body)
		}
		v := s.Violations()
		failIf(t, v.Violations != 0 || v.Banned, "got %+v", v)
	})
}
