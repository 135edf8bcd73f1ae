package proxy

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/secrets"
)

// These expressions define what the scanners for secrets and tags accept.
var (
	credentialShape = regexp.MustCompile(`gh[a-z]_|github_pat_|weir_`)
	tagShape        = regexp.MustCompile(`^[A-Za-z0-9._/:@-]{1,64}$`)
	credentialInTag = regexp.MustCompile(`(gh[a-z]_|github_pat_|weir_)[A-Za-z0-9]{16}`)
)

func TestScannersEqualTheirExpressions(t *testing.T) {
	// The parts are the prefixes, almost prefixes, and almost enough characters.
	const part = `(gh[az]_|gh[{A_]_|gh|github_pat_|github|_pat_|weir_|weir|_|[A-Za-z0-9]{15,16}|[A-Za-z0-9]{1,4}|[-._/:@]|[ \n\x00é,])`
	op := policy.Embedded().Operation("watching/list-of-user")
	credential := rapid.OneOf(rapid.StringMatching(part+`{0,6}`), rapid.StringMatching(`(Bearer|Basic) `+part+`{1,6}`))
	check := func(t rapid.TB, text string, header http.Header) {
		t.Helper()
		if got, want := secrets.IsTag(text), tagShape.MatchString(text) && !credentialInTag.MatchString(text); got != want {
			t.Fatalf("%q is a tag: %v, want %v", text, got, want)
		}
		ex := &exchange{question: &question{match: policy.Match{Operation: op, Path: "/" + text}}, record: &record.Record{}, in: &http.Request{Header: header}}
		if got, want := ex.maskedPath(), maskByExpression(ex.question.match.Path, header); got != want {
			t.Fatalf("%s with %v is masked as %s, want %s", ex.question.match.Path, header, got, want)
		}
	}
	for _, n := range []int{0, 1, 64, 65, secrets.MaxText, secrets.MaxText + 1} {
		check(t, strings.Repeat("x", n), nil)
	}
	rapid.Check(t, func(rt *rapid.T) {
		header := http.Header{"Authorization": rapid.SliceOfN(credential, 0, 2).Draw(rt, "Authorization"), "Cookie": rapid.SliceOfN(credential, 0, 2).Draw(rt, "Cookie")}
		for _, text := range rapid.SliceOfN(rapid.StringMatching(part+`{0,4}`), 20, 20).Draw(rt, "texts") {
			check(rt, text, header)
		}
		for _, values := range header {
			for _, value := range values {
				_, value, _ := strings.Cut(value, " ")
				check(rt, "x/"+value[rapid.IntRange(0, len(value)).Draw(rt, "from"):], header)
			}
		}
	})
}

func maskByExpression(path string, header http.Header) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		secret := len(s) > secrets.MaxText || credentialShape.MatchString(s)
		for _, values := range header {
			for _, value := range values {
				if _, credential, ok := strings.Cut(value, " "); ok {
					value = credential
				}
				secret = secret || len(value) >= secrets.MinPart && strings.Contains(s, value) || len(s) >= secrets.MinPart && strings.Contains(value, s)
			}
		}
		if secret {
			segments[i] = secrets.Masked
		}
	}
	return strings.Join(segments, "/")
}
