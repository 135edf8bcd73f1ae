package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// rates returns the rate fields of a response.
func rates(limit, used int, reset time.Duration) []string {
	return []string{
		fmt.Sprint("X-RateLimit-Limit: ", limit), fmt.Sprint("X-RateLimit-Used: ", used), fmt.Sprint("X-RateLimit-Remaining: ", limit-used),
		fmt.Sprint("X-RateLimit-Reset: ", time.Now().Add(reset).Unix()),
	}
}

// TestRateHeadersOfARefusedCredentialSayNothing covers a 401 that reports the budget of the address.
func TestRateHeadersOfARefusedCredentialSayNothing(t *testing.T) {
	for _, request := range []string{reads, queries} {
		up := &moody{}
		setup(up.ServeHTTP, asGitHub).sub(t, request, func(w *world) {
			w.send(request, 1)
			up.next = []answer{{401, rates(60, 60, 20*time.Minute), problem("Bad credentials", docs)}}
			r := w.send(request, 2)
			w.want("status", r.StatusCode, 401)
			if limit := r.Header.Get("X-RateLimit-Limit"); limit == "60" {
				w.Error("the client gets the budget of the address")
			}
			for i := range 5 {
				w.want("status of the next request", w.send(request, 3+i).StatusCode, 200)
			}
		})
	}
}

func TestA401WithoutACredentialReportsTheBudgetOfTheAddress(t *testing.T) {
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		w.get("/repos/acme/tools")
		up.next = []answer{{401, rates(5000, 5000, time.Hour), problem("Requires authentication", docs)}}
		w.want("status", w.get("/user", "Prefer: wait=0").StatusCode, 401)
		w.want("Cache-Status", w.get("/repos/acme/widgets", "Prefer: wait=0").Header.Get("Cache-Status"), "weir; detail=primary")
	})
}

// TestOneOutlierDoesNotCloseTheAccount covers the report of another budget in a success.
func TestOneOutlierDoesNotCloseTheAccount(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit, used int
		reset       time.Duration
	}{
		{"the budget of the address", 60, 60, 20 * time.Minute},
		{"a smaller budget", 1000, 1000, 40 * time.Minute},
		{"a larger budget", 15000, 15000, 10 * time.Minute},
		{"another limit only", 60, 60, time.Hour},
		{"a later reset", 60, 60, 2 * time.Hour},
	} {
		up := &moody{}
		setup(up.ServeHTTP, asGitHub).sub(t, c.name, func(w *world) {
			for i := range 3 {
				w.send(reads, i)
			}
			up.next = []answer{{200, rates(c.limit, c.used, c.reset), "[]"}}
			w.send(reads, 100)
			for i := range 10 {
				w.want("status", w.send(reads, 101+i).StatusCode, 200)
			}
		})
	}
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).sub(t, "the probe agrees", func(w *world) {
		w.send(reads, 0)
		up.next = []answer{{200, rates(60, 60, 20*time.Minute), "[]"}, {200, rates(60, 60, 20*time.Minute), "[]"}}
		w.send(reads, 1)
		w.send(reads, 2)
		w.want("Cache-Status", w.send(reads, 3).Header.Get("Cache-Status"), "weir; detail=primary")
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

func TestTheAccessLogNamesALimitError(t *testing.T) {
	for _, level := range []AccessLog{AccessLogAll, AccessLogErrors} {
		var log bytes.Buffer
		up := &moody{next: []answer{{200, nil, failedQuery(`"type":"RATE_LIMIT","message":"` + alreadyText + `"`)}}}
		setup(up.ServeHTTP, asGitHub, logTo(&log), func(c *Config) { c.AccessLog = level }).run(t, func(w *world) {
			w.send(queries, 1)
			if line := log.String(); !strings.Contains(line, "limited=primary") || !strings.Contains(line, "limit_answer=graphql-primary-type") {
				w.Errorf("access log %s: %s", level, line)
			}
			stages := w.last().Stages
			w.want("limit of the attempt", stages[1].Limited, limits.PrimaryLimit)
		})
	}
}

// TestSafeRequestIsNotRepeatedWithoutAWait covers limit errors after which admission would grant the repetition at once.
func TestSafeRequestIsNotRepeatedWithoutAWait(t *testing.T) {
	for name, a := range map[string]answer{
		"content":          {422, nil, problem(quicklyText, "")},
		"another resource": {403, []string{"X-RateLimit-Resource: search"}, problem(primaryText, "")},
	} {
		up := &moody{next: []answer{a, a, a, a}}
		setup(up.ServeHTTP, asGitHub).sub(t, name, func(w *world) {
			w.want("status", w.get("/repos/acme/widgets", "Authorization: Bearer a", "Prefer: wait=300").StatusCode, a.status)
			w.want("requests upstream", w.upstreamSaw(), 1)
		})
	}
}

// TestLimitErrorsAfterALongBodyAreRecognized covers errors behind more data than a peek reads.
func TestLimitErrorsAfterALongBodyAreRecognized(t *testing.T) {
	data := `{"data":{"nodes":[` + strings.Repeat(`{"id":"R_1","description":"a"},`, 2000) + `null]`
	for _, c := range []struct {
		name, end string
		want      limits.LimitKind
		short     bool // little more than a peek
	}{
		{"RATE_LIMITED", `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`, limits.PrimaryLimit, false},
		{"RATE_LIMITED, shorter", `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`, limits.PrimaryLimit, true},
		{"secondary, blanks, extensions", "},\n \"errors\" : [{\"message\":\"" + secondaryText + "\"}], \"extensions\":{\"errors\":[]}}\n", limits.SecondaryLimit, false},
		{"another error", `},"errors":[{"type":"NOT_FOUND","message":"x"}]}`, limits.NotLimited, false},
		{"no error", `}}`, limits.NotLimited, false},
		{"errors in data", `,"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}}`, limits.NotLimited, false},
		{"errors in a text", `,"a":"},\"errors\":[{\"type\":\"RATE_LIMITED\"}]}"}}`, limits.NotLimited, false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			data := data
			if c.short {
				_, rest, _ := strings.Cut(data[len(data)-9<<10:], "},")
				data = `{"data":{"nodes":[` + rest
			}
			up := &moody{next: []answer{{200, nil, data + c.end}}}
			w := newWorld(t, up.ServeHTTP, asGitHub)
			w.want("body", w.send(queries, 1).body, data+c.end)
			w.want("limit in the record", w.last().Limited, c.want)
			w.send(queries, 2)
			w.want("next request is sent", w.upstreamSaw() == 2, c.want == limits.NotLimited)
		})
	}
	bubble(t, "several credentials", func(t *testing.T) {
		body := data + `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`
		up := &moody{next: []answer{{200, nil, body}}}
		w := newWorld(t, up.ServeHTTP, asGitHub, func(c *Config) {
			c.Identify = func(*http.Request) (Identity, error) { return pooled("a", "b"), nil }
		})
		w.want("body", w.send(queries, 1).body, body)
		w.want("limit in the record", w.last().Limited, limits.PrimaryLimit)
	})
	up := &moody{delay: time.Second, next: slices.Repeat([]answer{{200, nil, data + `},"errors":[{"type":"RATE_LIMIT","message":"` + alreadyText + `"}]}`}}, 10)}
	setup(up.ServeHTTP, asGitHub).sub(t, "identical queries", func(w *world) {
		together(10, func(int) { w.ask(`{"query":"query{viewer{login}}"}`, "Authorization: Bearer a") })
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func FuzzRecognizeLimit(f *testing.F) {
	for _, c := range judgedAnswers {
		f.Add(c.answer.status, c.answer.body, c.request == queries)
	}
	f.Fuzz(func(t *testing.T, status int, body string, graphQL bool) {
		h := http.Header{"Content-Type": {"application/json"}}
		row, _ := policy.RecognizeLimit(policy.UpstreamAnswer{Status: status, Header: h, Body: []byte(body), GraphQL: graphQL})
		if row != nil && (status >= 500 || status < 200) {
			t.Errorf("status %d is a limit error", status)
		}
	})
}
