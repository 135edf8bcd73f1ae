package policy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// dialect loads a dialect, and fails the test if the dialect does not exist.
func dialect(t *testing.T, name string) *Dialect {
	t.Helper()
	d, err := LoadDialect(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLoadDialectRefusesUnknownNames(t *testing.T) {
	for _, name := range []string{"service", "github"} {
		wantEqual(t, "name", name, dialect(t, name).Name)
	}
	for _, name := range []string{"", "GitHub", "gitlab"} {
		_, err := LoadDialect(name)
		if want := `unknown dialect "` + name + `"; use one of github, service`; err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", name, err, want)
		}
	}
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
	if agent := statement(t, texts["B"], "User-Agent \\| always begins with `([^`]*)`"); d.Webhook.UserAgent != agent {
		t.Errorf("got the User-Agent %q for deliveries, want %q", d.Webhook.UserAgent, agent)
	}
	header, version := documentedVersion(t, texts["A"])
	if d.VersionHeader != header || d.Version != version {
		t.Errorf("got the field %s: %s, want %s: %s", d.VersionHeader, d.Version, header, version)
	}
	if vendor := statement(t, texts["A"], "the value `application/vnd\\.(\\w+)\\+json` is recommended"); d.Vendor != vendor {
		t.Errorf("got the vendor %q, want %q", d.Vendor, vendor)
	}
	if field := d.SecurityBot + "_alerts"; !strings.Contains(texts["A"], "| "+field+" |") {
		t.Errorf("the documents have no field %q", field)
	}
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
		if !strings.HasPrefix(m.Primary, "API rate limit exceeded") || strings.Contains(m.Primary, "secondary") {
			t.Errorf("%s: got the primary message %q", name, m.Primary)
		}
		if !strings.HasPrefix(m.Secondary, "You have exceeded a secondary rate limit") || !strings.HasSuffix(m.Secondary, "Please wait a few minutes before you try again.") {
			t.Errorf("%s: got the secondary message %q", name, m.Secondary)
		}
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
		if previous, found := seen[form]; found {
			t.Errorf("%q and %q have the same form %q", accept, previous, form)
		}
		seen[form] = accept
	}
	lines := d.Accept([]string{"text/html", "application/json"})
	if list := d.Accept([]string{"text/html , application/json"}); lines != list {
		t.Errorf("two lines: got %q, one list: got %q; want the same", lines, list)
	}
}
