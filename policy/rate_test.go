package policy

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestReadRateParsesRateHeaders(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	header := func(fields ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(fields); i += 2 {
			h.Add(fields[i], fields[i+1])
		}
		return h
	}
	for _, c := range []struct {
		name string
		h    http.Header
		want Rate
		ok   bool
	}{
		{"all headers", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Remaining", "27",
			"X-RateLimit-Reset", "1000060", "X-RateLimit-Resource", "search"), Rate{Limit: 30, Used: 3, Reset: now.Add(time.Minute), Resource: "search"}, true},
		{"used from remaining", header("X-RateLimit-Limit", "30", "X-RateLimit-Remaining", "20", "X-RateLimit-Reset",
			"1000060"), Rate{Limit: 30, Used: 10, Reset: now.Add(time.Minute)}, true},
		{"with the upstream's clock", header("Date", now.Add(-time.Hour).UTC().Format(http.TimeFormat),
			"X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1000060"), Rate{Limit: 30, Used: 3, Reset: now.Add(time.Minute), Date: now.Add(-time.Hour)}, true},
		{"reset beyond the year 2255", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Reset",
			"9000000001"), Rate{Invalid: true}, false},
		{"no reset", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3"), Rate{Invalid: true}, false},
		{"not a number", header("X-RateLimit-Limit", "many", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1000060"),
			Rate{Invalid: true}, false},
		{"negative", header("X-RateLimit-Limit", "-1", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1000060"),
			Rate{Invalid: true}, false},
		{"used and remaining contradict each other", header("X-RateLimit-Limit", "5000", "X-RateLimit-Used", "1000000", "X-RateLimit-Remaining", "4990", "X-RateLimit-Reset",
			"1000060"), Rate{Invalid: true}, false},
		{"used beyond the limit", header("X-RateLimit-Limit", "5000", "X-RateLimit-Used", "5003", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset",
			"1000060"), Rate{Limit: 5000, Used: 5003, Reset: now.Add(time.Minute)}, true},
		{"a clock that is days ahead", header("Date", now.Add(48*time.Hour).UTC().Format(http.TimeFormat),
			"X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1172860"), Rate{Invalid: true}, false},
		{"repeated", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1000060"),
			Rate{Limit: 30, Used: 3, Reset: now.Add(time.Minute)}, true},
		{"repeated with another use", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Used", "30", "X-RateLimit-Reset", "1000060"),
			Rate{Invalid: true}, false},
		{"repeated with another reset", header("X-RateLimit-Limit", "30", "X-RateLimit-Used", "3", "X-RateLimit-Reset", "1000060", "X-RateLimit-Reset", "1000030"),
			Rate{Invalid: true}, false},
		{"no headers", nil, Rate{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := ReadRate(c.h, now)
			if !got.Reset.Equal(c.want.Reset) || !got.Date.Equal(c.want.Date) || got.Limit != c.want.Limit || got.Used != c.want.Used || got.Resource != c.want.Resource || got.Invalid != c.want.Invalid || ok != c.ok {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestReadLimitErrorDistinguishesPrimaryAndSecondary(t *testing.T) {
	for _, c := range []struct {
		name, body, remaining, retry string
		status                       int
		want                         LimitKind
	}{
		{"primary by text", `{"message":"API rate limit exceeded for user ID 7."}`, "", "", 403, LimitPrimary},
		{"primary by remaining 0", `{"message":"Forbidden"}`, "0", "", 429, LimitPrimary},
		{"secondary with remaining 0", `{"message":"You have exceeded a secondary rate limit."}`, "0", "", 403, LimitSecondary},
		{"secondary by documentation URL", `{"message":"Slow down","documentation_url":"https://docs/overview#secondary-rate-limits"}`, "0", "", 403, LimitSecondary},
		{"secondary by older text", `{"message":"You have triggered an abuse detection mechanism."}`, "10", "", 403, LimitSecondary},
		{"secondary by text of content creation", `{"message":"You have been temporarily blocked from content creation."}`, "10", "", 403, LimitSecondary},
		{"secondary by retry-after", `{"message":"Forbidden"}`, "10", "30", 403, LimitSecondary},
		{"429 without body and headers", ``, "", "", 429, LimitSecondary},
		{"403 without limit", `{"message":"Resource not accessible"}`, "10", "", 403, NotLimited},
		{"body cut off", `{"message":"You have exceeded a secondary rate limit. Plea`, "0", "", 403, LimitSecondary},
		{"GraphQL primary", `{"data":null,"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded for user ID 7."}]}`, "0", "", 200, LimitPrimary},
		{"GraphQL secondary", `{"errors":[{"type":"RATE_LIMITED","message":"You have exceeded a secondary rate limit."}]}`, "10", "", 200, LimitSecondary},
		{"RATE_LIMITED in GraphQL data", `{"data":{"type":"RATE_LIMITED"},"errors":[{"type":"NOT_FOUND"}]}`, "0", "", 200, NotLimited},
		{"limit text in a 200", `{"message":"secondary rate limit"}`, "0", "1", 200, NotLimited},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			if c.remaining != "" {
				h.Set("X-RateLimit-Remaining", c.remaining)
			}
			if c.retry != "" {
				h.Set("Retry-After", c.retry)
			}
			a := UpstreamAnswer{Status: c.status, Header: h, Body: []byte(c.body), GraphQL: strings.Contains(c.body, "errors")}
			got := ReadLimitError(a).Kind
			failIf(t, got != c.want, "got %v, want %v", got, c.want)
		})
	}
}

func TestReadGraphQLCostOfAGraphQLCall(t *testing.T) {
	for body, want := range map[string]struct {
		cost     int
		executed bool
	}{
		`{"data":{"viewer":null,"rateLimit":{"cost":7,"used":20}}}`:                                    {7, true},
		`{"data":{"rateLimit":{"cost":7}},"errors":[{"type":"NOT_FOUND"}]}`:                            {7, true},
		`{"data":{"viewer":{"login":"a"}}}`:                                                            {0, true},
		`{"data":{"rateLimit":{"cost":-7}}}`:                                                           {0, true},
		`{"data":null,"errors":[{"type":"INVALID"}]}`:                                                  {0, false},
		`{"errors":[{"message":"bad"}]}`:                                                               {0, false},
		`{"data":{"rateLimit":{"cost":7},"nodes":[` + strings.Repeat(`{"login":"a"},`, 600) + `trunca`: {0, true},
		`{"data":{"rateLimit":{"cost":"many"}}}`:                                                       {0, true},
	} {
		cost, executed, _ := ReadGraphQLCost([]byte(body))
		failIf(t, cost != want.cost || executed != want.executed, "%.80s: got %d, %v; want %d, %v", body, cost, executed, want.cost, want.executed)
	}
}

func TestReadRetryAfterParsesSecondsAndDates(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for value, want := range map[string]time.Duration{
		"": 0, "9000000000": time.Hour, "9223372037": time.Hour, "99999999999999999999": time.Hour,
		"30":  30 * time.Second,
		"-30": 0,
		"now": 0,
		now.Add(time.Minute).UTC().Format(http.TimeFormat):  time.Minute,
		now.Add(-time.Minute).UTC().Format(http.TimeFormat): 0,
		"30, 120": 2 * time.Minute, "90.5": 91 * time.Second, "90.0": 90 * time.Second, ".5": 0, "1.x": 0, "120, soon": 2 * time.Minute, "3600.5": time.Hour,
	} {
		got, _ := ReadRetryAfter(http.Header{"Retry-After": {value}}, now)
		failIf(t, got != want, "%q: got %v, want %v", value, got, want)
	}
	repeated := []string{"30", now.Add(time.Minute).UTC().Format(http.TimeFormat), "now", "10"}
	if got, v := ReadRetryAfter(http.Header{"Retry-After": repeated}, now); got != time.Minute || v != InRange {
		t.Errorf("%q: got %v, %v, want the longest", repeated, got, v)
	}
}
