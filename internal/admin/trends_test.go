package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// trendsFrom asks for the trends of a gateway with a Prometheus.
func trendsFrom(p Prometheus, interval string) *httptest.ResponseRecorder {
	s := sources()
	s.Prometheus = func() Prometheus { return p }
	return send(Handler(Access{}, s), "GET "+trendsURL+interval)
}

const trendsURL = "/api/v1/trends?range="

// startPrometheus returns the URL of a server that responds to requests with a function's text.
func startPrometheus(t *testing.T, respond func(r *http.Request) string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, respond(r)) }))
	t.Cleanup(server.Close)
	return server.URL
}

// matrix returns a response of Prometheus with series in JSON.
func matrix(series ...string) string {
	return `{"status": "success", "data": {"resultType": "matrix", "result": [` + strings.Join(series, ", ") + `]}}`
}

func TestTrendsSendFixedQueries(t *testing.T) {
	var got []*http.Request
	prometheus := startPrometheus(t, func(r *http.Request) string {
		got = append(got, r)
		return matrix()
	})
	for _, c := range []struct {
		name, step     string
		seconds, steps int64
	}{{"1d", "10m", 600, 144}, {"7d", "1h", 3600, 168}, {"30d", "4h", 14400, 180}} {
		got = nil
		before := time.Now().Unix()
		w := trendsFrom(Prometheus{URL: prometheus + "/prefix/", Token: "s3cret"}, c.name+"&query=up")
		after := time.Now().Unix()
		want := fmt.Sprintf(`"range":%q`, c.name)
		failIf(t, w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want), "%s: got %d %s, want %s", c.name, w.Code, w.Body, want)
		var queries []string
		for _, r := range got {
			q := r.URL.Query()
			queries = append(queries, q.Get("query"))
			start, _ := strconv.ParseInt(q.Get("start"), 10, 64)
			end, _ := strconv.ParseInt(q.Get("end"), 10, 64)
			failIf(t, q.Get("step") != strconv.FormatInt(c.seconds, 10) || end-start != (c.steps-1)*c.seconds || (end+trendsShift)%c.seconds != 0 ||
				end <= before || end > after+c.seconds, "%s: start %d, end %d, step %s at %d: want %d points that end with the present step", c.name, start, end, q.Get("step"), after, c.steps)
			failIf(t, !strings.Contains(w.Body.String(), fmt.Sprintf(`"start":%d,"step":%d,`, start-c.seconds, c.seconds)), "%s: the first step must end at %d: %.200s", c.name, start, w.Body)
			failIf(t, r.Method != http.MethodGet || r.URL.Path != "/prefix/api/v1/query_range" || r.Header.Get("Authorization") != "Bearer s3cret", "%s: request %s %s with authorization %q", c.name, r.Method, r.URL.Path, r.Header.Get("Authorization"))
		}
		equal(t, c.name+": queries", queries, []string{
			"sum by (weir_client) (increase(weir_spent_total[" + c.step + "]))",
			"sum(increase(weir_saved_total[" + c.step + "]))",
			`sum(increase(weir_requests_total{weir_cache="refused"}[` + c.step + "]))",
			`topk(20, max by (weir_account, weir_resource) (max_over_time(weir_budget_utilization_ratio{weir_account!=""}[` + c.step + "])))",
		})
	}
}

// TestTrendsReportTheLargestClientsAndTheTightestBudgets also has steps without a value, and values that are no numbers.
func TestTrendsReportTheLargestClientsAndTheTightestBudgets(t *testing.T) {
	prometheus := startPrometheus(t, func(r *http.Request) string {
		start, _ := strconv.Atoi(r.URL.Query().Get("start"))
		// values returns the first values of a series: all other steps have no value.
		values := func(list ...string) string {
			var points []string
			for i, v := range list {
				points = append(points, fmt.Sprintf(`[%d, %q]`, start+i*3600, v))
			}
			return strings.Join(points, ", ")
		}
		var list []string
		add := func(labels, values string) {
			list = append(list, fmt.Sprintf(`{"metric": {%s}, "values": [%s]}`, labels, values))
		}
		switch query := r.URL.Query().Get("query"); {
		case strings.Contains(query, "weir_spent_total"):
			for i := range 9 {
				add(fmt.Sprintf(`"weir_client": "client-%d"`, i), values(strconv.Itoa(i), "NaN", "0.4"))
			}
			add("", values("1000"))
		case strings.Contains(query, "weir_saved_total"):
			add("", fmt.Sprintf(`[%d.5, "7"], [%d, "8"], %s, [1e99, "9"]`, start-3600, start+168*3600, values("10.4", "+Inf", "2.6")))
		case strings.Contains(query, "weir_budget_utilization_ratio"):
			for i := range 9 {
				add(fmt.Sprintf(`"weir_account": "a%d", "weir_resource": "core"`, i), values("0", "NaN", fmt.Sprint("0.", i+1), "0"))
			}
			add(`"weir_account": "unused"`, values("NaN", "-Inf"))
			add(`"weir_account": "exceeded", "weir_resource": "cpu"`, values("1.2"))
		}
		return matrix(list...)
	})
	w := trendsFrom(Prometheus{URL: prometheus}, "7d")
	var got struct {
		Spent []struct {
			Client string
			Values []float64
		}
		Others, Saved, Refused []float64
		Budgets                []struct {
			Account, Resource string
			Values            []*float64
		}
	}
	err := json.Unmarshal(w.Body.Bytes(), &got)
	stopIf(t, err != nil, "%d %s: %v", w.Code, w.Body, err)
	var lines []string
	for _, c := range got.Spent {
		lines = append(lines, fmt.Sprint(c.Client, c.Values[:3], len(c.Values)))
	}
	lines = append(lines, fmt.Sprint(got.Others[:3], got.Saved[:4], got.Saved[167], got.Refused[:2], len(got.Others), len(got.Saved), len(got.Refused)))
	for _, b := range got.Budgets {
		text := b.Account + " " + b.Resource
		for _, v := range b.Values[:4] {
			if v == nil {
				text += " –"
				continue
			}
			text += strings.TrimSuffix(fmt.Sprintf(" %.1f", *v), ".0")
		}
		lines = append(lines, text)
	}
	equal(t, "lines", lines, []string{
		"client-8[8 0 0] 168", "client-7[7 0 0] 168", "client-6[6 0 0] 168", "client-5[5 0 0] 168", "client-4[4 0 0] 168", "client-3[3 0 0] 168",
		"client-2[2 0 0] 168",
		"[1001 0 0] [10 0 3 0] 0 [0 0] 168 168 168", // others, saved and refused
		"exceeded cpu 0 – – –", "a8 core 1 – 0.1 1", "a7 core 1 – 0.2 1", "a6 core 1 – 0.3 1", "a5 core 1 – 0.4 1", "a4 core 1 – 0.5 1",
		"a3 core 1 – 0.6 1", "a2 core 1 – 0.7 1",
	})
}

// A new Prometheus has data from the second of the last two steps only.
func TestTrendsBeginWithTheFirstData(t *testing.T) {
	var end int64
	prometheus := startPrometheus(t, func(r *http.Request) string {
		q := r.URL.Query()
		end, _ = strconv.ParseInt(q.Get("end"), 10, 64)
		switch query := q.Get("query"); {
		case strings.Contains(query, "weir_spent_total"):
			return matrix(fmt.Sprintf(`{"metric": {"weir_client": "builds"}, "values": [[%d, "5"]]}`, end))
		case strings.Contains(query, "weir_saved_total"):
			return matrix(fmt.Sprintf(`{"metric": {}, "values": [[%d, "NaN"], [%d, "2"], [%d, "3"]]}`, end-7200, end-3600, end))
		}
		return matrix()
	})
	w := trendsFrom(Prometheus{URL: prometheus}, "7d")
	want := fmt.Sprintf(`{"range":"7d","start":%d,"step":3600,"spent":[{"client":"builds","values":[0,5]}],"others":[0,0],"saved":[2,3],"refused":[0,0],"budgets":[]}`, end-7200)
	equal(t, "trends", strings.TrimSpace(w.Body.String()), want)
}

func TestTrendsExplainProblems(t *testing.T) {
	var redirected atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Store(true) }))
	defer other.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	const query = "query Prometheus at URL: "
	for _, c := range []struct {
		name     string
		status   int    // of the response of Prometheus; 0 if it gets no request
		body     string // the response, or the URL and the range of a request that is not sent
		expected int
		want     string
	}{
		{"not configured", 0, " 7d", 404, "no Prometheus is configured; set admin.prometheus.url"},
		{"unknown range", 0, other.URL + " 2d", 400, `range "2d": must be 1d, 7d or 30d`},
		{"no range", 0, other.URL + " ", 400, `range "": must be 1d, 7d or 30d`},
		{"nothing listens", 0, closed.URL + " 7d", 502, query + "dial tcp ADDRESS: connect: connection refused; check admin.prometheus.url"},
		{"query refused", 422, `{"error": "query processing would load too many samples into memory"}`, 502,
			query + "422 Unprocessable Entity: query processing would load too many samples into memory"},
		{"long error", 400, `{"status": "error", "error": "` + strings.Repeat("ü", maxTrendsError) + `"}`, 502,
			query + "400 Bad Request: " + strings.Repeat("ü", maxTrendsError/2)},
		{"token required", 401, "<html>Log in</html>", 502, query + "401 Unauthorized; check admin.prometheus.url and admin.prometheus.token"},
		{"page of another program", 200, "<html>Grafana</html>", 502,
			query + "invalid response: invalid character '<' looking for beginning of value; check admin.prometheus.url"},
		{"no series", 200, `{"status": "success", "data": {"resultType": "vector", "result": []}}`, 502,
			query + "the response is not the result of a range query; check admin.prometheus.url"},
		{"invalid sample", 200, matrix(`{"metric": {}, "values": [[1, "many"]]}`), 502,
			query + `invalid response: strconv.ParseFloat: parsing "many": invalid syntax; check admin.prometheus.url`},
		{"redirect", 302, "", 502, query + "302 Found; check admin.prometheus.url and admin.prometheus.token"},
		{"error that repeats the token", 401, `{"error": "unknown credential Bearer s3cret"}`, 502,
			query + "401 Unauthorized: unknown credential Bearer •••"},
		{"long invalid sample", 200, matrix(`{"metric": {}, "values": [[1, "` + strings.Repeat("x", 1000) + `"]]}`), 502,
			query + "invalid response: " + (`strconv.ParseFloat: parsing "` + strings.Repeat("x", maxTrendsError))[:maxTrendsError] + "; check admin.prometheus.url"},
		{"huge response", 200, `{"status": "success", "warnings": ["` + strings.Repeat("x", maxTrendsBody) + `"]}`, 502,
			query + "more than 4 MiB of series"},
		{"response cut short", 200, `{"status": "success", "data": {"resultType": "matrix"`, 502,
			query + "invalid response: unexpected EOF; check admin.prometheus.url"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", other.URL)
				w.WriteHeader(c.status)
				_, _ = fmt.Fprint(w, c.body)
			}))
			defer prometheus.Close()
			address, interval := prometheus.URL, "7d"
			if c.status == 0 {
				address, interval, _ = strings.Cut(c.body, " ")
			}
			w := trendsFrom(Prometheus{URL: address, Token: "s3cret"}, interval)
			want := c.want
			if address != "" {
				want = strings.NewReplacer("URL", address, "ADDRESS", strings.TrimPrefix(address, "http://")).Replace(want)
			}
			failIf(t, w.Code != c.expected || strings.TrimSpace(w.Body.String()) != want, "got %d %s\nwant %d %s", w.Code, w.Body, c.expected, want)
		})
	}
	failIf(t, redirected.Load(), "the redirect was followed")
}

// roundTrip is a transport for requests to Prometheus.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// blockedTrends returns trends whose Prometheus never responds.
func blockedTrends() *trends {
	blocked := newTrends(func() Prometheus { return Prometheus{URL: "http://prometheus:9090", Token: "s3cret"} })
	blocked.client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	})
	return blocked
}

func TestTrendsEndAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, w := time.Now(), httptest.NewRecorder()
		blockedTrends().serve(w, httptest.NewRequest(http.MethodGet, trendsURL+"30d", nil))
		const want = "query Prometheus at http://prometheus:9090: no complete response within 10s; check admin.prometheus.url\n"
		failIf(t, w.Code != http.StatusGatewayTimeout || w.Body.String() != want || time.Since(start) != trendsTimeout, "after %s got %d %s, want %s", time.Since(start), w.Code, w.Body, want)
	})
}

func TestTrendsBoundConcurrentQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := blockedTrends()
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range maxTrendsRequests {
			group.Go(func() {
				blocked.serve(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, trendsURL+"1d", nil))
			})
		}
		synctest.Wait()
		w := httptest.NewRecorder()
		blocked.serve(w, httptest.NewRequest(http.MethodGet, trendsURL+"1d", nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "10" || !strings.Contains(w.Body.String(), "4 requests are querying Prometheus") {
			t.Errorf("beyond the bound: %d %v %s", w.Code, w.Header(), w.Body)
		}
		start := time.Now()
		cancel() // the clients disconnect
		group.Wait()
		failIf(t, len(blocked.slots) != 0 || time.Since(start) != 0, "%d requests continue %s after their clients have disconnected", len(blocked.slots), time.Since(start))
	})
}
