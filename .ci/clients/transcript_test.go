package main

import (
	"net/http"
	"regexp"
	"slices"
	"testing"
)

func TestMaskReplacesChangingValues(t *testing.T) {
	p := &setup{address: "127.0.0.1:8443", service: "http://127.0.0.2:9000"}
	const a, b = "0123456789012345678901234567890123456789", "abcdefabcdefabcdefabcdefabcdefabcdefabcd"
	for name, c := range map[string]struct{ text, want string }{
		"addresses":                           {"https://127.0.0.1:8443/x of http://127.0.0.2:9000/x", "https://weir/x of http://api/x"},
		"equal hashes":                        {a + " " + b + " " + a, "sha-1 sha-2 sha-1"},
		"weak and strong validators":          {`W/"0123456789abcdef0123456789abcdef" "` + a + `xx"`, `etag-1 "` + a + `xx"`},
		"times":                               {"Sun, 22 Nov 2026 13:51:18 GMT; 1795359078; 2026-11-22 13:59:25.1 +0000 UTC m=+3.5, 5ms, 14s, 15 s", "DATE; TIME; DATE, N s, N s, N s"},
		"the search budget stays visible":     {"< X-Ratelimit-Remaining: 3\n< X-Ratelimit-Reset: 1795359078\n< X-Ratelimit-Resource: search", "< X-Ratelimit-Remaining: 3\n< X-Ratelimit-Reset: TIME\n< X-Ratelimit-Resource: search"},
		"the core budget is masked":           {"< X-Ratelimit-Remaining: 4993\n< X-Ratelimit-Reset: 1795359078\n< X-Ratelimit-Resource: core\n< X-Ratelimit-Used: 7", "< X-Ratelimit-Remaining: N\n< X-Ratelimit-Reset: TIME\n< X-Ratelimit-Resource: core\n< X-Ratelimit-Used: N"},
		"the lifetime of entries":             {"weir; hit; ttl=59 weir; fwd=uri-miss; stored; ttl=-1", "weir; hit; ttl=N weir; fwd=uri-miss; stored; ttl=N"},
		"a count of a scenario stays visible": {"pagination: 64 watchers", "pagination: 64 watchers"},
	} {
		if got := mask(c.text, p); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestMaskedHidesBudgetAfterRefusal(t *testing.T) {
	search := func(status int, remaining string) exchange {
		return exchange{status: status, got: http.Header{"X-Ratelimit-Resource": {"search"}, "X-Ratelimit-Remaining": {remaining}}}
	}
	text := client{}.masked("", []exchange{search(200, "3"), search(403, "0"), search(200, "2")}, &setup{address: "a:1", service: "http://b:2"})
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^< X-Ratelimit-Remaining: (.*)$`).FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	if want := []string{"3", "0", "N"}; !slices.Equal(got, want) {
		t.Errorf("got the budgets %q, want %q", got, want)
	}
}
