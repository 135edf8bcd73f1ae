package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// TestWritesOfAClientAreLimited sends requests of a client that may write twice in a minute, and once with one tag.
func TestWritesOfAClientAreLimited(t *testing.T) {
	type request struct{ method, path, body, tag string }
	issue := func(tag string) request { return request{"POST", "/repos/a/b/issues", `{"title":"x"}`, tag} }
	for name, c := range map[string]struct {
		writes []request // of which one more is refused
		reads  []request
	}{
		"REST":     {[]request{issue("1"), {"DELETE", "/unknown/route", "", "2"}}, []request{{"GET", "/repos/a/b/issues", "", ""}, {"POST", "/markdown", `{"text":"x"}`, ""}}},
		"a tag":    {[]request{issue("1")}, []request{issue("2")}},
		"no tag":   {[]request{issue("")}, []request{issue("2")}},
		"GraphQL":  {[]request{{"POST", "/graphql", `{"query":"mutation{a:addStar(input:{starrableId:\"x\"}){clientMutationId}}"}`, "1"}, {"POST", "/graphql", `{"query":"subscription{a}"}`, "2"}}, []request{{"POST", "/graphql", `{"query":"{viewer{login}}"}`, ""}}},
		"all tags": {[]request{issue("1"), issue("2")}, []request{{"GET", "/repos/a/b", "", ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := limits.Rules{Limits: policy.DefaultLimits(), Writes: map[string]policy.ClientWrites{
				"agent": {Client: policy.WriteLimits{PerMinute: 2}, Tag: policy.WriteLimits{PerHour: 1}},
			}}
			setup(naming(5000, always("core")), wholeAPI(t, func(*policy.Limits) {}), withLedger(limits.NewMemory(rules)), identifying(func(_ *http.Request, id *caller.Identity) {
				id.Account, id.Client, id.Scope = "bot", "agent", &policy.Scope{CountsWrites: true}
			})).run(t, func(w *world) {
				send := func(r request) got {
					return w.do(r.method, r.path, strings.NewReader(r.body), bearer("a"), "Weir-Tag: "+r.tag, "Prefer: wait=0")
				}
				const four = `mutation{a:addStar{id} b:addStar{id} c:addStar{id} d:addStar{id}}`
				for _, body := range []string{
					"", "{", "null", `{}`, `{"query":"","query":"` + four + `"}`, `{"query":"{a}","QUERY":"` + four + `"}`, `[{"query":"` + four + `"}]`, `{"query":"{a}"}{"query":"` + four + `"}`,
					`{"query":""}`, `{"query":["` + four + `"]}`, `{"query":"` + four + ` extend schema @a"}`, `{"query":"mutation{a(b:1 b c)}"}`, `query=` + four, `{"extensions":{"persistedQuery":{"sha256Hash":"a"}}}`,
				} {
					r := send(request{"POST", "/graphql", body, ""})
					w.want("status of "+body, r.StatusCode, http.StatusForbidden)
					w.want("reason of "+body, strings.Contains(r.body, "no readable query"), true)
				}
				w.want("status of a query in the URL", send(request{"POST", "/graphql?query=mutation{a}", `{"query":"{a}"}`, ""}).StatusCode, http.StatusForbidden)
				long := send(request{"POST", "/graphql", `{"query":"mutation{` + strings.Repeat("a ", 20_001) + `}"}`, ""})
				w.want("a query with too many tokens is refused", strings.Contains(long.body, "no readable query"), true)
				w.want("requests upstream", w.upstreamSaw(), 0)
				for _, r := range c.writes {
					w.want(r.method+" "+r.path, send(r).StatusCode, http.StatusOK)
				}
				w.wantFields("two mutations in one call", send(request{"POST", "/graphql", `{"query":"mutation{a:addStar{id} b:addStar{id}}"}`, "9"}).Header, "Cache-Status: weir; detail=writes")
				sent := w.upstreamSaw()
				last := c.writes[0]
				refused := send(last)
				w.want("status of one more", refused.StatusCode == http.StatusForbidden || refused.StatusCode == http.StatusTooManyRequests, true)
				w.want("detail", strings.Contains(refused.Header.Get("Cache-Status"), "detail=writes"), true)
				w.want("requests upstream", w.upstreamSaw(), sent)
				for _, r := range c.reads {
					w.want(r.method+" "+r.path, send(r).StatusCode, http.StatusOK)
				}
				after, err := time.ParseDuration(refused.Header.Get("Retry-After") + "s")
				w.want("Retry-After", err == nil && after > 50*time.Second, true)
				time.Sleep(after)
				w.want("status after Retry-After", send(last).StatusCode, http.StatusOK)
			})
		})
	}
}

// A call with more mutations than a limit of writes never fits, so it gets its refusal at once and delays no other call.
func TestCallWithTooManyMutationsIsRefusedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		limits    policy.ClientWrites
		mutations int
		message   string
	}{
		"a minute":           {policy.ClientWrites{Client: policy.WriteLimits{PerMinute: 5}}, 7, "has 7 mutations, and this client may send at most 5 a minute (clients[].writes)"},
		"an hour":            {policy.ClientWrites{Client: policy.WriteLimits{PerHour: 5}}, 6, "has 6 mutations, and this client may send at most 5 an hour (clients[].writes)"},
		"the strictest":      {policy.ClientWrites{Client: policy.WriteLimits{PerMinute: 6, PerHour: 5}}, 7, "at most 5 an hour (clients[].writes)"},
		"requests of a tag":  {policy.ClientWrites{Client: policy.WriteLimits{PerMinute: 50}, Tag: policy.WriteLimits{PerMinute: 5}}, 9, "has 9 mutations, and this client may send at most 5 a minute with one tag (clients[].tag_writes)"},
		"several and no tag": {policy.ClientWrites{Tag: policy.WriteLimits{PerHour: 5}}, 7, "at most 5 an hour with one tag (clients[].tag_writes)"},
	} {
		rules := limits.Rules{Limits: policy.DefaultLimits(), Writes: map[string]policy.ClientWrites{"agent": c.limits}}
		setup(naming(5000, always("core")), wholeAPI(t, func(*policy.Limits) {}), withLedger(limits.NewMemory(rules)), identifying(func(_ *http.Request, id *caller.Identity) {
			id.Account, id.Client = "bot", "agent"
		})).sub(t, name, func(w *world) {
			send := func(mutations int) got {
				query := ""
				for i := range mutations {
					query += fmt.Sprintf(" m%d:addStar{id}", i)
				}
				return w.do("POST", "/graphql", strings.NewReader(`{"query":"mutation{`+query+`}"}`), bearer("a"), "Prefer: wait=200")
			}
			began := time.Now()
			refused := send(c.mutations)
			w.want("status", refused.StatusCode, http.StatusForbidden)
			w.wantFields("refusal", refused.Header, "Cache-Status: weir; detail=writes", "Retry-After: ")
			w.want("message", strings.Contains(refused.body, c.message+"; split the call"), true)
			w.want("status of the whole limit", send(5).StatusCode, http.StatusOK)
			w.want("status of too many mutations", send(c.mutations).StatusCode, http.StatusForbidden)
			w.want("time", time.Since(began) < 10*time.Second, true)
			w.want("requests upstream", w.upstreamSaw(), 1)
		})
	}
}

// renewedCredential is a held credential that is renewed after a 401.
type renewedCredential struct{ lateCredential }

func (c renewedCredential) Authorize(http.Header, policy.CredentialUse) (caller.SentCredential, error) {
	return c, nil
}

func (renewedCredential) End(_ *policy.Operation, status int, limited bool) bool {
	return status == http.StatusUnauthorized && !limited
}

// A write that Weir repeats after a renewal of the credential counts once, because the client sent it once.
func TestRepeatedWritesCountOnce(t *testing.T) {
	var writes atomic.Int64
	upstream := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && writes.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	rules := limits.Rules{Limits: policy.DefaultLimits(), Writes: map[string]policy.ClientWrites{"agent": {Client: policy.WriteLimits{PerHour: 2}}}}
	setup(upstream, wholeAPI(t, func(*policy.Limits) {}), withLedger(limits.NewMemory(rules)), identifying(func(_ *http.Request, id *caller.Identity) {
		id.Account, id.Client, id.Passed, id.Credential = "bot", "agent", false, renewedCredential{}
	})).run(t, func(w *world) {
		w.get("/repos/a/b", bearer("a")) // the upstream has accepted the credential before
		write := func() got { return w.do("POST", "/repos/a/b/issues", strings.NewReader(`{"title":"x"}`), bearer("a")) }
		for range 2 {
			w.want("status", write().StatusCode, http.StatusOK)
		}
		w.want("writes upstream", writes.Load(), int64(4))
		w.wantFields("one more", write().Header, "Cache-Status: weir; detail=writes")
		w.want("writes upstream", writes.Load(), int64(4))
	})
}
