package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
)

func TestDebugFieldIsForTrustedClientsOnly(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(38 * time.Microsecond)
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = fmt.Fprint(w, "text")
	}, identifying(func(r *http.Request, id *caller.Identity) {
		id.Debug = strings.HasSuffix(r.Header.Get("Authorization"), "trusted")
		id.Client = "evil\nname"
	})).run(t, func(w *world) {
		for _, c := range []struct {
			name, path, token, debug, want string
		}{
			{"miss", "/user/subscriptions", "trusted", "1", `^weir; operation=watching/list-mine; cache=\S+; points=1; resource=core; client=evil\?name; account=account of Bearer trusted; queue=0s; attempt=38us \(200\); settle=0s$`},
			{"hit", "/user/subscriptions", "trusted", "1", `^weir; operation=watching/list-mine; cache=\S+; points=1; resource=core; client=evil\?name; account=account of Bearer trusted$`},
			{"refusal", "/search/code?q=repo:a/b", "trusted", "1", `^weir; operation=search/code; .*; account=account of Bearer trusted$`},
			{"not requested", "/user/subscriptions", "trusted", "", ""},
			{"not trusted", "/user/subscriptions", "another", "1", ""},
		} {
			got := w.get(c.path, "Authorization: Bearer "+c.token, debugHeader+": "+c.debug).Header.Get(debugHeader)
			failIf(w, c.want == "" && got != "" || !regexp.MustCompile(c.want).MatchString(got), "%s: %q, want %s", c.name, got, c.want)
		}
	})
}

// TestRecordsIdentifyQuestions checks that equal questions have equal targets in their records, and that the path has no
// credential.
func TestRecordsIdentifyQuestions(t *testing.T) {
	setup(replies(`{"data":{}}`)).run(t, func(w *world) {
		target := func(method, path, body string) string {
			w.do(method, path, strings.NewReader(body), "Authorization: Bearer token-of-client")
			return w.last().Target
		}
		first := target(http.MethodGet, "/orgs/acme/members?page=1&per_page=5", "")
		w.want("path", w.last().Path, "/orgs/acme/members")
		w.want("length of the hash", len(first), 16)
		w.want("same question", target(http.MethodGet, "/orgs/acme/members?per_page=5&page=1", ""), first)
		for name, other := range map[string]string{
			"page":         target(http.MethodGet, "/orgs/acme/members?page=2&per_page=5", ""),
			"organization": target(http.MethodGet, "/orgs/other/members?page=1&per_page=5", ""),
		} {
			failIf(w, other == first || other == "", "another %s: target %q", name, other)
		}
		query := target(http.MethodPost, "/graphql", `{"query":"{ viewer { login } }"}`)
		failIf(w, query == "" || query == target(http.MethodPost, "/graphql", `{"query":"{ viewer { name } }"}`), "GraphQL queries have no targets of their own: %q", query)
		w.want("mutation", target(http.MethodPost, "/graphql", `{"query":"mutation { x }"}`), "")
		target(http.MethodGet, "/repos/acme/token-of-client/subscribers", "")
		w.want("path with a credential", w.last().Path, "/repos/acme/REDACTED/subscribers")
	})
}

func TestTagIsRecordedButNotForwarded(t *testing.T) {
	setup(nothing).run(t, func(w *world) {
		longest := strings.Repeat("x", 64)
		for _, c := range []struct{ field, want string }{
			{"Weir-Tag: acme/widgets:nightly_4.2@main-1", "acme/widgets:nightly_4.2@main-1"}, {"weir-tag: light_mode", "light_mode"},
			{"Weir-Tag: " + longest, longest}, {"Weir-Tag: ", ""}, {"Weir-Tags: x", ""},
		} {
			for _, path := range []string{"/repos/a/b/subscribers", "/undocumented/path"} {
				w.want("status with "+c.field, w.get(path, c.field, "Cache-Control: no-cache").StatusCode, http.StatusOK)
				w.want("tag of "+c.field, w.recent()[0].Tag, c.want)
			}
		}
		for _, r := range w.seen.all() {
			for name := range r.Header {
				failIf(w, strings.HasPrefix(name, "Weir-"), "%s: %s was forwarded", r.URL.Path, name)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 10)
	})
}

func TestInvalidTagIsRefused(t *testing.T) {
	var log bytes.Buffer
	setup(nothing, logTo(&log)).run(t, func(w *world) {
		invalid := []string{
			"evil" + strings.Repeat("x", 61), "evil\tx", "evil\x80", "evilä", "ghp_evil" + strings.Repeat("x", 32), "ghs_4200_eyJevil", "run:weir_evil" + strings.Repeat("a", 22),
		}
		for _, c := range " !\"#$%&'()*+,;<=>?[\\]^`{|}~" {
			invalid = append(invalid, "evil"+string(c)+"x")
		}
		for _, value := range invalid {
			r := w.get("/repos/a/b/subscribers", "Weir-Tag: "+value)
			failIf(w, r.StatusCode != http.StatusBadRequest || !strings.Contains(r.body, "Weir-Tag must be") || !strings.Contains(r.Header.Get("Cache-Status"), "detail=tag"), "%q: %d with %s: %s", value, r.StatusCode, r.Header.Get("Cache-Status"), r.body)
			w.want("recorded tag", w.recent()[0].Tag, "")
			stopIf(w, strings.Contains(r.body+log.String()+fmt.Sprintf("%+v", w.recent()[0]), "evil"), "%q is in the response or in the log", value)
		}
		w.want("status with two fields", w.get("/repos/a/b/subscribers", "Weir-Tag: a", "Weir-Tag: b").StatusCode, http.StatusBadRequest)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}

// A claim is verified, and the field is not. A client cannot change its claims, so an invalid claim is no error.
func TestClaimReplacesTheTagField(t *testing.T) {
	for _, c := range []struct{ name, claim, want string }{
		{"valid", "acme/widgets", "acme/widgets"},
		{"missing", "", ""},
		{"invalid", "evil\ntag", ""},
		{"too long", strings.Repeat("x", 65), ""},
	} {
		setup(nothing, identifying(func(_ *http.Request, id *caller.Identity) { id.TokenTag, id.TagFromClaim = c.claim, true })).run(t, func(w *world) {
			for _, field := range []string{"X-A: b", "Weir-Tag: forged", "Weir-Tag: not valid"} {
				w.want(c.name+" claim with "+field, w.get("/repos/a/b/subscribers", field).StatusCode, http.StatusOK)
				w.want(c.name+" claim with "+field, w.recent()[0].Tag, c.want)
			}
		})
	}
}

func TestBackgroundRequestsHaveTheTagOfTheirCause(t *testing.T) {
	var records recordLog
	observe := func(c *Config) { c.Observe = records.observe }
	setup(responds(200, "Cache-Control: max-age=10, stale-while-revalidate=600"), observe).run(t, func(w *world) {
		w.get("/repos/a/b/subscribers")
		time.Sleep(time.Minute)
		w.get("/repos/a/b/subscribers", "Weir-Tag: nightly")
		synctest.Wait()
		list := slices.DeleteFunc(records.list, func(r record.Record) bool { return !r.Background })
		w.want("background requests", len(list), 1)
		w.want("tag of the background request", list[0].Tag, "nightly")
	})
}

func TestTagOfALimitedClientHasAPartOfTheWindow(t *testing.T) {
	setup(naming(100, always("core")), identifying(func(_ *http.Request, id *caller.Identity) {
		id.Account, id.Client = "bot", "ci"
		id.Clients = []policy.ClientBudget{{Client: "ci", Limit: 1, TagLimit: 0.05}}
	})).run(t, func(w *world) {
		get := func(tag string) got {
			return w.get("/repos/a/b/subscribers", "Cache-Control: no-cache", "Weir-Tag: "+tag)
		}
		for _, tag := range []string{"1", "2", ""} {
			for range 4 {
				w.want("status with tag "+tag, get(tag).StatusCode, http.StatusOK)
			}
			r := get(tag)
			w.want("status with tag "+tag, r.StatusCode, http.StatusOK)
			w.want("limit with tag "+tag, r.Header.Get("X-Ratelimit-Limit"), "5")
			w.want("remaining with tag "+tag, r.Header.Get("X-Ratelimit-Remaining"), "0")
			r = get(tag)
			w.want("status beyond the limit of tag "+tag, r.StatusCode, http.StatusTooManyRequests)
			w.want("cause", strings.Contains(r.Header.Get("Cache-Status"), "detail=client"), true)
		}
		w.want("requests upstream", w.upstreamSaw(), 15)
	})
}

// A response is stale from the end of its lifetime, also within the first second.
func TestStatusIsStaleFromTheEndOfTheLifetime(t *testing.T) {
	for _, c := range []struct {
		after   time.Duration
		control string
		cache   string
		outcome record.Outcome
	}{
		{9900 * time.Millisecond, "max-stale", "weir; hit; ttl=0", record.OutcomeHit},
		{10 * time.Second, "max-stale", "weir; hit; ttl=-1", record.OutcomeStale},
		{10100 * time.Millisecond, "max-stale", "weir; hit; ttl=-1", record.OutcomeStale},
		{10100 * time.Millisecond, "max-age=60", "weir; hit; ttl=-1", record.OutcomeStale},
		{12 * time.Second, "max-age=60", "weir; hit; ttl=-2", record.OutcomeStale},
	} {
		upstream := replies("text", "Cache-Control: max-age=10, stale-while-revalidate=60")
		setup(upstream).sub(t, fmt.Sprint(c.after, " ", c.control), func(w *world) {
			w.get("/users/octocat")
			time.Sleep(c.after)
			r := w.get("/users/octocat", "Cache-Control: "+c.control)
			w.want("Cache-Status", r.Header.Get("Cache-Status"), c.cache)
			synctest.Wait()
			records := w.recent()
			w.want("outcome", records[slices.IndexFunc(records, func(r record.Record) bool { return !r.Background })].Outcome, c.outcome)
		})
	}
}
