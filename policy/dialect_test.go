package policy

import (
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// dialect loads a dialect, and fails the test if the dialect does not exist.
func dialect(t *testing.T, name string) *Dialect {
	t.Helper()
	d, err := LoadDialect(name)
	noError(t, err)
	return d
}

func TestLoadDialectRefusesUnknownNames(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		wantEqual(t, "name", name, dialect(t, name).Name)
	}
	for _, name := range []string{"", "GitHub", "gitlab"} {
		_, err := LoadDialect(name)
		want := `unknown dialect "` + name + `"; use one of github, service`
		failIf(t, err == nil || err.Error() != want, "%q: got %v, want %s", name, err, want)
	}
}

func TestDialectIsThatOfTheAPI(t *testing.T) {
	for base, want := range map[string]string{
		"https://api.github.com":           "github, the host api.github.com, true",
		"https://API.GitHub.com/":          "github, the host api.github.com, true",
		"https://api.octocorp.ghe.com":     "github, the host api.octocorp.ghe.com, true",
		"https://ghe.com.attacker.example": "service, , false",
		"https://notghe.com":               "service, , false",
		"https://git.example.org/api/v3":   "github, the path /api/v3, false",
		"https://git.example.org/api/v3/":  "github, the path /api/v3, false",
		"https://git.example.org/api/v30":  "service, , false",
		"https://api.example.com/api/v3":   "github, the path /api/v3, false",
		"http://127.0.0.1:9000":            "service, , false",
	} {
		u, err := url.Parse(base)
		noError(t, err)
		name, reason, certain := DialectOf(u)
		wantEqual(t, base, want, fmt.Sprintf("%s, %s, %t", name, reason, certain))
	}
	wantEqual(t, "response of GitHub", "github", DialectOfResponse(http.Header{"X-Github-Request-Id": {"1"}}))
	wantEqual(t, "response of the service", "service", DialectOfResponse(http.Header{"X-Service-Request-Id": {"1"}}))
	wantEqual(t, "response of another API", "", DialectOfResponse(http.Header{}))
}

func TestDialectsSetAllFields(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		checkComplete(t, name, reflect.ValueOf(*dialect(t, name)))
	}
}

// checkComplete fails the test for each field without a value.
func checkComplete(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		field := path + "." + v.Type().Field(i).Name
		switch f := v.Field(i); {
		case f.Kind() == reflect.Struct:
			checkComplete(t, field, f)
		case f.Kind() == reflect.Bool: // false is a value
		case f.Kind() == reflect.Map:
			// Documents A and B define no token prefixes.
		case f.IsZero():
			t.Errorf("%s is empty", field)
		}
	}
}

func TestServiceDialectMatchesDocuments(t *testing.T) {
	texts := documents(t)
	d := dialect(t, "service")
	var want []string
	for _, row := range tableRows("B", texts["B"]) {
		if header := row.cells["Header"]; row.section == "B 6.1" && strings.HasPrefix(header, "X-Service-") {
			want = append(want, header)
		}
	}
	got := []string{d.Webhook.HookID, d.Webhook.Event, d.Webhook.Delivery, d.Webhook.TargetType, d.Webhook.TargetID}
	wantEqual(t, "webhook headers", want, got)
	agent := statement(t, texts["B"], "User-Agent \\| always begins with `([^`]*)`")
	failIf(t, d.Webhook.UserAgent != agent, "got the User-Agent %q for deliveries, want %q", d.Webhook.UserAgent, agent)
	header, version := documentedVersion(t, texts["A"])
	failIf(t, d.VersionHeader != header || d.Version != version, "got the field %s: %s, want %s: %s", d.VersionHeader, d.Version, header, version)
	vendor := statement(t, texts["A"], "the value `application/vnd\\.(\\w+)\\+json` is recommended")
	failIf(t, d.Vendor != vendor, "got the vendor %q, want %q", d.Vendor, vendor)
	field := d.SecurityBot + "_alerts"
	failIf(t, !strings.Contains(texts["A"], "| "+field+" |"), "the documents have no field %q", field)
}

// documentedVersion returns the header that selects the API version, and its value.
func documentedVersion(t *testing.T, text string) (header, version string) {
	t.Helper()
	return statement(t, text, "Header `([^`]*)` \\| selects the API version"),
		statement(t, text, "selects the API version; the version value used throughout is `([^`]*)`")
}

func TestGitHubDialectNames(t *testing.T) {
	d := dialect(t, "github")
	wantEqual(t, "version header, vendor and bot", []string{"X-GitHub-Api-Version", "github", "dependabot"}, []string{d.VersionHeader, d.Vendor, d.SecurityBot})
	h := d.Webhook
	wantEqual(t, "webhook headers", []string{
		"X-GitHub-Event", "X-GitHub-Delivery", "X-GitHub-Hook-ID", "GitHub-Hookshot/", "X-GitHub-Hook-Installation-Target-Type", "X-GitHub-Hook-Installation-Target-ID",
	}, []string{h.Event, h.Delivery, h.HookID, h.UserAgent, h.TargetType, h.TargetID})
}

// TestMessagesDistinguishPrimaryAndSecondary checks the texts by which existing clients distinguish a primary from a
// secondary refusal.
func TestMessagesDistinguishPrimaryAndSecondary(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		m := dialect(t, name).Messages
		failIf(t, !strings.HasPrefix(m.Primary, "API rate limit exceeded") || strings.Contains(m.Primary, "secondary"), "%s: got the primary message %q", name, m.Primary)
		failIf(t, !strings.HasPrefix(m.Secondary, "You have exceeded a secondary rate limit") || !strings.HasSuffix(m.Secondary, "Please wait a few minutes before you try again."), "%s: got the secondary message %q", name, m.Secondary)
	}
}

func TestKindDependsOnSchemeAndTokenPrefix(t *testing.T) {
	for _, c := range []struct {
		dialect, scheme, credential string
		want                        CallerKind
	}{
		{"service", "Bearer", "abc", User},
		{"service", "token", "ghs_abc", User},
		{"service", "Basic", "b2F1dGg6c2VjcmV0", OAuthApp},
		{"github", "basic", "b2F1dGg6c2VjcmV0", OAuthApp},
		{"github", "Bearer", "ghp_abc", User},
		{"github", "token", "gho_abc", User},
		{"github", "Bearer", "ghu_abc", User},
		{"github", "Bearer", "github_pat_abc", User},
		{"github", "Bearer", "ghs_abc", Installation},
		{"github", "Bearer", "xghs_abc", User},
		{"github", "Bearer", "", User},
	} {
		wantEqual(t, c.dialect+": "+c.scheme+" "+c.credential, c.want, dialect(t, c.dialect).Kind(c.scheme, c.credential))
	}
}

func TestAcceptReturnsEmptyForPlainMediaTypes(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		for _, plain := range [][]string{
			nil, {""}, {"*/*"}, {"application/json"}, {"application/vnd." + name + "+json"}, {"application/vnd." + name + ".v3+json"},
			{" application/json ,\t*/*"}, {"application/json", "", "*/*"},
		} {
			wantEqual(t, fmt.Sprintf("%q", plain), "", dialect(t, name).Accept(plain))
		}
	}
}

// TestAcceptKeepsDifferentRepresentationsApart covers attack 22 of docs/internals/attacks.md. Two values that an upstream may
// answer differently must have different forms.
func TestAcceptKeepsDifferentRepresentationsApart(t *testing.T) {
	d := dialect(t, "service")
	seen := map[string]string{"": "application/json"}
	for _, accept := range []string{
		"application/vnd.service.raw+json", "application/vnd.service.raw", "application/vnd.service.text-match+json", "application/atom+xml", "text/html",
		"application/vnd.github+json", "application/vnd.service.v4+json", "application/json;q=0.5", "application/json; charset=utf-8",
		"application/json, application/vnd.service.raw+json", // an upstream may use the first type that it supports
		"application/vnd.service.raw+json, application/json",
		"application/vnd.service.ra w+json", // malformed: an upstream may ignore the type
		"application/vnd.service.RAW+json",  // an upstream may accept lower case only
	} {
		form := d.Accept([]string{accept})
		previous, found := seen[form]
		failIf(t, found, "%q and %q have the same form %q", accept, previous, form)
		seen[form] = accept
	}
	lines := d.Accept([]string{"text/html", "application/json"})
	list := d.Accept([]string{"text/html , application/json"})
	failIf(t, lines != list, "two lines: got %q, one list: got %q; want the same", lines, list)
}
