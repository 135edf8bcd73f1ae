package hypermedia

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

var bases = []Base{{"https://uploads.example", "http://weir/api/uploads"}, {"https://api.example", "http://weir"}}

// rewriteAll returns the rewritten form of a text that is written in pieces.
func rewriteAll(text string, size int) string {
	var b strings.Builder
	r := &rewriter{w: &b, bases: bases}
	for len(text) > 0 {
		n := min(size, len(text))
		_, _ = r.Write([]byte(text[:n])) // a Builder returns no error
		text = text[n:]
	}
	_ = r.flush()
	return b.String()
}

func TestURLsOfTheUpstreamAreRewritten(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"url":"https://api.example/users/a"}`, `{"url":"http://weir/users/a"}`},
		{`{"url" : "https://api.example"}`, `{"url" : "http://weir"}`},
		{`{"upload_url":"https://uploads.example/repos/a/assets{?name,label}"}`, `{"upload_url":"http://weir/api/uploads/repos/a/assets{?name,label}"}`},
		{`[{"a":[1,{"b_url":"https://api.example/x?y=1#z"}]}]`, `[{"a":[1,{"b_url":"http://weir/x?y=1#z"}]}]`},
		{`{"a":"url","url":"https://api.example/x"}`, `{"a":"url","url":"http://weir/x"}`},

		// unchanged
		{`{"url":"https://api.example.evil/x"}`, ``},
		{`{"url":"https://api.example:8443/x"}`, ``},
		{`{"url":"https://api.example@evil/x"}`, ``},
		{`{"html_url":"https://www.example/x"}`, ``},
		{`{"body":"https://api.example/x","curl":"https://api.example/x","URL":"https://api.example/x"}`, ``},
		{`{"url":["https://api.example/x"]}`, ``},
		{`{"body":"\"url\":\"https://api.example/x\""}`, ``},
		{`{"a":"\\","body":"url\\\":https://api.example/x"}`, ``},
		{`"https://api.example/x"`, ``},
		{`{"url":null,"b":"https://api.example/x"}`, ``},
		{`{"url":"` + strings.Repeat("x", 3*maxHeld) + `"}`, ``},
		{`{"url":"https://api.example/x`, ``}, // incomplete
		{`not json: "url": "`, ``},
		{``, ``},
	} {
		if c.want == "" {
			c.want = c.in
		}
		for _, size := range []int{1, 2, 3, 7, 1 << 20} {
			got := rewriteAll(c.in, size)
			failIf(t, got != c.want, "in pieces of %d bytes: %.200s\ngot  %.200s\nwant %.200s", size, c.in, got, c.want)
		}
	}
}

// TestOnlyURLsChange checks with any JSON, in pieces of any size, that the result is JSON whose other values are equal.
func TestOnlyURLsChange(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"https://api.example/x", "https://api.example", "https://uploads.example/y", `"url":"`, `\`}))
	name := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"url", "a_url", "id"}))
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		return rapid.Custom(func(t *rapid.T) any {
			switch kind := rapid.IntRange(0, 4).Draw(t, "kind"); {
			case kind == 0 && depth > 0:
				return rapid.MapOfN(name, value(depth-1), 0, 4).Draw(t, "object")
			case kind == 1 && depth > 0:
				return rapid.SliceOfN(value(depth-1), 0, 4).Draw(t, "array")
			case kind == 2:
				return rapid.Float64Range(-10, 10).Draw(t, "number")
			}
			return text.Draw(t, "text")
		})
	}
	var expect func(v any) any
	expect = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				s, ok := inner.(string)
				if !ok || name != "url" && !strings.HasSuffix(name, "_url") {
					v[name] = expect(inner)
					continue
				}
				for _, b := range bases {
					if s == b.Upstream || strings.HasPrefix(s, b.Upstream+"/") {
						v[name] = b.Local + s[len(b.Upstream):]
					}
				}
			}
		case []any:
			for i := range v {
				v[i] = expect(v[i])
			}
		}
		return v
	}
	rapid.Check(t, func(t *rapid.T) {
		in, err := json.Marshal(value(3).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		var before, after any
		_ = json.Unmarshal(in, &before)
		got := rewriteAll(string(in), rapid.IntRange(1, 40).Draw(t, "size"))
		if err := json.Unmarshal([]byte(got), &after); err != nil {
			t.Fatalf("invalid JSON: %v\n%s", err, got)
		}
		want, _ := json.Marshal(expect(before))
		have, _ := json.Marshal(after)
		if string(want) != string(have) {
			t.Errorf("from %s\ngot  %s\nwant %s", in, have, want)
		}
	})
}

func TestOnlyJSONIsRewritten(t *testing.T) {
	const body = `{"url":"https://api.example/x"}`
	for _, c := range []struct {
		header    http.Header
		rewritten bool
	}{
		{http.Header{"Content-Type": {"application/json; charset=utf-8"}}, true},
		{http.Header{"Content-Type": {"application/vnd.example+json"}}, true},
		{http.Header{"Content-Type": {"application/vnd.github.raw+json; charset=utf-8"}}, false},
		{http.Header{"Content-Type": {"text/plain"}}, false},
		{http.Header{}, false},
		{http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, false},
		{http.Header{"Content-Type": {"application/json"}, "Content-Digest": {"x"}}, false},
		{http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"private, no-transform"}}, false},
	} {
		h := Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			failIf(t, len(r.Header["Accept-Encoding"])+len(r.Header["Range"]) > 0, "the handler got %v", r.Header)
			for name, values := range c.header {
				w.Header()[name] = values
			}
			w.Header().Set("Content-Length", "31")
			w.Header().Set("Etag", `"a"`)
			_, _ = io.WriteString(w, body)
		}), bases)
		r := httptest.NewRequest("GET", "/x", nil)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("Range", "bytes=0-3")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want, etag, length := body, `"a"`, "31"
		if c.rewritten {
			want, etag, length = `{"url":"http://weir/x"}`, `W/"a"`, ""
		}
		got := w.Result()
		failIf(t, w.Body.String() != want || got.Header.Get("Etag") != etag || got.Header.Get("Content-Length") != length, "%v: got %s with %v", c.header, w.Body, got.Header)
		failIf(t, r.Header.Get("Range") == "", "the request of the server was changed")
	}
}
