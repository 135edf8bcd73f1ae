package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/weirgate/weir/internal/config"
)

// uniqueRequest returns a request with a unique path, token, method, host and address.
func uniqueRequest(i int) *http.Request {
	method := []string{http.MethodGet, fmt.Sprint("FOO", i), "get", http.MethodDelete}[i%4]
	path := []string{
		fmt.Sprintf("/repos/owner-%d/repo-%d/subscribers", i, i), fmt.Sprintf("/made%cup%d/%d", 'a'+rune(i%26), i, i),
		fmt.Sprintf("/users/zzz-%d", i), fmt.Sprintf("/x/%s", strings.Repeat("x/", i%200)), fmt.Sprintf("/repos/o/r/%040x", i), "/%zz", "/search/code?q=zzz-" + fmt.Sprint(i),
	}[i%7]
	if method != http.MethodGet && i%100 > 4 { // few requests reach the upstream, because each account is stored
		path = fmt.Sprintf("/_weir/zzz-%d", i)
	}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Method, r.RequestURI = method, path
	u, err := r.URL.Parse(path)
	if err != nil {
		u = r.URL
	}
	r.URL = u
	r.Host, r.RemoteAddr = fmt.Sprintf("host-%d.test", i), fmt.Sprintf("10.%d.%d.%d:1", i>>16&255, i>>8&255, i&255)
	r.Header.Set("Authorization", fmt.Sprint("Bearer user-", i))
	r.Header.Set("User-Agent", fmt.Sprint("zzz-", i))
	r.Header.Set("Traceparent", fmt.Sprintf("00-%032x-%016x-0%d", i+1, i+1, i%10/9))
	if i%50 != 0 {
		r.Header.Set("Cache-Control", "only-if-cached")
	}
	return r
}

// TestMetricLabelsAreBounded sends thousands of unique requests, many of them with sampled
// traces, while no receiver accepts exports.
func TestMetricLabelsAreBounded(t *testing.T) {
	w := startTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Limit", "5000")
		w.Header().Set("X-Ratelimit-Resource", "zzz-made-up")
	}, func(c *config.Config) {
		c.Cache.Memory = 8 << 20
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9") // no receiver listens
	})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const requests, warm = 5_000, 500
	var before uint64
	for i := range requests {
		if i == warm {
			before = heap()
		}
		w.ServeHTTP(httptest.NewRecorder(), uniqueRequest(i))
	}
	after, text := heap(), w.metrics()
	if grown := int64(after) - int64(before); grown > 48<<20 {
		t.Errorf("the heap grew by %d MiB during %d requests", grown>>20, requests-warm)
	}
	series := map[string]int{}
	for line := range strings.Lines(text) {
		if name, _, ok := strings.Cut(line, "{"); ok && !strings.HasSuffix(name, "_bucket") {
			series[name]++
		}
	}
	for name, n := range series {
		if n > 4000 {
			t.Errorf("%s has %d series", name, n)
		}
	}
	for _, part := range []string{"owner-", "repo-", "zzz-", "host-", "FOO", "Bearer", "overflow"} {
		if i := strings.Index(text, part); i >= 0 {
			t.Errorf("%q is in the metrics: %q", part, text[max(0, i-200):i+len(part)])
		}
	}
	t.Logf("%d MiB before, %d MiB after; series: %v", before>>20, after>>20, series)
}

// metrics returns the metrics in the Prometheus format.
func (w *tracedGateway) metrics() string {
	answer := httptest.NewRecorder()
	w.telemetry.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return answer.Body.String()
}

// exported returns all metrics, spans and logs as text.
func (w *tracedGateway) exported() string {
	text := w.metrics()
	w.flush()
	for _, s := range w.received.Spans() {
		text += fmt.Sprintf("%+v\n", s)
	}
	for _, m := range w.received.Metrics() {
		text += m.String() + "\n"
	}
	for _, l := range w.received.Logs() {
		text += l.String() + "\n"
	}
	return text + w.log.String()
}

// TestTelemetryContainsNoToken puts tokens into paths, queries and header fields.
func TestTelemetryContainsNoToken(t *testing.T) {
	w := startTraced(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "401") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	for _, token := range []string{"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "a-token-without-a-shape"} {
		for _, path := range []string{"/user?access_token=" + token, "/made/" + token, "/made/401", "/repos/" + token + "/x/subscribers", "/repos/acme/x" + token + "/subscribers", "//" + token, "/users/" + token[:20]} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				w.send(method, path, "Authorization: Bearer "+token, "User-Agent: curl "+token, "X-Token: "+token, "Cookie: "+token, "Tracestate: a="+token)
			}
		}
	}
	text := w.exported()
	for _, secret := range []string{"16C7e42F292c6912E", "a-token-without-a"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("exported: %s", text[max(0, i-300):i+len(secret)])
		}
	}
	if !strings.Contains(text, "REDACTED") || len(w.received.Spans()) < 28 {
		t.Errorf("%d spans were exported", len(w.received.Spans()))
	}
}

// TestTelemetryContainsNoRequestFields checks that spans contain only the attributes of the
// conventions, as valid text of bounded length.
func TestTelemetryContainsNoRequestFields(t *testing.T) {
	const evil = "\r\nlevel=ERROR msg=forged\x1b[31m\xff\xfe\"}{"
	w := startTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Note", "field-of-the-response")
		_, _ = fmt.Fprint(w, "body-of-the-response")
	})
	for _, target := range []string{"/repos/acme/%ff%0d%0a/stats/contributors", "/x/%ff%0d%0a", "/user?q=words-of-the-query", "/search/code?q=words-of-the-query"} {
		w.send("FOO-BAR", target)
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader("body-of-the-request"))
		r.Host, r.RemoteAddr, r.Proto = "h"+evil, evil, "HTTP/1.1"+evil
		for _, name := range []string{"X-Note", "Cookie", "Referer", "X-Request-Id", "Baggage"} {
			r.Header.Set(name, "field-of-the-request"+evil)
		}
		r.Header.Set("User-Agent", strings.Repeat("agent"+evil, 1000))
		w.ServeHTTP(httptest.NewRecorder(), r)
	}
	w.send(http.MethodGet, "/emojis")
	text := w.exported()
	for _, part := range []string{"field-of-the", "body-of-the", "words-of-the", "FOO-BAR"} {
		if i := strings.Index(text, part); i >= 0 {
			t.Errorf("exported: %s", text[max(0, i-300):i+len(part)])
		}
	}
	if !utf8.ValidString(text) {
		t.Error("the export is not valid UTF-8")
	}
	spans := w.received.Spans()
	if last := spans[len(spans)-1]; last.Name != "GET /…" {
		t.Errorf("the last span is %+v", last)
	}
	for _, s := range spans {
		if strings.ContainsFunc(s.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("span with the unprintable name %q", s.Name)
		}
		for name, value := range s.Attributes {
			if len(value) > 1024 {
				t.Errorf("attribute %s has %d bytes", name, len(value))
			}
		}
	}
}
