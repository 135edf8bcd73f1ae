package service

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
)

const getTemplates = "GET /gitignore/templates"

func TestQuirksCanBeChangedAtRunTime(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("", `PUT /_service/quirks {"clock_offset":"1h","error_status":503}`, 200, "")
		t.wantEqual("quirks", quirk.Set{ClockOffset: quirk.Duration(time.Hour), ErrorStatus: 503}, decode[quirk.Set](t, t.get("", "/_service/quirks")))
		date, err := http.ParseTime(t.do("owner", getTemplates).Header().Get("Date"))
		failIf(t, err != nil || time.Until(date) < 59*time.Minute, "got Date %v, error %v", date, err)
		for _, wrong := range []string{
			`{"delay":"1s"}`, `{"delay_before":"soon"}`, `{"limit_status":429}`, `{"error_status":404}`, `{"error_every":-1}`, `{"latency":"-1s"}`, `{"latency":200}`, `{`,
		} {
			name, _, _ := strings.Cut(strings.TrimLeft(wrong, `{"`), `"`)
			t.call("", "PUT /_service/quirks "+wrong, 400, "{}\n"+name)
		}
		t.call("", "DELETE /_service/quirks", 200, "={}")
	})
}

func TestControlEndpointsAllowTheirMethods(t *testing.T) {
	runCalls(t, []call{
		{"", "GET /_service/violations", 200, "Allow:"},
		{"", "HEAD /_service/violations", 200, "Allow:"},
		{"", "POST /_service/violations", 405, "Allow: DELETE, GET, HEAD"},
		{"", "DELETE /_service/webhooks", 405, "Allow: GET, HEAD, PUT"},
		{"", "PUT /_service/events", 405, "Allow: GET, HEAD, POST"},
		{"", "PUT /_service/deliveries", 405, "Allow: GET, HEAD"},
		{"", "GET /_service/", 404, "Allow:"},
		{"", "GET /_service/nothing", 404, "GET /_service/violations, DELETE /_service/violations, "},
		{"", "PUT /_service/faults {}", 410, "/_service/quirks"},
	})
}

// TestBanLastsUntilReset sends requests during the waiting time until the caller is banned.
func TestBanLastsUntilReset(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{SecondaryEvery: 1})
		for range banAfter + 1 {
			t.do("owner", getTemplates)
			time.Sleep(time.Millisecond)
		}
		t.call("", "DELETE /_service/quirks", 200, "")
		time.Sleep(2 * time.Hour)
		t.call("owner", getTemplates, 403, "banned\nRetry-After:")
		t.wantEqual("banned", true, t.s.Violations().Banned)
		t.call("member", getTemplates, 200, "")
		t.call("", "DELETE /_service/violations", 200, "")
		t.call("owner", getTemplates, 200, "")
		v := t.s.Violations()
		failIf(t, v.Banned || v.SentWhileLimited != 0 || v.Answered["core"] != 1, "after the reset: got %+v", v)
	})
}

func TestClockOffsetShiftsTheResetTime(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{ClockOffset: quirk.Duration(2 * time.Hour)})
		w := t.get("owner", "/rate_limit")
		core := decode[struct{ Rate struct{ Reset int64 } }](t, w)
		reset := time.Unix(core.Rate.Reset, 0)
		failIf(t, time.Until(reset) < 2*time.Hour || w.Header().Get("X-Ratelimit-Reset") != itoa(int(core.Rate.Reset)), "got headers %v and body %s", w.Header(), w.Body)
	})
}

func TestLatencyIsTheMinimumDuration(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{Latency: quirk.Duration(time.Second), DelayBefore: quirk.Duration(time.Second)})
		for range 20 {
			began := time.Now()
			t.do("owner", getTemplates)
			took := time.Since(began)
			failIf(t, took < time.Second || took > 2*time.Second, "the request took %v", took)
		}
	})
}

func TestErrorEveryFailsRequests(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{ErrorEvery: 3})
		for _, status := range []int{200, 200, 502, 200, 200, 502} {
			t.call("owner", getTemplates, status, "")
		}
		t.s.quirks.Put(quirk.Set{ErrorEvery: 1, ErrorStatus: 503})
		t.call("owner", getTemplates, 503, "X-RateLimit-Used: 7\n{\"message\":\"*\"}") // the error is counted
	})
}

func TestEndless202NeverCompletesStatistics(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{Endless202: true})
		for range 10 {
			t.call("owner", "GET /repos/acme/widgets/stats/punch_card", 202, "")
			time.Sleep(time.Minute)
		}
		t.s.quirks.Put(quirk.Set{})
		t.call("owner", "GET /repos/acme/widgets/stats/punch_card", 200, "")
	})
}

func TestHeadersBehindSendsOlderRateLimitHeaders(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{HeadersBehind: 5})
		var all []int
		for i := range 100 {
			used, err := strconv.Atoi(t.do("owner", getTemplates).Header().Get("X-RateLimit-Used"))
			stopIf(t, err != nil || used > i+1 || used < max(0, i-4), "request %d: got used %d, error %v", i+1, used, err)
			all = append(all, used)
		}
		failIf(t, slices.IsSorted(all), "the headers never showed an earlier request")
	})
}

func TestETagsPerTokenDiffer(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		runWithService(t, func(t *tester) {
			t = t.newService(name, 1)
			etag := func(as string) string { return t.do(as, getTemplates).Header().Get("ETag") }
			failIf(t, etag("owner") != etag("owner-2"), "ETags depend on the token without the quirk")
			t.s.quirks.Put(quirk.Set{ETagsPerToken: true})
			failIf(t, etag("owner") == etag("owner-2"), "ETags do not depend on the token")
			t.call("owner\nIf-None-Match: "+etag("owner"), getTemplates, 304, "")
			t.call("owner-2\nIf-None-Match: "+etag("owner"), getTemplates, 200, "")
		})
	}
}

func TestLinksByNameUsesNames(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{LinksByName: true})
		t.call("owner", "GET /repos/acme/widgets/subscribers?per_page=60", 200,
			`Link: <http://api.test/repos/acme/widgets/subscribers?per_page=60&page=2>; rel="next"...`)
	})
}
