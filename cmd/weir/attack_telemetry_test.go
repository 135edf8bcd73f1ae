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

// insatiable are the requests of a client that wants to have telemetry without end: each
// has a path, a token, a method and a name of its own.
func insatiable(i int) *http.Request {
	method := []string{http.MethodGet, fmt.Sprint("FOO", i), "get", http.MethodDelete}[i%4]
	path := []string{
		fmt.Sprintf("/repos/owner-%d/repo-%d/subscribers", i, i), fmt.Sprintf("/made%cup%d/%d", 'a'+rune(i%26), i, i),
		fmt.Sprintf("/users/zzz-%d", i), fmt.Sprintf("/x/%s", strings.Repeat("x/", i%200)), fmt.Sprintf("/repos/o/r/%040x", i), "/%zz", "/search/code?q=zzz-" + fmt.Sprint(i),
	}[i%7]
	if method != http.MethodGet && i%100 > 4 { // what reaches the API is little: each account there is remembered
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

// TestAttack62LabelsAndMemoryAreBounded: of 100,000 paths, tokens, methods, hosts and
// addresses, many of whose senders want to be traced, while nobody takes what is sent.
func TestAttack62LabelsAndMemoryAreBounded(t *testing.T) {
	w := newTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Limit", "5000")
		w.Header().Set("X-Ratelimit-Resource", "zzz-made-up")
	}, func(c *config.Config) {
		c.Cache.Memory = 8 << 20
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9") // nobody is there
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
		w.ServeHTTP(httptest.NewRecorder(), insatiable(i))
	}
	after, text := heap(), w.metrics()
	if grown := int64(after) - int64(before); grown > 48<<20 {
		t.Errorf("%d MiB more after %d requests", grown>>20, requests-warm)
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
			t.Errorf("%s stands in %q", part, text[max(0, i-200):i+len(part)])
		}
	}
	t.Logf("%d MiB before, %d MiB after; series: %v", before>>20, after>>20, series)
}

// metrics is what Prometheus gets.
func (w *traced) metrics() string {
	answer := httptest.NewRecorder()
	w.telemetry.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return answer.Body.String()
}

// told is all that the gateway has told anybody of, as text.
func (w *traced) told() string {
	text := w.metrics()
	w.end()
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

// TestAttack53TokensAreInNoTraceMetricOrLog, wherever a client puts one.
func TestAttack53TokensAreInNoTraceMetricOrLog(t *testing.T) {
	w := newTraced(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "401") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	for _, token := range []string{"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "a-token-without-a-shape"} {
		for _, path := range []string{"/user?access_token=" + token, "/made/" + token, "/made/401", "/repos/" + token + "/x/subscribers", "/repos/acme/x" + token + "/subscribers", "//" + token, "/users/" + token[:20]} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				w.ask(method, path, "Authorization: Bearer "+token, "User-Agent: curl "+token, "X-Token: "+token, "Cookie: "+token, "Tracestate: a="+token)
			}
		}
	}
	text := w.told()
	for _, secret := range []string{"16C7e42F292c6912E", "a-token-without-a"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("told: %s", text[max(0, i-300):i+len(secret)])
		}
	}
	if !strings.Contains(text, "REDACTED") || len(w.received.Spans()) < 28 {
		t.Errorf("%d spans arrived", len(w.received.Spans()))
	}
}

// TestAttack63FieldsOfRequestsAreInNoSpan but the few that the conventions name, fit for
// text; what is not text costs no other span its way.
func TestAttack63FieldsOfRequestsAreInNoSpan(t *testing.T) {
	const evil = "\r\nlevel=ERROR msg=forged\x1b[31m\xff\xfe\"}{"
	w := newTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Note", "field-of-the-answer")
		_, _ = fmt.Fprint(w, "body-of-the-answer")
	})
	for _, target := range []string{"/repos/acme/%ff%0d%0a/stats/contributors", "/x/%ff%0d%0a", "/user?q=words-of-the-query", "/search/code?q=words-of-the-query"} {
		w.ask("FOO", target)
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader("body-of-the-request"))
		r.Host, r.RemoteAddr, r.Proto = "h"+evil, evil, "HTTP/1.1"+evil
		for _, name := range []string{"X-Note", "Cookie", "Referer", "X-Request-Id", "Baggage"} {
			r.Header.Set(name, "field-of-the-request"+evil)
		}
		r.Header.Set("User-Agent", strings.Repeat("agent"+evil, 1000))
		w.ServeHTTP(httptest.NewRecorder(), r)
	}
	w.ask(http.MethodGet, "/emojis")
	text := w.told()
	for _, part := range []string{"field-of-the", "body-of-the", "words-of-the", "FOO"} {
		if i := strings.Index(text, part); i >= 0 {
			t.Errorf("told: %s", text[max(0, i-300):i+len(part)])
		}
	}
	if !utf8.ValidString(text) {
		t.Error("that is no text")
	}
	spans := w.received.Spans()
	if last := spans[len(spans)-1]; last.Name != "GET /emojis" {
		t.Errorf("the last span is %+v", last)
	}
	for _, s := range spans {
		if strings.ContainsFunc(s.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", s.Name)
		}
		for name, value := range s.Attributes {
			if len(value) > 1024 {
				t.Errorf("%s has %d bytes", name, len(value))
			}
		}
	}
}
