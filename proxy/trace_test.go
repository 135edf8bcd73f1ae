package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/record"
)

// recordLog collects the records of a gateway.
type recordLog struct {
	mu   sync.Mutex
	list []record.Record
}

func (o *recordLog) observe(r *record.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, *r)
}

// newest returns the records, newest first.
func (o *recordLog) newest() []record.Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := slices.Clone(o.list)
	slices.Reverse(list)
	return list
}

// stagesOf returns the stages of a record as text.
func stagesOf(r record.Record) string {
	var list []string
	for _, s := range r.Stages {
		text := s.Name
		if s.Detail != "" {
			text += "(" + s.Detail + ")"
		}
		if s.Failed {
			text += "!"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func TestRecordHasOutcomeCostAndStages(t *testing.T) {
	for _, c := range []struct {
		name     string
		before   string // path of an earlier request
		pause    time.Duration
		request  string
		outcome  string
		spent    int
		saved    bool
		stages   string
		upstream int // status of the upstream; 0 is 200
	}{
		{"miss", "", 0, "GET /repos/a/b/subscribers", "miss", 1, false, "queue attempt(200) settle", 0},
		{"hit", "GET /repos/a/b/subscribers", 0, "GET /repos/a/b/subscribers", "hit", 0, true, "", 0},
		{"hit with a validator", "GET /repos/a/b/subscribers", 0, `GET /repos/a/b/subscribers If-None-Match: "one"`, "hit", 0, false, "", 0},
		{"validated", "GET /repos/a/b/subscribers", 2 * time.Minute, "GET /repos/a/b/subscribers", "validated", 0, true, "queue attempt(304) settle", 0},
		{"PUT", "", 0, "PUT /repos/a/b/subscription", "bypass", 1, false, "queue attempt(200) settle", 0},
		{"no-store", "", 0, "GET /repos/a/b/subscribers Cache-Control: no-store", "bypass", 1, false, "queue attempt(200) settle", 0},
		{"upstream error", "", 0, "GET /repos/a/b/subscribers", "miss", 1, false, "queue attempt(500) settle", 500},
		{"rate limit status", "GET /repos/a/b/subscribers", 0, "GET /rate_limit", "own", 0, false, "", 0},
		{"preflight refusal", "", 0, "GET /search/code?q=user:x Authorization:", "own", 0, true, "", 0},
		{"unknown path of the gateway", "", 0, "GET /_weir/none", "refused", 0, false, "", 0},
		{"only-if-cached", "", 0, "GET /repos/a/b/subscribers Cache-Control: only-if-cached", "refused", 0, false, "", 0},
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			setFields(w, "Cache-Control: max-age=60", `Etag: "one"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
			} else if c.upstream != 0 {
				w.WriteHeader(c.upstream)
			}
		}).sub(t, c.name, func(w *world) {
			send := func(text string) {
				method, rest, _ := strings.Cut(text, " ")
				target, field, _ := strings.Cut(rest, " ")
				switch field {
				case "":
					w.do(method, target, nil, "Authorization: token a")
				case "Authorization:":
					w.do(method, target, nil)
				default:
					w.do(method, target, nil, "Authorization: token a", field)
				}
			}
			if c.before != "" {
				send(c.before)
			}
			time.Sleep(c.pause)
			send(c.request)
			r := w.last()
			w.want("outcome", string(r.Outcome), c.outcome)
			w.want("spent", r.Spent, c.spent)
			w.want("saved", r.Saved, c.saved)
			w.want("stages", stagesOf(r), c.stages)
		})
	}
}

// Stages show waits for a permit, for a coalesced call and for statistics.
func TestStagesShowWaits(t *testing.T) {
	setup(slowly("all"), oneSlot).run(t, func(w *world) {
		var first sync.WaitGroup
		first.Go(func() { w.get("/repos/a/b/subscribers") })
		time.Sleep(time.Millisecond)
		first.Go(func() { w.get("/repos/a/b/subscribers") })
		w.get("/repos/c/d/subscribers")
		first.Wait()
		r := w.last()
		w.want("stages", stagesOf(r), "queue(concurrency) attempt(200) settle")
		w.want("admission", r.Admission(), "waited")
		queue, attempt := r.Stages[0], r.Stages[1]
		early, late := attempt.Start < 990*time.Millisecond, attempt.Start > queue.Elapsed+time.Millisecond
		failIf(w, early || late || attempt.Elapsed != time.Second || r.Waited != queue.Elapsed, "times of the record %+v", r)
		list := w.recent()
		failIf(w, !slices.ContainsFunc(list, func(r record.Record) bool {
			return stagesOf(r) == "coalesce(stored)" && r.Outcome == "collapsed" && r.Saved
		}), "no request waited as a follower: %+v", list)
	})
}

// TestQueueStageShowsTheUseOfClients checks a request that waits for the slot of another client.
func TestQueueStageShowsTheUseOfClients(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	setup(slowly("all"), oneSlot, traced(kept), func(c *Config) {
		c.Identify = func(r *http.Request) (*caller.Identity, error) {
			return &caller.Identity{Caller: policy.Caller{
				Kind: policy.User, Account: "shared", Class: "shared", Client: r.UserAgent(),
				Clients: []policy.ClientBudget{{Client: "agent", Share: 1, Limit: 1}, {Client: "gh", Share: 1, Limit: 1}},
			}}, nil
		}
	}).run(t, func(w *world) {
		var first sync.WaitGroup
		afterAgent := func(busy, path string, fields ...string) record.Record {
			first.Go(func() { w.get(busy, "User-Agent: agent") })
			time.Sleep(time.Millisecond)
			w.get(path, append(fields, "User-Agent: gh")...)
			return w.last()
		}
		s := afterAgent("/repos/a/b/subscribers", "/repos/c/d/subscribers").Stages[0]
		first.Wait()
		w.want("reason", s.Detail, "concurrency")
		w.want("use", fmt.Sprint(s.Shared), "&{concurrency 1 [{agent 1}]}")
		span := w.span(kept, func(s tracetest.SpanStub) bool { return s.Name == record.StageQueue && len(s.Attributes) > 0 })
		w.want("attributes", fmt.Sprint(attributesOf(span)), `map[weir.budget:concurrency weir.budget.clients:["agent"] `+
			`weir.budget.limit:1 weir.budget.used:[1] weir.reason:concurrency]`)
		earlier := w.recent()[1]
		failIf(w, earlier.Stages[0].Shared != nil, "the first request did not wait, but has %+v", earlier.Stages[0].Shared)

		w.gateway.Ledger.Merge("shared", "user:1", policy.User)
		r := afterAgent("/repos/e/f/subscribers", "/repos/g/h/subscribers", "Prefer: respond-async")
		w.want("refusal", string(r.Outcome)+" "+r.Account+" "+fmt.Sprint(r.Stages[0].Shared), "refused user:1 &{concurrency 1 [{agent 1}]}")
		first.Wait()
	})
}

func TestEachPollIsAStage(t *testing.T) {
	var o recordLog
	setup(computing(2*time.Second), func(c *Config) { c.Observe = o.observe }).run(t, func(w *world) {
		w.get(contributors)
		synctest.Wait()
		background := o.list[slices.IndexFunc(o.list, func(r record.Record) bool { return r.Background })]
		w.want("stages of the background request", stagesOf(background), "poll queue attempt(202) settle poll queue attempt(200) settle")
		w.want("polls", background.Polls, 1)
		w.want("spent", background.Spent, 2)
		w.want("waited", background.Waited, 3*time.Second)
	})
}

func TestOutcomeFollowsCacheStatus(t *testing.T) {
	for _, c := range []struct {
		text string
		want record.Outcome
		record.CacheStatus
	}{
		{"weir; hit; ttl=60", record.OutcomeHit, record.CacheStatus{Hit: true, TTL: 60, HasTTL: true}},
		{"weir; hit; ttl=-3", record.OutcomeStale, record.CacheStatus{Hit: true, TTL: -3, HasTTL: true}},
		{"weir; hit; ttl=-3; detail=primary", record.OutcomeStale, record.CacheStatus{Hit: true, TTL: -3, HasTTL: true, Detail: "primary"}},
		{"weir; hit; detail=ledger", record.OutcomeOwn, record.CacheStatus{Hit: true, Detail: "ledger", Own: true}},
		{"weir; fwd=uri-miss; fwd-status=200; stored; ttl=60", record.OutcomeMiss, record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}},
		{"weir; fwd=uri-miss; fwd-status=200; stored; ttl=-1", record.OutcomeMiss, record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: -1, HasTTL: true}},
		{"weir; fwd=stale; fwd-status=304; stored; ttl=60", record.OutcomeValidated, record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304, Stored: true, TTL: 60, HasTTL: true}},
		{"weir; fwd=stale; fwd-status=500; ttl=-9; detail=stale-if-error", record.OutcomeStale, record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 500, TTL: -9, HasTTL: true, Detail: "stale-if-error"}},
		{"weir; fwd=uri-miss; collapsed; ttl=59", record.OutcomeCollapsed, record.CacheStatus{Forward: record.ForwardMiss, Collapsed: true, TTL: 59, HasTTL: true}},
		{"weir; fwd=method; fwd-status=200", record.OutcomeBypass, record.CacheStatus{Forward: record.ForwardMethod, ForwardStatus: 200}},
		{"weir; fwd=request; fwd-status=200", record.OutcomeBypass, record.CacheStatus{Forward: record.ForwardRequest, ForwardStatus: 200}},
		{"weir; fwd=request; fwd-status=200; stored; ttl=0", record.OutcomeMiss, record.CacheStatus{Forward: record.ForwardRequest, ForwardStatus: 200, Stored: true, HasTTL: true}},
		{"weir; fwd=bypass", record.OutcomeBypass, record.CacheStatus{Forward: record.ForwardBypass}},
		{"weir", record.OutcomeRefused, record.CacheStatus{}},
		{"weir; detail=inbound", record.OutcomeRefused, record.CacheStatus{Detail: "inbound"}},
	} {
		failIf(t, c.Outcome() != c.want || c.String() != c.text, "got %s %q, want %s %q", c.Outcome(), c.String(), c.want, c.text)
	}
}

// span returns the first span that matches.
func (w *world) span(kept *tracetest.InMemoryExporter, match func(tracetest.SpanStub) bool) tracetest.SpanStub {
	w.Helper()
	synctest.Wait()
	spans := kept.GetSpans()
	i := slices.IndexFunc(spans, match)
	stopIf(w, i < 0, "no matching span in %+v", spans)
	return spans[i]
}

func isServer(s tracetest.SpanStub) bool { return s.SpanKind == trace.SpanKindServer }

func attributesOf(s tracetest.SpanStub) map[string]string {
	list := map[string]string{}
	for _, a := range s.Attributes {
		list[string(a.Key)] = a.Value.String()
	}
	return list
}

func TestSpansAreCreatedOnlyIfSampled(t *testing.T) {
	const route = "GET /repos/{owner}/{repo}/subscribers"
	for want, sampler := range map[string]sdktrace.Sampler{
		"[queue " + route + " settle " + route + " " + route + "]": sdktrace.AlwaysSample(),
		"[]": sdktrace.ParentBased(sdktrace.NeverSample()),
	} {
		kept := tracetest.NewInMemoryExporter()
		setup(slowly("all"), traced(kept, sampler)).run(t, func(w *world) {
			w.get("/repos/a/b/subscribers")
			w.get("/repos/a/b/subscribers")
			r := w.last()
			var names []string
			for _, s := range kept.GetSpans() {
				names = append(names, s.Name)
			}
			w.want("spans", fmt.Sprint(names), want)
			w.want("the record has a trace ID", r.Trace != "" && r.Span != "", want != "[]")
			w.want("stages of a hit", len(r.Stages), 0)
		})
	}
}

// A background revalidation is a separate trace that links to the client's request.
func TestBackgroundRevalidationLinksToItsRequest(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	setup(responds(http.StatusOK, "Cache-Control: max-age=1, stale-while-revalidate=60"), traced(kept)).run(t, func(w *world) {
		w.get("/repos/a/b/subscribers")
		time.Sleep(2 * time.Second)
		w.want("status", w.get("/repos/a/b/subscribers").Header.Get("Cache-Status"), "weir; hit; ttl=-1")
		background := w.span(kept, func(s tracetest.SpanStub) bool { return strings.HasPrefix(s.Name, "background ") })
		first := kept.GetSpans()[0]
		began := w.span(kept, func(s tracetest.SpanStub) bool {
			return isServer(s) && s.StartTime.After(first.EndTime.Add(time.Second))
		})
		failIf(w, len(background.Links) != 1 || background.Links[0].SpanContext.SpanID() != began.SpanContext.SpanID() || background.Parent.IsValid(), "span of the background request %+v", background)
	})
}

func TestPathsInSpansHaveNoSecrets(t *testing.T) {
	for _, c := range []struct{ authorization, path, want string }{
		{"Bearer tok-owner", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/subscribers"},
		{"Bearer tok-owner", "/repos/tok-owner/widgets/subscribers", "/repos/REDACTED/widgets/subscribers"},
		{"tok-owner", "/repos/tok-owner/widgets/subscribers", "/repos/REDACTED/widgets/subscribers"},
		{"Bearer tok-owner-and-more", "/repos/tok-owner/widgets/subscribers", "/repos/REDACTED/widgets/subscribers"},
		{"", "/repos/ghp_abc/widgets/subscribers", "/repos/REDACTED/widgets/subscribers"},
		{"", "/repos/a-github_pat_11/weir_key/subscribers", "/repos/REDACTED/REDACTED/subscribers"},
		{"", "/repos/gh__a/x_ghs_y/subscribers", "/repos/gh__a/REDACTED/subscribers"},
		{"", "/repos/github_pa/weir/subscribers", "/repos/github_pa/weir/subscribers"},
		{"", "/repos/acme/" + strings.Repeat("x", 300) + "/subscribers", "/repos/acme/REDACTED/subscribers"},
		{"Bearer tok-owner", "/made/up/12", "/…"},
	} {
		m, err := policy.Embedded().Classify(http.MethodGet, c.path, "")
		noError(t, err)
		ex := &exchange{question: &question{match: m}, record: &record.Record{Request: record.Request{Route: m.Operation.Path}}, in: &http.Request{Header: http.Header{"Authorization": {c.authorization}}}}
		got := ex.maskedPath()
		failIf(t, m.Operation.Known() != !strings.HasPrefix(c.path, "/made") || got != c.want, "%+v: got %s", c, got)
	}
}

func TestFollowerLinksToTheLeaderOnAnotherReplica(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	setup(slowly("all"), traced(kept)).run(t, func(w *world) {
		list, _ := w.replicas(2)
		var first sync.WaitGroup
		first.Go(func() { sendTo(list[0], watchers) })
		time.Sleep(10 * time.Millisecond)
		sendTo(list[1], watchers)
		first.Wait()
		r, leader := w.recent()[0], w.recent()[1].Span // the follower ends after the leader
		w.want("stages", stagesOf(r), "coalesce(another replica)")
		w.want("outcome", r.Outcome, record.OutcomeCollapsed)
		w.want("waited", r.Waited, r.Stages[0].Elapsed)
		for _, s := range kept.GetSpans() {
			failIf(w, s.Name == record.StageCoalesce && (len(s.Links) != 1 || s.Links[0].SpanContext.SpanID().String() != leader), "%+v, want a link to %s", s, leader)
		}
	})
}

func TestSpanHasTheClientAddressFromATrustedProxy(t *testing.T) {
	for trusted, want := range map[string]string{"192.0.2.0/24": "203.0.113.9 https 443", "198.51.100.0/24": "192.0.2.1 http 80"} {
		kept := tracetest.NewInMemoryExporter()
		setup(nothing, traced(kept), trusting(trusted)).run(t, func(w *world) {
			sendTo(w.gateway, "/_weir/none", "X-Forwarded-For", "203.0.113.9", "X-Forwarded-Proto", "https")
			a := attributesOf(kept.GetSpans()[0])
			w.want("sender", a["client.address"]+" "+a["url.scheme"]+" "+a["server.port"], want)
		})
	}
}

func TestTraceContextIsSentUpstreamOnDemandOnly(t *testing.T) {
	const traceID, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for name, c := range map[string]struct {
		propagate bool
		sampler   sdktrace.Sampler // nil without tracing
		want      string           // the upstream's traceparent, with SPAN for the span of the attempt
	}{
		"off":                       {},
		"off, sampled":              {sampler: sdktrace.AlwaysSample()},
		"upstream, sampled":         {true, sdktrace.AlwaysSample(), "00-" + traceID + "-SPAN-01"},
		"upstream, without tracing": {true, nil, "00-" + traceID + "-" + parent + "-01"},
	} {
		kept := tracetest.NewInMemoryExporter()
		setup(nothing, func(config *Config) {
			if config.PropagateTrace = c.propagate; c.sampler != nil {
				traced(kept, c.sampler)(config)
			}
		}).sub(t, name, func(w *world) {
			for _, path := range []string{"/repos/acme/widgets/subscribers", "/made/up"} {
				kept.Reset()
				w.get(path, "Traceparent: 00-"+traceID+"-"+parent+"-01", "Tracestate: a=1", "Baggage: user=1", "B3: 1-2-1", "Uber-Trace-Id: 1:2:0:1")
				want, state := c.want, ""
				if c.propagate {
					state = "a=1"
				}
				if strings.Contains(want, "SPAN") {
					attempt := w.span(kept, func(s tracetest.SpanStub) bool { return s.SpanKind == trace.SpanKindClient })
					want = strings.Replace(want, "SPAN", attempt.SpanContext.SpanID().String(), 1)
				}
				seen := w.lastSeen().Header
				w.want("traceparent of "+path, seen.Get("Traceparent"), want)
				w.want("tracestate of "+path, seen.Get("Tracestate"), state)
				for _, never := range []string{"Baggage", "B3", "Uber-Trace-Id"} {
					w.want(never+" of "+path, seen.Get(never), "")
				}
			}
			w.get("/users/other") // without a context of the client
			got := w.lastSeen().Header.Get("Traceparent")
			failIf(w, (got != "") != (c.propagate && c.sampler != nil), "traceparent of a request without one: %q", got)
		})
	}
}

const upstreamTrace = "Traceresponse: 00-11111111111111111111111111111111-1111111111111111-01"

// sampled samples each request whose client does not forbid it.
var sampled = sdktrace.ParentBased(sdktrace.AlwaysSample())

func TestResponseNamesTheTraceOfItsOwnRequest(t *testing.T) {
	kept := tracetest.NewInMemoryExporter()
	setup(func(w http.ResponseWriter, r *http.Request) {
		setFields(w, upstreamTrace, "Cache-Control: max-age=60", `Etag: "one"`)
		switch {
		case strings.HasSuffix(r.URL.Path, "/limited"):
			responds(http.StatusTooManyRequests, "Retry-After: 60")(w, r)
		case r.Header.Get("If-None-Match") != "":
			w.WriteHeader(http.StatusNotModified)
		}
	}, traced(kept, sampled)).run(t, func(w *world) {
		const subscribers, token = "/repos/a/b/subscribers", "Authorization: Bearer a"
		for _, c := range []struct {
			name, path string
			pause      time.Duration
			cache      string // part of Cache-Status
		}{
			{"miss", subscribers, 0, "stored"},
			{"response of the ledger", "/rate_limit", 0, "detail=ledger"},
			{"hit", subscribers, 0, "hit"},
			{"validated", subscribers, 2 * time.Minute, "fwd=stale"},
			{"unknown operation", "/made/up", 0, "stored"},
			{"hit of an unknown operation", "/made/up", 0, "hit"},
			{"preflight error", "/search/code", 0, "detail="},
			{"limit error", "/repos/a/b/limited", 0, "fwd="},
			{"refused by a limit", "/repos/a/b/forks", 0, "detail=cooldown"},
		} {
			time.Sleep(c.pause)
			kept.Reset()
			const traceID, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
			r := w.get(c.path, token, "Traceparent: 00-"+traceID+"-"+parent+"-01", "Prefer: wait=0")
			got := r.Header.Get("Cache-Status")
			failIf(w, !strings.Contains(got, c.cache), "%s: Cache-Status %q, want %q", c.name, got, c.cache)
			server := w.span(kept, isServer)
			w.want(c.name+": parent of the span", server.Parent.SpanID().String(), parent)
			want := []string{"00-" + traceID + "-" + server.SpanContext.SpanID().String() + "-01"}
			w.want(c.name+": traceresponse", fmt.Sprint(r.Header["Traceresponse"]), fmt.Sprint(want))
		}
	})
}

func TestResponseNamesNoTrace(t *testing.T) {
	const unsampled = "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	on, untraced := func(*Config) {}, func(c *Config) { c.Tracer = nil }
	for _, c := range []struct {
		name, path, field string
		option            option
		status            int
	}{
		{"without tracing", "/users/a", "Accept: */*", untraced, http.StatusOK},
		{"without tracing, unknown operation", "/made/up", "Accept: */*", untraced, http.StatusOK},
		{"not sampled by the client", "/users/a", unsampled, on, http.StatusOK},
		{"unauthenticated", "/users/a", "Accept: */*", func(c *Config) {
			c.Identify = func(*http.Request) (*caller.Identity, error) { return nil, caller.ErrUnauthenticated }
		}, http.StatusUnauthorized},
		{"outside of the scope", "/users/a", "Accept: */*", scoped(policy.Scope{Operations: []string{"search/*"}}), http.StatusForbidden},
		{"invalid tag", "/users/a", "Weir-Tag: a b", on, http.StatusBadRequest},
		{"path of the gateway", "/_weir/none", "Accept: */*", on, http.StatusNotFound},
	} {
		setup(responds(http.StatusOK, upstreamTrace), traced(tracetest.NewInMemoryExporter(), sampled), c.option).sub(t, c.name, func(w *world) {
			r := w.wantReply("", w.get(c.path, "Authorization: Bearer a", c.field), c.status)
			w.want("traceresponse", len(r.Header["Traceresponse"]), 0)
		})
	}
}
