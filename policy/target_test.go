package policy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestFilesStayBelowTheirRoot checks paths of a host, which are otherwise forwarded byte for byte.
func TestFilesStayBelowTheirRoot(t *testing.T) {
	for path, passes := range map[string]bool{
		"/a/../b": true, "//a//b": true, "/a%2Fb%2f..": true, "/a/...": true, "/100%25/x": true, "/a/b/../..": true, "/..a/b": true, "/a/%2e%2e/b": true,
		"/..": false, "/../b": false, "/a/../../b": false, "/a/%2e%2e/%2E./b": false, "/a/..%2f..%2fb": false, "/a/%252e%252e/%252e%252e/b": false, "//../b": false,
		`/a/..\..\b`: false, "/a/..%5c..": false, "/a/..;x=1/..;/b": false, "/./../b": false,
		"/a%2fb/../x": true, "/a%2Fb/c/../../x": true, "/a%25zz/..": true, "/a%2fb/../../x": false, "/a%2Fb/%2e%2e/%2e%2e/x": false, "/a%252fb/../../x": false,
		"/a%5cb/../../x": false, `/a\b/../../x`: false, "/a%255Cb/%252e%252e/../x": false, "/a%2f..%2fb/../../x": false, "/..;%2fa%2fb": false,
		"/a/..;%2fb%2fc/../x": false, "/a%3bb%2fc/..%3b/..%3b": false, "/%25zz%252f..%252f..": false, "/%2f/../x": false,
	} {
		m, err := Files.Classify("GET", path, "")
		failIf(t, (err == nil) != passes || passes && m.Path != path, "%s: got %q, %v", path, m.Path, err)
	}
}

// TestClassifyNormalizesOrRefusesPaths covers attack 16 of docs/internals/attacks.md.
func TestClassifyNormalizesOrRefusesPaths(t *testing.T) {
	for _, c := range []struct{ name, path, want string }{ // an empty want is a refusal
		{"unreserved characters are decoded", "/%66eeds/%7Ex%2D%2e%5F%30", "/feeds/~x-._0"},
		{"escapes are in upper case", "/a%2bb%c3%a9", "/a%2Bb%C3%A9"},
		{"reserved characters are encoded", "/a;b,c=d@e:f!$&'()*+", "/a%3Bb%2Cc%3Dd%40e%3Af%21%24%26%27%28%29%2A%2B"},
		{"raw characters are encoded", "/é \"<>^`{|}[]", "/%C3%A9%20%22%3C%3E%5E%60%7B%7C%7D%5B%5D"},
		{"a question mark and a hash", "/a%3fb%23c", "/a%3Fb%23c"},
		{"a raw question mark and a hash", "/a?b#c", "/a%3Fb%23c"},
		{"a percent sign is decoded once", "/a%252e%252e", "/a%252e%252e"},
		{"a double-encoded slash", "/a%252fb", "/a%252fb"},
		{"a path parameter", "/user;x.js", "/user%3Bx.js"},
		{"a dot segment with a path parameter", "/a/..;/b", "/a/..%3B/b"},
		{"dots in a name", "/a/...b/..c/d..", "/a/...b/..c/d.."},
		{"three dots", "/...", "/..."},
		{"a trailing dot", "/feeds.", "/feeds."},
		{"a trailing slash", "/feeds/", "/feeds/"},
		{"the root", "/", "/"},
		{"an empty segment", "/a//b", "/a/b"},
		{"two slashes at the start", "//evil.test/a", "/evil.test/a"},
		{"slashes at the end", "/a///", "/a/"},
		{"slashes only", "///", "/"},

		{"a dot segment", "/repos/a/b/../../user", ""},
		{"an encoded dot segment", "/a/%2e%2e/b", ""},
		{"a partly encoded dot segment", "/a/.%2E/b", ""},
		{"a dot segment at the end", "/a/..", ""},
		{"a single dot", "/a/./b", ""},
		{"a single dot, encoded", "/a/%2e", ""},
		{"a dot segment after two slashes", "/a//../b", ""},
		{"an encoded empty segment", "/a/%2f/b", ""},
		{"an absolute target", "http://evil.test/a", ""},
		{"a backslash", `/a\..\b`, ""},
		{"an encoded backslash", "/a%5cb", ""},
		{"NUL", "/a%00", ""},
		{"a newline", "/a%0d%0aX-Evil:%201", ""},
		{"DEL", "/a%7f", ""},
		{"a raw control character", "/a\tb", ""},
		{"an overlong slash", "/a%c0%afb", ""},
		{"an overlong dot", "/%c0%ae%c0%ae/a", ""},
		{"an incomplete UTF-8 character", "/a%c3", ""},
		{"an encoded surrogate", "/%ed%a0%80", ""},
		{"an incomplete escape", "/a%4", ""},
		{"a single percent sign", "/a%", ""},
		{"an escape with invalid digits", "/a%zz", ""},
		{"a path without a slash", "a", ""},
		{"an asterisk", "*", ""},
		{"an empty path", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) { checkTarget(t, c.path, "", c.want, "") })
	}
}

// TestClassifyNormalizesOrRefusesQueries covers attack 17 of docs/internals/attacks.md.
func TestClassifyNormalizesOrRefusesQueries(t *testing.T) {
	many := strings.Repeat("a=&", 998)
	var mixed, a, b []string
	for i := range 50 {
		a, b = append(a, fmt.Sprintf("a=%d", i)), append(b, fmt.Sprintf("b=%d", i))
		mixed = append(mixed, b[i], a[i])
	}
	for _, c := range []struct{ name, query, want string }{
		{"parameters are sorted by name", "b=2&a=1", "a=1&b=2"},
		{"duplicates keep their order", "b=2&a=3&a=1&b=1", "a=3&a=1&b=2&b=1"},
		{"many duplicates keep their order", strings.Join(mixed, "&"), strings.Join(slices.Concat(a, b), "&")},
		{"array members keep their order", "x%5B%5D=2&x[]=1", "x%5B%5D=2&x%5B%5D=1"},
		{"names are decoded before the comparison", "%7a=1&y=2&a=3", "a=3&y=2&z=1"},
		{"a blank becomes a plus", "q=a%20b+c", "q=a+b+c"},
		{"a plus is encoded", "q=a%2bb", "q=a%2Bb"},
		{"unreserved characters are decoded", "q=%61%7e%2D", "q=a~-"},
		{"all other characters are encoded", "q=a:b/c?d@e!*'()", "q=a%3Ab%2Fc%3Fd%40e%21%2A%27%28%29"},
		{"escapes are in upper case", "q=%c3%a9", "q=%C3%A9"},
		{"raw characters are encoded", "q=é\"", "q=%C3%A9%22"},
		{"an equals sign in a value", "a=b=c", "a=b%3Dc"},
		{"a name without a value", "a&b=", "a=&b="},
		{"a value without a name", "=1&a=2", "=1&a=2"},
		{"empty parts", "&a=1&&b=2&", "a=1&b=2"},
		{"ampersands only", "&&", ""},
		{"a percent sign is decoded once", "a=%2526b", "a=%2526b"},
		{"an encoded ampersand is not a separator", "a=1%26b=2", "a=1%26b%3D2"},
		{"an encoded semicolon", "a=1%3bb", "a=1%3Bb"},
		{"a semicolon is no separator", "q=1;b=2", "q=1%3Bb%3D2"},
		{"an incomplete escape", "a=%4", "a=%254"},
		{"an invalid escape in a name", "%zz=1", "%25zz=1"},
		{"a percent sign at the end", "a=1&b=100%", "a=1&b=100%25"},
		{"a percent sign before an escape", "a=%%41", "a=%25A"},
		{"a hash", "a=1%23b", "a=1%23b"},
		{"1,000 parameters", "z=1&" + many + "b=2", many + "b=2&z=1"},

		{"1,001 parameters", many + "a=&b=2&z=1", "refused"},
		{"10,001 parameters", strings.Repeat("a=&", 10_000) + "page=2", "refused"},
		{"1,001 empty parts", strings.Repeat("&", 1000), "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := "/feeds"
			if c.want == "refused" {
				path = ""
			}
			checkTarget(t, "/feeds", c.query, path, strings.TrimSuffix(c.want, "refused"))
		})
	}
}

// A query that is canonical already must be the result of the general way, too.
func TestCanonicalQueriesStayUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, raw := range rapid.SliceOfN(rapid.StringMatching(`([ab]{0,2}=?[a1~%+ ]?&?){0,4}`), 20, 20).Draw(t, "queries") {
			values, err := url.ParseQuery(raw)
			if err != nil {
				continue
			}
			if got, err := canonicalQuery(raw); err != nil || got != values.Encode() {
				t.Fatalf("%q: got %q, %v; want %q", raw, got, err, values.Encode())
			}
		}
	})
}

// TestClassifyFoldsOnlyASCIILetters covers attack 18 of docs/internals/attacks.md.
func TestClassifyFoldsOnlyASCIILetters(t *testing.T) {
	for _, c := range []struct{ name, path, want, id string }{
		{"only ASCII letters are folded", "/orgs/ACM%C3%89/members", "/orgs/acm%C3%89/members", "organization-members/list"},
		{"the Kelvin sign is not k", "/orgs/%E2%84%AA/members", "/orgs/%E2%84%AA/members", "organization-members/list"},
		{"the long s is not s in a literal", "/feed%C5%BF", "/feed%C5%BF", "unknown"},
		{"a full-width slash is not a slash", "/user%EF%BC%8Fsubscriptions", "/user%EF%BC%8Fsubscriptions", "unknown"},
		{"a full-width dot is not a dot", "/%EF%BC%8E%EF%BC%8E/user", "/%EF%BC%8E%EF%BC%8E/user", "unknown"},
		{"Unicode is not normalized", "/users/e%CC%81/subscriptions", "/users/e%CC%81/subscriptions", "watching/list-of-user"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkTarget(t, c.path, "", c.want, "")
			id := classify(t, "GET", c.path).Operation.ID
			failIf(t, id != c.id, "got the operation %s, want %s", id, c.id)
		})
	}
}

// TestCanonicalFormsOfDifferentTargetsDiffer covers attack 21 of docs/internals/attacks.md. If two targets had the same form, two
// questions could share a cache key.
func TestCanonicalFormsOfDifferentTargetsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, target := range []string{
		"/x?a=1&b=2", "/x?a=1%26b=2", "/x?a=1%26b%3D2&b=", "/x?a%3D1=&b=2", "/x%3Fa=1?b=2", "/x%3Fa=1&b=2", "/x?a=1&b=2&b=", "/x?a=1+&b=2", "/x?a=1%2B&b=2",
		"/x/a?b", "/x?a/b", "/x%2523?", "/x%23?", "/x?ab=c", "/x?a=bc", "/x?a=b&c", "/x?a=1&a=2", "/x?a=2&a=1", "/x?a=1,2",
	} {
		m := classify(t, "GET", target)
		canonical := m.Path + "?" + m.Query
		previous, found := seen[canonical]
		failIf(t, found, "%s and %s have the same form %s", target, previous, canonical)
		seen[canonical] = target
	}
}

// checkTarget checks the canonical form of a target. An empty wantPath is a refusal.
func checkTarget(t *testing.T, path, query, wantPath, wantQuery string) {
	t.Helper()
	m, err := Embedded().Classify("GET", path, query)
	failIf(t, m.Path != wantPath || m.Query != wantQuery, "got %.80q %.80q (%v), want %.80q %.80q", m.Path, m.Query, err, wantPath, wantQuery)
	var refused *TargetError
	failIf(t, wantPath == "" && (!errors.As(err, &refused) || refused.Reason == "" || !strings.Contains(err.Error(), refused.Reason)), "got %v, want a TargetError with a reason", err)
	failIf(t, wantPath != "" && err != nil, "%v", err)
}

// checkCanonical returns an error if Classify changes its own canonical form, or if net/url parses that form
// differently. A refused target is no error.
func checkCanonical(path, query string) error {
	first, err := Embedded().Classify("GET", path, query)
	if err != nil {
		return nil
	}
	second, err := Embedded().Classify("GET", first.Path, first.Query)
	if err != nil {
		return fmt.Errorf("%q %q became %q %q, which is refused: %w", path, query, first.Path, first.Query, err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		return fmt.Errorf("%q %q: first (-), second call (+):\n%s", path, query, diff)
	}
	u, err := url.Parse("http://api.test" + first.Path + "?" + first.Query)
	if err != nil {
		return err
	}
	if u.EscapedPath() != first.Path || u.RawQuery != first.Query || u.Fragment != "" {
		return fmt.Errorf("net/url parses %q %q as %v", first.Path, first.Query, u)
	}
	values, err := url.ParseQuery(first.Query)
	if err != nil {
		return err
	}
	if values.Encode() != first.Query {
		return fmt.Errorf("net/url parses the query %q as %q", first.Query, values.Encode())
	}
	for segment := range strings.SplitSeq(u.Path[1:], "/") {
		if segment == "." || segment == ".." {
			return fmt.Errorf("%q became %q, which has a dot segment", path, first.Path)
		}
	}
	return nil
}

func TestClassifyKeepsCanonicalForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"/", "/repos/A/b/", "/repos/a/b/rules/branches/", "/orgs/", "/repositories/7/", ""}).Draw(t, "prefix")
		path := rapid.StringMatching(`([ -~é]|%2[EeFf5]|[./%;A]){0,20}`).Draw(t, "path")
		query := rapid.StringMatching(`([!-~é]|%[0-9A-Fa-f]{2}|[&=+]){0,20}`).Draw(t, "query")
		if err := checkCanonical(prefix+path, query); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, s := range [][2]string{
		{"/feeds", ""}, {"/repos/A/b/rules/branches/x%2Fy", "page=2&per_page=100"}, {"/%2e%2e/", "a=1;b"}, {"//", "%"},
		{"/\xc3\xa9\x00", "&&="}, {"/search/code", "q=a+b%20c"}, {"/repos/a/b/branches/x%2F", "a=%7E"}, {"/%25%32%65", "=&="},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		err := checkCanonical(path, query)
		failIf(t, err != nil, "%v", err)
	})
}

// respell returns text with random escapes that do not change its meaning.
func respell(t *rapid.T, text, escaped string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case strings.IndexByte(escaped, c) < 0 && escape(text[i:i+1]) != text[i:i+1] || !rapid.Bool().Draw(t, "escape"):
			b.WriteByte(c)
		case rapid.Bool().Draw(t, "upper case"):
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

func TestEquivalentTargetsHaveOneCanonicalForm(t *testing.T) {
	const mayBeEscaped = "!$'()*,:@"
	rapid.Check(t, func(t *rapid.T) {
		path := "/repos/acme/widgets/" + rapid.StringMatching(`x[a-z0-9._~!$&'()*,:@-]{0,10}`).Draw(t, "path")
		names := rapid.SliceOfN(rapid.StringMatching(`[a-z\[\]]{1,3}`), 0, 4).Draw(t, "names")
		var parts []string
		for _, name := range names {
			parts = append(parts, name+"="+rapid.StringMatching(`[a-z0-9!$'()*,:@ é]{0,5}`).Draw(t, "value"))
		}
		slices.SortStableFunc(parts, func(a, b string) int { return strings.Compare(strings.Split(a, "=")[0], strings.Split(b, "=")[0]) })
		query := strings.ReplaceAll(strings.Join(parts, "&"), " ", "+")

		want, err := Embedded().Classify("GET", path, query)
		if err != nil {
			t.Fatal(err)
		}
		otherPath, otherQuery := respell(t, path, mayBeEscaped), respell(t, query, mayBeEscaped+"é[]")
		got, err := Embedded().Classify("GET", otherPath, otherQuery)
		if err != nil || got.Path != want.Path || got.Query != want.Query || got.Operation.ID != want.Operation.ID {
			t.Fatalf("%s?%s became %s?%s, and %s?%s became %s?%s (%v)", path, query, want.Path, want.Query, otherPath, otherQuery, got.Path, got.Query, err)
		}
	})
}
