package service

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
)

// TestReplicaLagIsThatOfAReplica sends random traffic, and checks that each read shows all writes but those of the last
// second.
func TestReplicaLagIsThatOfAReplica(t *testing.T) {
	const lag = time.Second
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 3))
		s := newTester(t, Config{NoRateLimits: true, Quirks: quirk.Set{ReplicaLag: quirk.Duration(lag)}})
		written, targets, stale := map[int64]time.Time{}, []string{"/repos/acme/widgets/issues"}, 0
		operations := slices.DeleteFunc(s.Operations(), func(op *Operation) bool {
			return !strings.HasPrefix(op.Path, "/repos/{owner}/{repo}/issues") && !strings.HasPrefix(op.Path, "/repos/{owner}/{repo}/labels")
		})
		read := func(target string) {
			w := s.Do("owner", "GET "+target)
			revision, err := strconv.ParseInt(w.Header().Get(RevisionHeader), 10, 64)
			_, marked := testservers.Revision(w.Body.Bytes())
			failIf(t, err != nil || w.Body.Len() > 0 && !marked, "GET %s: status %d without a revision: %v", target, w.Code, err)
			for _, n := range s.changedSince(s.NewRequest("owner", "GET "+target), revision) {
				stale++
				failIf(t, time.Since(written[n]) >= lag, "GET %s: status %d without write %d, %v later", target, w.Code, n, time.Since(written[n]))
			}
		}
		for range 1000 {
			op := operations[random.IntN(len(operations))]
			method, target, body := s.Sample(op.ID, random)
			if method == http.MethodGet && len(targets) < 40 {
				targets = append(targets, target)
			} else if method != http.MethodGet {
				revision, _ := strconv.ParseInt(s.Do("owner", method+" "+target+" "+string(body)).Header().Get(RevisionHeader), 10, 64)
				written[revision] = time.Now()
			}
			for range 5 {
				time.Sleep(time.Duration(random.Int64N(int64(lag / 4))))
				read(targets[random.IntN(len(targets))])
			}
		}
		failIf(t, stale < 100, "only %d reads were stale", stale)
	})
}

// TestLaggingNotModifiedCostsNothing checks that a 304 for an old state is charged as a 304.
func TestLaggingNotModifiedCostsNothing(t *testing.T) {
	s := newTester(t, Config{Quirks: quirk.Set{ReplicaLag: quirk.Duration(time.Hour)}})
	const issue = "/repos/acme/widgets/issues/3"
	tag := s.Do("owner", "GET "+issue).Header().Get("Etag")
	s.Call(t, "owner", "PATCH "+issue+` {"title":"new"}`, 200, "X-Ratelimit-Used: 2")
	s.Call(t, "owner\nIf-None-Match: "+tag, "GET "+issue, 304, "X-Ratelimit-Used: 2\nEtag: "+tag)
	s.Call(t, "owner", "GET "+issue, 200, "X-Ratelimit-Used: 3\nEtag: "+tag)
}

// allQuirks has all quirks, each so rare that most requests pass.
const allQuirks = `{"slow_body":"1ms","truncate_every":17,"limit_answers":true,"episode_every":13,"odd_rate_every":11,"wrong_rate_on_401":0.5,
	"resource_limits_exceeded":0.1,"link_missing_in_304":0.5,"etag_missing_in_304":0.5,"etag_other_strength":0.5,"error_validators":0.5,
	"replica_lag":"1s","unfinished_for":"1s","token_unknown_for":"1s","permission_snapshot":["GET /orgs/*/teams"],
	"old_names":{"acme/old":"acme/widgets"},"ended_versions":["2022-11-28"],"goaway_every":19,"refused_stream":0.02,"reset_after_processing":0.02}`

// TestAllQuirksTogether sends parallel random traffic. Most requests must succeed.
func TestAllQuirksTogether(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		synctest.Test(t, func(t *testing.T) {
			s := newTester(t, Config{NoRateLimits: true, Quirks: testservers.Must(quirk.Parse([]byte(allQuirks), quirk.Set{}))})
			l := testservers.ListenPipe("api.test:443")
			server := &http.Server{Handler: s, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(s.Listener(l.TLS(protocol))) })
			transport := &http.Transport{DialContext: l.Dial, TLSClientConfig: testservers.PipeClientTLS(), ForceAttemptHTTP2: protocol == "h2"}
			client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			var answered, failed atomic.Int32
			var clients sync.WaitGroup
			operations := s.Operations()
			for seed := range uint64(8) {
				clients.Go(func() {
					random := rand.New(rand.NewPCG(seed, seed))
					for range 100 {
						method, target, body := s.Sample(operations[random.IntN(len(operations))].ID, random)
						r := testservers.Must(http.NewRequestWithContext(t.Context(), method, "https://api.test"+target, bytes.NewReader(body)))
						r.Header.Set("Authorization", "Bearer tok-owner")
						resp, err := client.Do(r)
						if err == nil {
							_, err = io.Copy(io.Discard, resp.Body)
							_ = resp.Body.Close()
						}
						if answered.Add(1); err != nil {
							failed.Add(1)
						}
					}
				})
			}
			clients.Wait()
			n := failed.Load()
			failIf(t, n == 0 || n > answered.Load()/4, "%s: %d of %d requests failed", protocol, n, answered.Load())
			transport.CloseIdleConnections()
			_ = server.Close()
			serving.Wait()
			time.Sleep(time.Minute) // both sides of a pipe may wait to end TLS
		})
	}
}

// TestReadsLagBehindEvents checks that an event is invisible for the time of the lag.
func TestReadsLagBehindEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTester(t, Config{Quirks: quirk.Set{ReplicaLag: quirk.Duration(time.Second)}})
		for target, event := range map[string]string{
			"/repos/acme/widgets/commits?per_page=1": `{"event":"push","repository":"acme/widgets","commits":3}`,
			"/user/subscriptions":                    `{"event":"public","repository":"acme/secret"}`,
		} {
			s.Call(t, "owner", "PUT /repos/acme/secret/subscription {\"subscribed\":true}", 200, "")
			time.Sleep(time.Second)
			before := s.Do("owner", "GET "+target).Header().Get("Etag")
			s.Call(t, "", "POST /_service/events "+event, 202, "")
			s.Call(t, "owner", "GET "+target, 200, "Etag: "+before)
			time.Sleep(time.Second)
			failIf(t, s.Do("owner", "GET "+target).Header().Get("Etag") == before, "GET %s does not show the event after the lag", target)
		}
	})
}

// TestMintedTokensBelongToTheInstallation checks a new token at the beginning and the end of its hour. With a quirk, it is
// unknown at first.
func TestMintedTokensBelongToTheInstallation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTester(t, Config{Quirks: quirk.Set{TokenUnknownFor: quirk.Duration(time.Second)}})
		var minted struct{ Token string }
		noError(t, json.Unmarshal(s.Do("jwt", "POST /app/installations/1/access_tokens {}").Body.Bytes(), &minted))
		for _, c := range []struct {
			after    time.Duration
			statuses []int
		}{{0, []int{401, 403, 404}}, {time.Second, []int{200}}, {time.Hour - 2*time.Second, []int{200}}, {time.Second, []int{401}}} {
			time.Sleep(c.after)
			w := s.Do("\nAuthorization: Bearer "+minted.Token, "GET /repos/acme/secret")
			failIf(t, !slices.Contains(c.statuses, w.Code), "got %d, want one of %v", w.Code, c.statuses)
		}
	})
}

// TestResponsesOfQuirksCount checks that the responses which only the API can give count, and report the limits.
func TestResponsesOfQuirksCount(t *testing.T) {
	s := newTester(t, Config{Quirks: testservers.Must(quirk.Parse([]byte(`{"old_names":{"acme/old":"acme/widgets"},"ended_versions":["2022-11-28"],
		"limit_answers":["brief_content_422","brief_graphql_403"],"episode_every":1}`), quirk.Set{}))})
	s.Call(t, "owner", "GET /repos/acme/old", 301, "X-Ratelimit-Used: 1")
	s.Call(t, "owner", "PATCH /repos/acme/old {}", 307, "X-Ratelimit-Used: 2")
	s.Call(t, "owner", "POST /repos/acme/widgets/issues {}", 422, "X-Ratelimit-Used: 3")
	s.Call(t, "owner", "POST /graphql {}", 403, "X-Ratelimit-Used:")
	s.Call(t, "owner\nX-Github-Api-Version: 2022-11-28", "GET /user", 400, "X-Ratelimit-Used:")
	s.Call(t, "owner", "GET /user", 200, "X-Ratelimit-Used: 4")
	got := s.Violations().Highest["content:1m0s"].Sum
	failIf(t, got != 1, "got %d content creations, want that of the episode", got)
}
