package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// trendsHandler returns the admin pages of a gateway with a Prometheus.
func trendsHandler(p Prometheus) http.Handler {
	s := sources()
	s.Prometheus = func() Prometheus { return p }
	return Handler(Access{}, s)
}

const trendsURL = "http://localhost/api/v1/trends?range="

// matrix returns a response of Prometheus with series in JSON.
func matrix(series ...string) string {
	return `{"status": "success", "data": {"resultType": "matrix", "result": [` + strings.Join(series, ", ") + `]}}`
}

func TestTrendsSendFixedQueries(t *testing.T) {
	var got []*http.Request
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r)
		_, _ = fmt.Fprint(w, matrix())
	}))
	defer prometheus.Close()
	for _, c := range []struct {
		name, step     string
		seconds, steps int64
	}{{"1d", "10m", 600, 144}, {"7d", "1h", 3600, 168}, {"30d", "4h", 14400, 180}} {
		t.Run(c.name, func(t *testing.T) {
			got = nil
			before := time.Now().Unix()
			w := respond(trendsHandler(Prometheus{URL: prometheus.URL + "/prefix/", Token: "s3cret"}), http.MethodGet, trendsURL+c.name+"&query=up", nil)
			after := time.Now().Unix()
			want := fmt.Sprintf(`"range":%q`, c.name)
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
				t.Errorf("got %d %s, want %s", w.Code, w.Body, want)
			}
			var queries []string
			for _, r := range got {
				q := r.URL.Query()
				queries = append(queries, q.Get("query"))
				start, _ := strconv.ParseInt(q.Get("start"), 10, 64)
				end, _ := strconv.ParseInt(q.Get("end"), 10, 64)
				if q.Get("step") != strconv.FormatInt(c.seconds, 10) || end-start != (c.steps-1)*c.seconds || (end+trendsShift)%c.seconds != 0 || end <= before || end > after+c.seconds {
					t.Errorf("start %d, end %d, step %s at %d: want %d points that end with the present step", start, end, q.Get("step"), after, c.steps)
				}
				if !strings.Contains(w.Body.String(), fmt.Sprintf(`"start":%d,"step":%d,`, start-c.seconds, c.seconds)) {
					t.Errorf("the first step must end at %d: %.200s", start, w.Body)
				}
				if r.Method != http.MethodGet || r.URL.Path != "/prefix/api/v1/query_range" || r.Header.Get("Authorization") != "Bearer s3cret" {
					t.Errorf("request %s %s with authorization %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
				}
			}
			if diff := cmp.Diff([]string{
				"sum by (weir_client) (increase(weir_spent_total[" + c.step + "]))",
				"sum(increase(weir_saved_total[" + c.step + "]))",
				`sum(increase(weir_requests_total{weir_cache="refused"}[` + c.step + "]))",
				`topk(20, max by (weir_account, weir_resource) (max_over_time(weir_budget_utilization_ratio{weir_account!=""}[` + c.step + "])))",
			}, queries); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTrendsReportTheLargestClientsAndTheTightestBudgets also has steps without a value, and values that are no numbers.
func TestTrendsReportTheLargestClientsAndTheTightestBudgets(t *testing.T) {
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		switch query := r.URL.Query().Get("query"); {
		case strings.Contains(query, "weir_spent_total"):
			for i := range 9 {
				list = append(list, fmt.Sprintf(`{"metric": {"weir_client": "client-%d"}, "values": [%s]}`, i, values(strconv.Itoa(i), "NaN", "0.4")))
			}
			list = append(list, `{"metric": {}, "values": [`+values("1000")+`]}`)
		case strings.Contains(query, "weir_saved_total"):
			list = []string{fmt.Sprintf(`{"metric": {}, "values": [[%d.5, "7"], [%d, "8"], %s, [1e99, "9"]]}`, start-3600, start+168*3600, values("10.4", "+Inf", "2.6"))}
		case strings.Contains(query, "weir_budget_utilization_ratio"):
			for i := range 9 {
				list = append(list, fmt.Sprintf(`{"metric": {"weir_account": "a%d", "weir_resource": "core"}, "values": [%s]}`, i, values("0", "NaN", fmt.Sprint("0.", i+1), "0")))
			}
			list = append(list, `{"metric": {"weir_account": "unused"}, "values": [`+values("NaN", "-Inf")+`]}`, `{"metric": {"weir_account": "exceeded", "weir_resource": "cpu"}, "values": [`+values("1.2")+`]}`)
		}
		_, _ = fmt.Fprint(w, matrix(list...))
	}))
	defer prometheus.Close()
	w := respond(trendsHandler(Prometheus{URL: prometheus.URL}), http.MethodGet, trendsURL+"7d", nil)
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
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	var spent []string
	for _, c := range got.Spent {
		spent = append(spent, fmt.Sprint(c.Client, c.Values[:3], len(c.Values)))
	}
	if diff := cmp.Diff([]string{
		"client-8[8 0 0] 168", "client-7[7 0 0] 168", "client-6[6 0 0] 168", "client-5[5 0 0] 168", "client-4[4 0 0] 168", "client-3[3 0 0] 168", "client-2[2 0 0] 168",
	}, spent); diff != "" {
		t.Error(diff)
	}
	counts := fmt.Sprint(got.Others[:3], got.Saved[:4], got.Saved[167], got.Refused[:2], len(got.Others), len(got.Saved), len(got.Refused))
	if want := "[1001 0 0] [10 0 3 0] 0 [0 0] 168 168 168"; counts != want {
		t.Errorf("others, saved and refused: %s, want %s", counts, want)
	}
	var budgets []string
	for _, b := range got.Budgets {
		text := b.Account + " " + b.Resource
		for _, v := range b.Values[:4] {
			if v == nil {
				text += " –"
				continue
			}
			text += strings.TrimSuffix(fmt.Sprintf(" %.1f", *v), ".0")
		}
		budgets = append(budgets, text)
	}
	if diff := cmp.Diff([]string{
		"exceeded cpu 0 – – –", "a8 core 1 – 0.1 1", "a7 core 1 – 0.2 1", "a6 core 1 – 0.3 1", "a5 core 1 – 0.4 1", "a4 core 1 – 0.5 1", "a3 core 1 – 0.6 1", "a2 core 1 – 0.7 1",
	}, budgets); diff != "" {
		t.Error(diff)
	}
}

// A new Prometheus has data from the second of the last two steps only.
func TestTrendsBeginWithTheFirstData(t *testing.T) {
	var end int64
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		end, _ = strconv.ParseInt(q.Get("end"), 10, 64)
		switch query := q.Get("query"); {
		case strings.Contains(query, "weir_spent_total"):
			_, _ = fmt.Fprint(w, matrix(fmt.Sprintf(`{"metric": {"weir_client": "builds"}, "values": [[%d, "5"]]}`, end)))
		case strings.Contains(query, "weir_saved_total"):
			_, _ = fmt.Fprint(w, matrix(fmt.Sprintf(`{"metric": {}, "values": [[%d, "NaN"], [%d, "2"], [%d, "3"]]}`, end-7200, end-3600, end)))
		default:
			_, _ = fmt.Fprint(w, matrix())
		}
	}))
	defer prometheus.Close()
	w := respond(trendsHandler(Prometheus{URL: prometheus.URL}), http.MethodGet, trendsURL+"7d", nil)
	want := fmt.Sprintf(`{"range":"7d","start":%d,"step":3600,"spent":[{"client":"builds","values":[0,5]}],"others":[0,0],"saved":[2,3],"refused":[0,0],"budgets":[]}`, end-7200)
	if got := strings.TrimSpace(w.Body.String()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTrendsExplainProblems(t *testing.T) {
	var redirected atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Store(true) }))
	defer other.Close()
	responses := map[string]struct {
		status int
		body   string
	}{
		"refused":   {422, `{"status": "error", "errorType": "execution", "error": "query processing would load too many samples into memory"}`},
		"long":      {400, `{"status": "error", "error": "` + strings.Repeat("ü", maxTrendsError) + `"}`},
		"login":     {401, "<html>Log in</html>"},
		"page":      {200, "<html>Grafana</html>"},
		"vector":    {200, `{"status": "success", "data": {"resultType": "vector", "result": []}}`},
		"sample":    {200, matrix(`{"metric": {}, "values": [[1, "many"]]}`)},
		"redirect":  {302, ""},
		"echo":      {401, `{"error": "unknown credential Bearer s3cret"}`},
		"number":    {200, matrix(`{"metric": {}, "values": [[1, "` + strings.Repeat("x", 1000) + `"]]}`)},
		"huge":      {200, `{"status": "success", "warnings": ["` + strings.Repeat("x", maxTrendsBody) + `"]}`},
		"cut short": {200, `{"status": "success", "data": {"resultType": "matrix"`},
	}
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(r.URL.Path[1:], "/api/")
		w.Header().Set("Location", other.URL)
		w.WriteHeader(responses[name].status)
		_, _ = fmt.Fprint(w, responses[name].body)
	}))
	defer prometheus.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	const query = "query Prometheus at URL: "
	for _, c := range []struct {
		name, url, interval string
		status              int
		want                string
	}{
		{"not configured", "", "7d", 404, "no Prometheus is configured; set admin.prometheus.url"},
		{"unknown range", prometheus.URL, "2d", 400, `range "2d": must be 1d, 7d or 30d`},
		{"no range", prometheus.URL, "", 400, `range "": must be 1d, 7d or 30d`},
		{"nothing listens", closed.URL, "7d", 502, query + "dial tcp ADDRESS: connect: connection refused; check admin.prometheus.url"},
		{"query refused", prometheus.URL + "/refused", "7d", 502, query + "422 Unprocessable Entity: query processing would load too many samples into memory"},
		{"long error", prometheus.URL + "/long", "7d", 502, query + "400 Bad Request: " + strings.Repeat("ü", maxTrendsError/2)},
		{"token required", prometheus.URL + "/login", "7d", 502, query + "401 Unauthorized; check admin.prometheus.url and admin.prometheus.token"},
		{"page of another program", prometheus.URL + "/page", "7d", 502, query + "invalid response: invalid character '<' looking for beginning of value; check admin.prometheus.url"},
		{"no series", prometheus.URL + "/vector", "7d", 502, query + "the response is not the result of a range query; check admin.prometheus.url"},
		{"invalid sample", prometheus.URL + "/sample", "7d", 502, query + `invalid response: strconv.ParseFloat: parsing "many": invalid syntax; check admin.prometheus.url`},
		{"redirect", prometheus.URL + "/redirect", "7d", 502, query + "302 Found; check admin.prometheus.url and admin.prometheus.token"},
		{"error that repeats the token", prometheus.URL + "/echo", "7d", 502, query + "401 Unauthorized: unknown credential Bearer •••"},
		{"long invalid sample", prometheus.URL + "/number", "7d", 502, query + "invalid response: " + (`strconv.ParseFloat: parsing "` + strings.Repeat("x", maxTrendsError))[:maxTrendsError] + "; check admin.prometheus.url"},
		{"huge response", prometheus.URL + "/huge", "7d", 502, query + "more than 4 MiB of series"},
		{"response cut short", prometheus.URL + "/cut%20short", "7d", 502, query + "invalid response: unexpected EOF; check admin.prometheus.url"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := respond(trendsHandler(Prometheus{URL: c.url, Token: "s3cret"}), http.MethodGet, trendsURL+c.interval, nil)
			want := c.want
			if u, err := url.Parse(c.url); err == nil {
				want = strings.NewReplacer("URL", c.url, "ADDRESS", u.Host).Replace(want)
			}
			if w.Code != c.status || strings.TrimSpace(w.Body.String()) != want {
				t.Errorf("got %d %s\nwant %d %s", w.Code, w.Body, c.status, want)
			}
		})
	}
	if redirected.Load() {
		t.Error("the redirect was followed")
	}
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
		if w.Code != http.StatusGatewayTimeout || w.Body.String() != want || time.Since(start) != trendsTimeout {
			t.Errorf("after %s got %d %s, want %s", time.Since(start), w.Code, w.Body, want)
		}
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
		if len(blocked.slots) != 0 || time.Since(start) != 0 {
			t.Errorf("%d requests continue %s after their clients have disconnected", len(blocked.slots), time.Since(start))
		}
	})
}
