package proxy

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/tags"
)

// versions is an upstream whose responses have a version, with a lifetime of a minute.
type versions struct {
	mu           sync.Mutex
	changes      map[string][]time.Time // times of the changes, by path
	cacheControl string
	costly       atomic.Int64 // responses that cost quota
}

// change increments the version of a path.
func (v *versions) change(path string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes[path] = append(v.changes[path], time.Now())
}

func (v *versions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	version := len(v.changes[r.URL.Path])
	v.mu.Unlock()
	etag := fmt.Sprintf(`W/"%s:%d"`, r.URL.Path, version)
	setFields(w, "Cache-Control: "+cmp.Or(v.cacheControl, "private, max-age=60, s-maxage=60"), "Etag: "+etag)
	if cache.MatchesETag(r.Header["If-None-Match"], etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	v.costly.Add(1)
	_, _ = fmt.Fprint(w, version)
}

// age returns the time since the change that outdated a version, or 0 for the current version.
func (v *versions) age(path, version string) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n, err := strconv.Atoi(version); err == nil && n < len(v.changes[path]) {
		return time.Since(v.changes[path][n])
	}
	return 0
}

const (
	issuesOfWidgets = "/repos/acme/widgets/issues"
	maxFresh        = 30 * time.Minute
)

// newEventWorld starts a gateway of the github dialect with webhooks.fresh.
func newEventWorld(t *testing.T, v *versions, options ...option) *world {
	v.changes = map[string][]time.Time{}
	many := func(l *policy.Limits) { l.Primary.User, l.Points.REST = 1_000_000, 100_000 }
	options = append([]option{wholeAPI(t, many), func(c *Config) { c.WebhookFresh = maxFresh }}, options...)
	return newWorld(t, v.ServeHTTP, options...)
}

// inEventWorld runs a test with virtual time in a world of newEventWorld.
func inEventWorld(t *testing.T, test func(*world, *versions)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &versions{}
		test(newEventWorld(t, v), v)
	})
}

// deliver delivers an event for a repository of acme by the webhook of an object.
func deliver(g *Gateway, webhook, event, repository string, subscribed ...string) {
	c := cache.Coverage{Webhook: webhook, Object: "repo:" + repository, Events: []string{event}, At: time.Now()}
	if event == "ping" {
		c.Events, c.Complete = subscribed, true
	}
	organization, _, _ := strings.Cut(repository, "/")
	g.Cache.Deliver(context.Background(), c, g.Lag, tags.OfEvent(g.Catalogue, event, repository, organization, false)...)
}

// pingAll pings the webhook of widgets, which is subscribed to all events.
func pingAll(g *Gateway) { deliver(g, "repo:acme/widgets", "ping", "acme/widgets", cache.AllEvents) }

// wantStatus sends a request and compares its Cache-Status.
func (w *world) wantStatus(want, path string, fields ...string) {
	w.Helper()
	w.wantFields(path, w.get(path, append(lines(owner), fields...)...).Header, "Cache-Status: "+want)
}

const (
	miss        = "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60"
	revalidated = "weir; fwd=stale; fwd-status=304; stored; ttl=60"
	replaced    = "weir; fwd=stale; fwd-status=200; stored; ttl=60"
	prolonged   = "weir; hit; ttl=1680; detail=webhook" // two minutes after the response
)

// A second credential of the client finds a response that webhooks keep current.
func TestCurrentResponseIsAHitForALaterCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pools := identifying(func(r *http.Request, id *caller.Identity) {
			*id = *pooled(strings.Fields(r.Header.Get("Authorization"))...)
		})
		hidden := changingResponses(func(_ int32, resp *http.Response) {
			if resp.Request.Header.Get("Authorization") == "a" {
				resp.StatusCode = http.StatusNotFound
			}
		})
		w := newEventWorld(t, &versions{}, pools, hidden)
		pingAll(w.gateway)
		w.get(issuesOfWidgets, "Authorization: b")
		time.Sleep(2 * time.Minute)
		w.wantHeader(w.get(issuesOfWidgets, "Authorization: a b"), "Cache-Status: "+prolonged)
		w.want("outcome", w.last().Outcome, record.OutcomeHit)
	})
}

func TestResponseIsUsedUntilAnEvent(t *testing.T) {
	inEventWorld(t, func(w *world, v *versions) {
		pingAll(w.gateway)
		w.wantStatus(miss, issuesOfWidgets)
		w.wantStatus("weir; hit; ttl=60", issuesOfWidgets)
		time.Sleep(20 * time.Minute)
		w.wantStatus("weir; hit; ttl=600; detail=webhook", issuesOfWidgets)
		r := w.get(issuesOfWidgets, owner)
		w.want("age", r.Header.Get("Age"), "1200")
		w.want("status of a conditional request", w.get(issuesOfWidgets, owner, "If-None-Match: "+r.Header.Get("Etag")).StatusCode, http.StatusNotModified)
		v.change(issuesOfWidgets)
		deliver(w.gateway, "repo:acme/widgets", "issues", "acme/widgets")
		w.wantStatus(replaced, issuesOfWidgets)
		time.Sleep(29 * time.Minute)
		w.wantStatus("weir; hit; ttl=60; detail=webhook", issuesOfWidgets)
		time.Sleep(time.Minute)
		w.wantStatus(revalidated, issuesOfWidgets)
		time.Sleep(29 * time.Minute) // the 304 restarted the time
		w.wantStatus("weir; hit; ttl=60; detail=webhook", issuesOfWidgets)
		w.want("lost events", w.gateway.Cache.LostEvents(), int64(0))
	})
}

// TestResponseWithoutReportedChangesIsRevalidated lists the cases in which a response is used for its lifetime only.
func TestResponseWithoutReportedChangesIsRevalidated(t *testing.T) {
	ping := func(webhook string, subscribed ...string) func(*Gateway) {
		return func(g *Gateway) { deliver(g, webhook, "ping", "acme/widgets", subscribed...) }
	}
	repository, organization := ping("repo:acme/widgets", cache.AllEvents), ping("org:acme", cache.AllEvents)
	needed := policy.CatalogueOf("github").DecidedBy(policy.CatalogueOf("github").Operation("issues/list-for-repo"))
	off := func(c *Config) { c.WebhookFresh = 0 }
	for _, c := range []struct {
		name, path string         // issuesOfWidgets by default
		ping       func(*Gateway) // of the repository by default
		control    string         // Cache-Control of the response
		option     func(c *Config)
		field      string // of the request
		want       bool   // used after its lifetime
	}{
		{name: "repository", want: true},
		{name: "listed events", ping: ping("repo:acme/widgets", needed...), want: true},
		{name: "listed events without one", ping: ping("repo:acme/widgets", needed[1:]...)},
		{name: "no delivery", ping: func(*Gateway) {}},
		{name: "setting is 0", option: off},
		{name: "webhook of the organization", ping: organization, want: true},
		{name: "response of the organization", path: "/orgs/acme/teams", ping: organization, want: true},
		{name: "response of the organization, webhook of a repository", path: "/orgs/acme/teams"},
		{name: "another repository", path: "/repos/acme/other/issues"},
		{name: "another repository of the organization", path: "/repos/acme/other/issues", ping: organization, want: true},
		{name: "repository by number", path: "/repositories/7/issues", ping: organization},
		{name: "response that changes without events", path: "/repos/acme/widgets/traffic/views"},
		{name: "response of the caller", path: "/user/issues", ping: organization},
		{name: "unknown route", path: "/repos/acme/widgets/issues/new-route/x"},
		{name: "must-revalidate", control: "private, max-age=60, must-revalidate"},
		{name: "no-cache", control: "private, no-cache"},
		{name: "no lifetime", control: "private, max-age=0"},
		{name: "request with no-cache", field: "Cache-Control: no-cache"},
		{name: "request with max-age", field: "Cache-Control: max-age=60"},
		{name: "request with a longer max-age", field: "Cache-Control: max-age=600", want: true},
		{name: "request with min-fresh", field: "Cache-Control: min-fresh=1"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newEventWorld(t, &versions{cacheControl: c.control}, func(config *Config) {
				if c.option != nil {
					c.option(config)
				}
			})
			if c.ping == nil {
				c.ping = repository
			}
			c.ping(w.gateway)
			path := cmp.Or(c.path, issuesOfWidgets)
			w.get(path, owner)
			time.Sleep(2 * time.Minute)
			before := w.upstreamSaw()
			w.get(path, owner, cmp.Or(c.field, "Accept: */*"))
			w.want("used after its lifetime", w.upstreamSaw() == before, c.want)
		})
	}
}

func TestResponseFromBeforeTheFirstDeliveryIsRevalidated(t *testing.T) {
	inEventWorld(t, func(w *world, _ *versions) {
		w.get(issuesOfWidgets, owner)
		pingAll(w.gateway)
		time.Sleep(2 * time.Minute)
		w.wantStatus(revalidated, issuesOfWidgets)
		time.Sleep(2 * time.Minute)
		w.wantStatus(prolonged, issuesOfWidgets)
	})
}

// TestChangeWithoutAnEventEndsTheUse changes a response without an event. The revalidation reports the lost event, and
// the other responses of the repository are revalidated until the next delivery.
func TestChangeWithoutAnEventEndsTheUse(t *testing.T) {
	inEventWorld(t, func(w *world, v *versions) {
		const labels = "/repos/acme/widgets/labels"
		pingAll(w.gateway)
		w.get(issuesOfWidgets, owner)
		v.change(issuesOfWidgets)
		time.Sleep(maxFresh - time.Minute)
		w.get(labels, owner)
		time.Sleep(2 * time.Minute)
		w.wantStatus(prolonged, labels)
		w.wantStatus(replaced, issuesOfWidgets)
		w.want("lost events", w.gateway.Cache.LostEvents(), int64(1))
		for range 2 {
			w.wantStatus(revalidated, labels)
			time.Sleep(2 * time.Minute)
		}
		deliver(w.gateway, "repo:acme/widgets", "push", "acme/widgets")
		w.get(labels, owner)
		time.Sleep(2 * time.Minute)
		w.wantStatus(prolonged, labels)
		w.want("lost events", w.gateway.Cache.LostEvents(), int64(1))
	})
}

func TestOnlyReportedChangesCountAsLostEvents(t *testing.T) {
	inEventWorld(t, func(w *world, v *versions) {
		pingAll(w.gateway)
		for _, change := range []func(){
			func() { deliver(w.gateway, "repo:acme/widgets", "issues", "acme/widgets") },
			func() { w.do(http.MethodPost, issuesOfWidgets, strings.NewReader("{}"), owner) },
		} {
			w.get(issuesOfWidgets, owner)
			v.change(issuesOfWidgets)
			change()
			w.wantStatus(replaced, issuesOfWidgets)
		}
		const repository = "/repos/acme/widgets" // has counters without events
		w.get(repository, owner)
		v.change(repository)
		time.Sleep(2 * time.Minute)
		w.wantStatus(replaced, repository)
		w.want("lost events", w.gateway.Cache.LostEvents(), int64(0))
	})
}

func TestReplicaThatMissesPurgesRevalidates(t *testing.T) {
	inEventWorld(t, func(w *world, _ *versions) {
		list, shared := w.replicas(2)
		pingAll(list[0])
		read := func() string {
			return sendTo(list[1], issuesOfWidgets, "Authorization", "Bearer tok-owner").Header().Get("Cache-Status")
		}
		read()
		time.Sleep(2 * time.Minute)
		gets := shared.gets
		w.want("with purges of the other replica", read(), prolonged)
		w.want("reads of the shared tier", shared.gets-gets, 0)
		shared.change(func() { shared.away = true })
		w.want("without purges", read(), revalidated)
	})
}

// TestEventsThatMayEndAccessEndTheUse delivers events with a repository, with the organization alone, and with neither.
func TestEventsThatMayEndAccessEndTheUse(t *testing.T) {
	for _, event := range []string{
		"enterprise", "github_app_authorization", "installation", "installation_repositories", "installation_target", "member",
		"membership", "org_block", "organization", "public", "repository", "team", "team_add", "unknown", "user",
	} {
		for _, about := range []string{"acme/widgets", "acme", ""} {
			for _, path := range []string{issuesOfWidgets, "/repos/acme/widgets/commits/main/comments", "/orgs/acme/teams"} {
				if about == "acme/widgets" && path == "/orgs/acme/teams" {
					continue // the event concerns the repository
				}
				bubble(t, event+" "+about+path, func(t *testing.T) {
					w := newEventWorld(t, &versions{})
					deliver(w.gateway, "org:acme", "ping", "acme/widgets", cache.AllEvents)
					w.get(path, owner)
					time.Sleep(2 * time.Minute)
					w.wantStatus(prolonged, path)
					organization, repository, _ := strings.Cut(about, "/")
					if repository != "" {
						repository = about
					}
					w.gateway.Cache.Purge(w.Context(), tags.OfEvent(w.gateway.Catalogue, event, repository, organization, false)...)
					w.wantStatus(revalidated, path)
				})
			}
		}
	}
}

// polling is a run of programs that poll lists of many repositories.
type polling struct {
	tokens, lost int // the number of tokens, and one lost event in this number; 0 loses none
	fresh        time.Duration
	programs     int // 4 by default
}

// run lets programs poll lists once a minute for an hour, each of which changes twice. It returns the upstream requests per
// change after the first reads, those of them that cost quota, which a 304 does not, and the age of the most outdated response. A webhook event arrives a second after its change.
// Responses that began within the lag of two seconds after an event are revalidated, so an event costs 1 + lag/interval requests on
// average if programs read its list once in an interval, and a response that reaches its longest age costs another one.
func (p polling) run(t *testing.T) (requests, costly float64, oldest time.Duration) {
	programs, repositories := cmp.Or(p.programs, 4), 20
	events := 2 * repositories
	v := &versions{}
	w := newEventWorld(t, v, func(c *Config) { c.WebhookFresh, c.Lag = p.fresh, 2*time.Second })
	path := func(i int) string { return fmt.Sprintf("/repos/acme/r%d/issues", i) }
	deliver(w.gateway, "org:acme", "ping", "acme/r0", cache.AllEvents)
	for token := range p.tokens {
		for i := range repositories {
			w.get(path(i), fmt.Sprint("Authorization: token ", token))
		}
	}
	v.costly.Store(0)
	first, end := w.upstreamSaw(), time.Now().Add(time.Hour)
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range programs {
		group.Go(func() {
			time.Sleep(time.Duration(i) * time.Minute / time.Duration(programs))
			for ; time.Now().Before(end); time.Sleep(time.Minute) {
				for j := range repositories {
					r := sendTo(w.gateway, path(j), "Authorization", fmt.Sprint("token ", i%p.tokens))
					mu.Lock()
					oldest = max(oldest, v.age(path(j), r.Body.String()))
					mu.Unlock()
				}
			}
		})
	}
	group.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for n := range events {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Hour) / float64(events) * 0.9))
			i := random.IntN(repositories)
			v.change(path(i))
			if p.lost > 0 && n%p.lost == 0 {
				continue
			}
			group.Go(func() {
				time.Sleep(time.Second)
				deliver(w.gateway, "org:acme", "issues", fmt.Sprint("acme/r", i))
			})
		}
	})
	group.Wait()
	t.Logf("%+v: %d requests after %d first reads, %d lost events noticed, oldest response %v",
		p, w.upstreamSaw()-first, first, w.gateway.Cache.LostEvents(), oldest)
	return float64(w.upstreamSaw()-first) / float64(events), float64(v.costly.Load()) / float64(events), oldest
}

func TestPollingCostsAboutAsManyRequestsAsEvents(t *testing.T) {
	for name, c := range map[string]struct {
		polling
		requests float64 // per event
		oldest   time.Duration
	}{
		"without the setting":        {polling{tokens: 1}, 32, 62 * time.Second},
		"with the setting":           {polling{tokens: 1, fresh: time.Hour}, 1.5, 2 * time.Second},
		"each list every 3 seconds":  {polling{tokens: 1, fresh: time.Hour, programs: 20}, 2, 2 * time.Second},
		"for half an hour":           {polling{tokens: 1, fresh: 30 * time.Minute}, 1.5, 2 * time.Second},
		"one event in ten is lost":   {polling{tokens: 1, fresh: 30 * time.Minute, lost: 10}, 5, 30 * time.Minute},
		"the programs have 4 tokens": {polling{tokens: 4, fresh: time.Hour}, 6, 2 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			if requests, costly, oldest := c.run(t); requests > c.requests || costly > float64(c.tokens) || oldest > c.oldest {
				t.Errorf("%.1f requests per event, %.1f with quota, oldest response %v; want at most %.1f, %d, %v", requests, costly, oldest, c.requests, c.tokens, c.oldest)
			}
		})
	}
}

// After a rename, a transfer or a redirect, all responses about the former name are stale: those of the object, those of objects
// inside it, and queries that name it. webhooks.fresh does not prolong new responses about the former name.
func TestFormerNameEnds(t *testing.T) {
	const repository = "/repos/acme/widgets"
	for name, end := range map[string]func(*world){
		"repository":   func(w *world) { w.gateway.EndName(w.Context(), "acme/widgets") },
		"organization": func(w *world) { w.gateway.EndName(w.Context(), "acme") },
	} {
		bubble(t, name, func(t *testing.T) {
			v := &versions{}
			w := newEventWorld(t, v)
			pingAll(w.gateway)
			about := lines(repository, issuesOfWidgets, "/orgs/acme", "/orgs/acme/repos", "/users/acme/repos")
			for _, path := range about {
				w.wantStatus(miss, path)
			}
			end(w)
			for _, path := range about {
				w.wantStatus(revalidated, path)
			}
			if time.Sleep(2 * time.Minute); name == "repository" {
				w.wantStatus(revalidated, issuesOfWidgets)
			}
		})
	}
}

func TestRedirectEndsTheFormerName(t *testing.T) {
	moved := false
	v := &versions{changes: map[string][]time.Time{}}
	setup(func(w http.ResponseWriter, r *http.Request) {
		if moved && r.URL.Path == "/repos/acme/widgets" {
			responds(301, "Location: /repositories/1")(w, r)
			return
		}
		v.ServeHTTP(w, r)
	}, wholeAPI(t, func(*policy.Limits) {}), func(c *Config) { c.WebhookFresh = maxFresh }).run(t, func(w *world) {
		pingAll(w.gateway)
		w.wantStatus(miss, "/repos/acme/widgets")
		w.wantStatus(miss, issuesOfWidgets)
		moved = true
		w.get("/repos/acme/widgets", append(lines(owner), "Cache-Control: no-cache")...)
		w.wantStatus(revalidated, issuesOfWidgets)
	})
}

// A write that renames or transfers an object makes responses about the former and the new name stale, and the lists that show
// the object.
func TestWriteThatRenamesPurgesBothNames(t *testing.T) {
	const transferred = `{"id":1,"full_name":"other/widgets","owner":{}}`
	for name, c := range map[string]struct {
		method, path, response string
		stale                  []string
	}{
		"repository": {http.MethodPatch, "/repos/acme/widgets", `{"id":1,"full_name":"acme/gears","owner":{}}`, lines(issuesOfWidgets, "/repos/acme/gears/issues", "/orgs/acme/repos")},
		"to an organization": {
			http.MethodPost, "/repos/acme/widgets/transfer", transferred,
			lines(issuesOfWidgets, "/repos/other/widgets/issues", "/orgs/acme/repos", "/orgs/other/repos", "/orgs/other"),
		},
		"to a user":    {http.MethodPost, "/repos/acme/widgets/transfer", transferred, lines("/users/other/repos", "/users/other", "/user/repos")},
		"team":         {http.MethodPatch, "/orgs/acme/teams/ops", `{"slug":"sre"}`, lines("/orgs/acme/teams/ops/members", "/orgs/acme/teams/sre", "/orgs/acme/teams/sre/members", "/orgs/acme/teams")},
		"organization": {http.MethodPatch, "/orgs/acme", `{"login":"acme"}`, lines("/orgs/acme", "/user/orgs", "/users/acme")},
		"creation":     {http.MethodPost, "/orgs/acme/repos", `{"id":1,"full_name":"acme/fresh","owner":{}}`, lines("/repos/acme/fresh", "/repos/acme/fresh/issues", "/repos/acme/fresh/contents/a")},
		"template":     {http.MethodPost, "/repos/acme/widgets/generate", `{"id":1,"full_name":"acme/fresh","owner":{}}`, lines("/repos/acme/fresh/issues")},
		"fork":         {http.MethodPost, "/repos/acme/widgets/forks", `{"id":1,"full_name":"ann/widgets","owner":{},"parent":{"full_name":"acme/widgets"}}`, lines("/repos/ann/widgets/contents/a")},
		"own":          {http.MethodPost, "/user/repos", `{"id":1,"full_name":"ann/fresh","owner":{}}`, lines("/repos/ann/fresh/issues", "/users/ann/repos")},
		"privatized":   {http.MethodPatch, "/repos/acme/widgets", `{"id":1,"full_name":"acme/widgets","private":true}`, lines(issuesOfWidgets, "/repos/acme/widgets/stats/participation", "/orgs/acme/repos")},
	} {
		v := &versions{changes: map[string][]time.Time{}}
		setup(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				replies(c.response)(w, r)
				return
			}
			v.ServeHTTP(w, r)
		}, wholeAPI(t, func(*policy.Limits) {})).sub(t, name, func(w *world) {
			for _, path := range c.stale {
				w.wantStatus(miss, path)
			}
			w.do(c.method, c.path, strings.NewReader("{}"), lines(owner)...)
			for _, path := range c.stale {
				w.wantStatus(revalidated, path)
			}
		})
	}
}

// A response about an unfinished state is stored for a few seconds, also if webhooks report changes.
func TestUnfinishedStateIsRevalidatedSoon(t *testing.T) {
	const pull = "/repos/acme/widgets/pulls/1"
	const etag = `Etag: W/"1"`
	padding := `,"body":"` + strings.Repeat("x", 2*bodies.Small) + `"}`
	for name, body := range map[string]string{"small": `{"mergeable":null}`, "long": `{"mergeable":null` + padding, "finished": `{"mergeable":true}`} {
		upstream := func(w http.ResponseWriter, r *http.Request) {
			setFields(w, "Cache-Control: private, max-age=60", etag)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = fmt.Fprint(w, body)
		}
		setup(upstream, wholeAPI(t, func(*policy.Limits) {}), func(c *Config) { c.WebhookFresh = maxFresh }).sub(t, name, func(w *world) {
			pingAll(w.gateway)
			w.get(pull, owner)
			sent := 1
			for range 3 { // the 304 does not prolong the lifetime
				time.Sleep(6 * time.Second)
				if w.get(pull, owner); name != "finished" {
					sent++
				}
				w.want("requests upstream", w.upstreamSaw(), sent)
			}
		})
	}
}

// An upstream that permits stale use during revalidation does not prolong a lifetime that the gateway has shortened.
func TestShortenedLifetimesEndDuringRevalidation(t *testing.T) {
	catalogue, err := policy.CatalogueOf("github").WithCacheRules(map[string]policy.CacheOverride{"issues/list-for-repo": {MaxTTL: 5 * time.Second}})
	noError(t, err)
	for path, body := range map[string]string{issuesOfWidgets: "[]", "/repos/acme/widgets/pulls/7": `{"mergeable":null}`, "/repos/acme/widgets/actions/runs/7": `{"status":"queued"}`} {
		upstream := replies(body, "Cache-Control: private, max-age=60, stale-while-revalidate=600")
		setup(upstream, wholeAPI(t, unchanged), func(c *Config) { c.Catalogue = catalogue }).sub(t, path, func(w *world) {
			w.want("first", w.get(path, lines(owner)...).Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=5")
			time.Sleep(7 * time.Second)
			w.want("later", w.get(path, lines(owner)...).Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=200; stored; ttl=5")
		})
	}
}

func TestLongestLifetimeOfAnOperation(t *testing.T) {
	catalogue, err := policy.CatalogueOf("github").WithCacheRules(map[string]policy.CacheOverride{"issues/list-for-repo": {MaxTTL: 5 * time.Second, Coalesce: true}})
	noError(t, err)
	synctest.Test(t, func(t *testing.T) {
		w := newEventWorld(t, &versions{}, func(c *Config) { c.Catalogue = catalogue })
		pingAll(w.gateway)
		w.wantStatus("weir; fwd=uri-miss; fwd-status=200; stored; ttl=5", issuesOfWidgets)
		for range 2 {
			time.Sleep(5 * time.Second)
			w.wantStatus("weir; fwd=stale; fwd-status=304; stored; ttl=5", issuesOfWidgets)
		}
	})
}
