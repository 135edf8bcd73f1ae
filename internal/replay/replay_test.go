package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/caller"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

// configuration returns the configuration of the tests: two clients with separate accounts.
func configuration(t *testing.T) Config {
	t.Helper()
	upstream := testservers.Must(url.Parse("https://api.example.com"))
	dialect := testservers.Must(policy.LoadDialect("service"))
	return Config{
		Upstream: upstream, Rules: limits.Rules{Limits: policy.DefaultLimits()}, Catalogue: policy.Embedded(), Dialect: dialect,
		Wait: 10 * time.Second, Statistics: proxy.Statistics{First: time.Second, Factor: 2, Max: 15 * time.Second, Budget: 5 * time.Minute},
		CacheBytes: 1 << 20,
		Identify: func(r *Request) (*caller.Identity, bool) {
			return &caller.Identity{Caller: policy.Caller{Kind: policy.User, Account: r.Client, Client: r.Client, Class: r.Client}}, r.Client != "stranger"
		},
	}
}

// get returns a request of the client a, at a time in seconds.
func get(seconds float64, path string, size int64) Request {
	return Request{
		Start: noon.Add(time.Duration(seconds * float64(time.Second))), Method: http.MethodGet, URL: target(path), Client: "a", Status: 200, Bytes: size,
		Latency: 100 * time.Millisecond,
	}
}

// write sets a subscription.
func write(seconds float64) Request {
	return with(get(seconds, "/repos/acme/widgets/subscription", 9), func(r *Request) { r.Method = http.MethodPut })
}

func with(r Request, change func(*Request)) Request {
	change(&r)
	return r
}

func sequence(list []Request) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func run(t *testing.T, c Config, list ...Request) *Report {
	t.Helper()
	return testservers.Must(Run(t.Context(), c, sequence(list)))
}

const (
	members    = "/orgs/acme/members"
	goTemplate = "/gitignore/templates/Go"
)

func TestOutcomesFollowTheLog(t *testing.T) {
	other := func(r *Request) { r.Client = "b" }
	for _, c := range []struct {
		name   string
		change func(*Config)
		log    []Request
		want   string // hits, collapsed, validated, forwarded, refused, own, spent, without
	}{
		{"a fresh response is a hit", nil, []Request{get(0, members, 9), get(30, members, 9)}, "1 0 0 1 0 0 1 2"},
		{"a stale response is validated", nil, []Request{get(0, members, 9), get(90, members, 9)}, "0 0 1 1 0 0 1 2"},
		{"another size is a change", nil, []Request{get(0, members, 9), get(90, members, 8)}, "0 0 0 2 0 0 2 2"},
		{"another query is another question", nil, []Request{get(0, members, 9), get(1, members+"?page=2", 9)}, "0 0 0 2 0 0 2 2"},
		{"simultaneous questions collapse", nil, []Request{get(0, members, 9), get(0.05, members, 9)}, "0 1 0 1 0 0 1 2"},
		{"responses are private", nil, []Request{get(0, members, 9), with(get(1, members, 9), other)}, "0 0 0 2 0 0 2 2"},
		{"reference data is shared", nil, []Request{get(0, goTemplate, 9), with(get(1, goTemplate, 9), other)}, "1 0 0 1 0 0 1 2"},
		{"a write makes responses stale", nil, []Request{
			get(0, "/repos/acme/widgets/subscription", -1),
			write(1),
			get(2, "/repos/acme/widgets/subscription", -1),
		}, "0 0 0 3 0 0 3 3"},
		{"a webhook makes changed responses stale", func(c *Config) { c.Webhooks = true },
			[]Request{get(0, members, 9), get(10, members, 8)}, "0 0 0 2 0 0 2 2"},
		{"without webhooks a fresh response stays", nil, []Request{get(0, members, 9), get(10, members, 8)}, "1 0 0 1 0 0 1 2"},
		{"statistics are polled", nil, []Request{get(0, "/repos/acme/widgets/stats/contributors", 9)}, "0 1 0 0 0 0 3 1"},
		{"the rate limit status is free", nil, []Request{get(0, "/rate_limit", 9)}, "0 0 0 0 0 1 0 0"},
		{"a 304 is free without Weir, too", nil, []Request{get(0, members, 9), with(get(1, members, 0), func(r *Request) { r.Status = 304 })}, "1 0 0 1 0 0 1 1"},
		{"a search is not fresh", nil, []Request{get(0, "/search/commits?q=gear", 9), get(1, "/search/commits?q=gear", 9)}, "0 0 1 1 0 0 1 2"},
		{"a lower limit refuses", func(c *Config) { c.Rules.Primary.User = 1 },
			[]Request{get(0, members, 9), get(1, members+"?page=2", 9)}, "0 0 0 1 1 0 1 2"},
		{"writes beyond the client's writes are refused", func(c *Config) {
			c.Rules.Writes = map[string]policy.ClientWrites{"a": {Client: policy.WriteLimits{PerMinute: 1}}}
		},
			[]Request{write(0), write(1)}, "0 0 0 1 1 0 1 2"},
		{"no limit refuses nothing", func(c *Config) { c.Rules.Primary.User, c.Unlimited = 1, true },
			[]Request{get(0, members, 9), get(1, members+"?page=2", 9)}, "0 0 0 2 0 0 2 2"},
		{"a stale response replaces a refusal", func(c *Config) { c.Rules.Primary.User = 1 },
			[]Request{get(0, members, 9), get(70, members, 9)}, "1 0 0 1 0 0 1 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := configuration(t)
			if c.change != nil {
				c.change(&cfg)
			}
			r := run(t, cfg, c.log...)
			got := fmt.Sprint(r.Hits, r.Collapsed, r.Validated, r.Forwarded, r.Refused, r.Own, r.Spent, r.Without)
			got = strings.Join(strings.Fields(strings.Trim(got, "[]")), " ")
			failIf(t, got != c.want, "got %s, want %s", got, c.want)
		})
	}
}

func TestRequestsWaitForQuota(t *testing.T) {
	c := configuration(t)
	c.Rules.Points.REST, c.Wait = 2, time.Minute+time.Second
	var log []Request
	for i := range 4 {
		log = append(log, get(float64(i), fmt.Sprintf("%s?page=%d", members, i+1), 9))
	}
	r := run(t, c, log...)
	failIf(t, r.Waited != 2 || r.Refused != 0 || r.WaitP50 < 57 || r.WaitP99 > 61 || r.WaitTotal < 115, "%d waited, %d refused, p50 %v, p99 %v, total %v", r.Waited, r.Refused, r.WaitP50, r.WaitP99, r.WaitTotal)
}

func TestReportNamesWhatItLeavesOut(t *testing.T) {
	r := run(t, configuration(t), get(0, "https://other.example/user", 9), with(get(1, "https://api.example.com/user", 9), func(r *Request) { r.Client = "stranger" }))
	if r.Requests != 1 || r.OtherHosts != 1 || len(r.Unnamed) != 1 || r.Unnamed[0] != "stranger" || len(r.Notes()) != 3 {
		t.Errorf("got %d requests, %d for other hosts, unnamed %q, notes %q", r.Requests, r.OtherHosts, r.Unnamed, r.Notes())
	}
}

func TestRunStopsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	cancel(cause)
	if _, err := Run(ctx, configuration(t), sequence([]Request{get(0, members, 9), get(1, members, 9)})); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	_, err := Run(t.Context(), configuration(t), sequence(nil))
	failIf(t, err == nil || !strings.Contains(err.Error(), "no requests"), "an empty log: got %v", err)
}

// TestLongLogsNeedBoundedMemory checks that names, parts and contents of a long log stay within their bounds.
func TestLongLogsNeedBoundedMemory(t *testing.T) {
	const requests = 5000
	log := make([]Request, requests)
	for i := range log {
		log[i] = get(float64(i*30), fmt.Sprintf("/repos/acme/r%d/subscribers", i), 9)
		log[i].Client = fmt.Sprint("client", i%3000)
	}
	r := run(t, configuration(t), log...)
	failIf(t, len(r.Clients) > maxNames+1 || len(r.Accounts) > maxNames+2 || len(r.Series) > maxParts || r.Requests != requests, "%d requests: %d clients, %d accounts, %d parts", r.Requests, len(r.Clients), len(r.Accounts), len(r.Series))
	total := 0
	for _, p := range r.Series {
		total += p.Requests
	}
	failIf(t, total != requests, "the series has %d requests, want %d", total, requests)
}

// TestPageEscapesNamesAndLoadsNothing checks the HTML of a report with a hostile client name.
func TestPageEscapesNamesAndLoadsNothing(t *testing.T) {
	hostile := with(get(1, members, 9), func(r *Request) { r.Client = `"><script>alert(1)</script>` })
	c := configuration(t)
	c.Rules.Primary.User = 1
	var page strings.Builder
	testservers.NoError(t, run(t, c, get(0, members, 9), get(5, "/user", 9), hostile).Page(&page))
	text := page.String()
	failIf(t, strings.Contains(text, "<script") || !strings.Contains(text, "&lt;script&gt;"), "the client name is not escaped")
	found := regexp.MustCompile(`(?i)(src|href|url|@import)\s*[=(]|https?:`).FindString(text)
	failIf(t, found != "", "the page refers to another file: %s", found)
	for _, want := range []string{"<polyline", "prefers-color-scheme: dark", "ZgotmplZ", `class="bad"`} {
		if strings.Contains(text, want) == (want == "ZgotmplZ") { // html/template writes ZgotmplZ for unsafe values
			t.Errorf("%q in the page: %t", want, want == "ZgotmplZ")
		}
	}
}

// A log with the year 1970 in a line must not stop the replay.
func TestSeriesCoversEachSpanOfTimes(t *testing.T) {
	for _, to := range []float64{7.6e9, 8e9, 8.3e9, maxTime} {
		first, last := get(0, "/user", 1), get(0, "/user", 1)
		first.Start, last.Start = time.Unix(1, 0), time.Unix(int64(to), 0)
		r := run(t, configuration(t), first, last)
		failIf(t, len(r.Series) > maxParts || r.PartSeconds*len(r.Series) < int(to)-1, "to %.0f: %d parts of %d seconds", to, len(r.Series), r.PartSeconds)
	}
}
