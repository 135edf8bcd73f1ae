package service_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }

// documentedRecords are the records of objects in the response to the last successful call of an operation, by the path
// of the object.
var documentedRecords = map[string]map[string]string{
	"code-security/create-configuration": {"": testservers.ConfigurationSchema, "dependency_graph_autosubmit_action_options": "labeled_runners:bool"},
	"code-security/get-configuration":    {"": testservers.ConfigurationSchema},
	"code-security/list-configurations":  {"0": testservers.ConfigurationSchema, "0.dependency_graph_autosubmit_action_options": "labeled_runners:bool"},
	"code-security/list-defaults": {
		"0": "default_for_new_repos:string configuration:{}", "0.configuration": testservers.ConfigurationSchema, "1.configuration": testservers.ConfigurationSchema,
	},
	"codes-of-conduct/get":  {"": "key:string name:string url:string html_url:string body:string"},
	"codes-of-conduct/list": {"0": "key:string name:string url:string html_url:string"},
	"dependency-graph/export-sbom": {
		"": "sbom:{}", "sbom.creationInfo": "created:time creators:[]string",
		"sbom": `SPDXID:string spdxVersion:string creationInfo:{} name:string dataLicense:string documentDescribes:[]string
			documentNamespace:string packages:[]{}`,
		"sbom.packages.0": `SPDXID:string name:string versionInfo:string downloadLocation:string licenseConcluded:string licenseDeclared:string
			copyrightText:string filesAnalyzed:bool`,
	},
	"feeds/get": {
		"": testservers.FeedsSchema, "_links": testservers.FeedLinksSchema,
		"_links.current_user": "href:string type:string", "_links.current_user_organizations.0": "href:string type:string",
	},
	"git-tags/create": {
		"": testservers.TagSchema, "tagger": "name:string email:string date:time", "object": "type:string sha:string url:string",
		"verification": "verified:bool reason:string signature:string? payload:string?",
	},
	"git-tags/get":           {"": testservers.TagSchema},
	"gitignore/get-template": {"": "name:string source:string"},
	"migrations/list-organization": {
		"0": testservers.MigrationSchema, "0.owner": testservers.UserSchema, "0.repositories.0": testservers.MigratedSchema,
		"0.repositories.0.license": testservers.LicenseSchema,
	},
	"migrations/list-user":                         {"0": testservers.MigrationSchema, "0.owner": testservers.UserSchema, "0.repositories.0": testservers.MigratedSchema},
	"migrations/start-organization":                {"": testservers.MigrationSchema, "owner": testservers.UserSchema, "repositories.0": testservers.MigratedSchema},
	"migrations/start-user":                        {"": testservers.MigrationSchema, "owner": testservers.UserSchema, "repositories.0": testservers.MigratedSchema},
	"organization-members/create-invitation":       {"": testservers.NewInvitationSchema, "inviter": testservers.UserSchema},
	"organization-members/list":                    {"0": testservers.UserSchema},
	"organization-members/list-failed-invitations": {"0": testservers.InvitationSchema, "0.inviter": testservers.UserSchema},
	"organization-members/list-invitation-teams":   {"0": testservers.TeamSchema},
	"organization-members/list-invitations":        {"0": testservers.InvitationSchema, "0.inviter": testservers.UserSchema},
	"organization-roles/get":                       {"": testservers.RoleSchema, "organization": testservers.OrganizationSchema},
	"organization-roles/list": {
		"": "total_count:int roles:[]{}", "roles.0": testservers.RoleSchema, "roles.0.organization": testservers.UserSchema,
	},
	"organization-roles/list-teams": {"0": testservers.TeamSchema},
	"rate-limit/get":                {"": "resources:{} rate:{}", "rate": testservers.RateLimitSchema, "resources.core": testservers.RateLimitSchema},
	"rulesets/create-organization": {
		"": testservers.NewRulesetSchema, "conditions.repository_property.include.0": "name:string property_values:[]string source:string",
	},
	"rulesets/create-repository": {"": testservers.NewRulesetSchema},
	"rulesets/list-branch-rules": {"0": "type:string ruleset_source_type:string ruleset_source:string ruleset_id:int parameters:{}"},
	"rulesets/list-organization": {"0": testservers.RulesetSchema},
	"rulesets/list-repository":   {"0": testservers.RulesetSchema, "0._links": "self:{} html:{}"},
	"search/code": {
		"": testservers.SearchSchema, "items.0.repository": testservers.FoundRepositorySchema, "items.0.repository.owner": testservers.UserSchema,
		"items.0": "name:string path:string sha:string url:string git_url:string html_url:string repository:{} score:number",
	},
	"search/commits":             {"": testservers.SearchSchema},
	"search/issues":              {"": testservers.SearchSchema},
	"search/other":               {"": testservers.SearchSchema},
	"statistics/commit-activity": {"0": "days:[]int total:int week:int"},
	"statistics/contributors": {
		"0": "author:{} total:int weeks:[]{}", "0.author": testservers.UserSchema, "0.weeks.0": "w:int a:int d:int c:int",
	},
	"statistics/participation":  {"": "all:[]int owner:[]int"},
	"watching/get-subscription": {"": testservers.SubscriptionSchema},
	"watching/list-mine": {
		"0": testservers.RepositorySchema, "0.owner": testservers.UserSchema, "0.permissions": "admin:bool push:bool pull:bool",
		"0.security_and_analysis":                 "advanced_security:{} secret_scanning:{} secret_scanning_push_protection:{} secret_scanning_non_provider_patterns:{}",
		"0.security_and_analysis.secret_scanning": "status:string",
	},
	"watching/list-of-user":     {"0": testservers.RepositorySchema},
	"watching/list-subscribers": {"0": testservers.UserSchema},
	"watching/set-subscription": {"": testservers.SubscriptionSchema},
}

// callTest sends documented calls to a service.
type callTest struct {
	*testing.T
	service *service.Service
	names   *strings.Replacer
}

// send sends a call, and repeats it while the status is 202.
func (t *callTest) send(call testservers.Call, names *strings.Replacer) *httptest.ResponseRecorder {
	t.Helper()
	for {
		r, err := call.Request("http://api.test", names)
		noError(t, err)
		w := httptest.NewRecorder()
		if t.service.ServeHTTP(w, r); w.Code != http.StatusAccepted {
			return w
		}
		time.Sleep(2 * time.Second)
	}
}

// with sends a call with another header field.
func (t *callTest) with(call testservers.Call, name, value string) *httptest.ResponseRecorder {
	call.Name, call.Value = name, value
	return t.send(call, t.names)
}

// TestEveryCallIsAnsweredAsDocumented sends the documented calls of every operation. For reads, it also checks the
// conventions of Document A, section 1. The catalogue must contain at least one successful call of each operation, and a
// refused call if its path has parameters.
func TestEveryCallIsAnsweredAsDocumented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialect := testservers.Must(policy.LoadDialect("service"))
		limits := policy.DefaultLimits()
		limits.Primary.Unauthenticated = 1000
		c := &callTest{T: t, service: testservers.Must(service.New(service.Config{Limits: limits, Seed: 1, Dialect: dialect}))}
		defer c.service.Close()
		c.names = testservers.CallNames(func(call testservers.Call, names *strings.Replacer) string { return c.send(call, names).Body.String() })
		all := testservers.Calls()
		operations := append(slices.Clone(policy.Embedded().Operations()), &policy.Operation{ID: "unknown"})
		slices.SortFunc(operations, func(a, b *policy.Operation) int { return strings.Compare(a.ID, b.ID) })
		for _, op := range operations {
			calls, last := all[op.ID], -1
			for i, call := range calls {
				if call.Status < 400 {
					last = i
				}
			}
			failIf(t, last < 0 || op.Section != "" && strings.Contains(op.Path, "{") && last == len(calls)-1, "%s has no successful or no refused call in %v", op.ID, calls)
			for i, call := range calls {
				w := c.send(call, c.names)
				at := fmt.Sprintf("%s: call %d as %q", op.ID, i, call.As)
				c.checkResponse(at, op, call, w)
				if i != last {
					continue
				}
				for path, record := range documentedRecords[op.ID] {
					differences := testservers.SchemaDifferences(record, objectAt(w.Body.Bytes(), path))
					failIf(t, differences != "", "%s, at %q:\n%s", at, path, differences)
				}
				if op.Known() && op.Safe() {
					c.checkRead(op, call, w)
				}
			}
			time.Sleep(time.Minute) // a new search window
		}
	})
}

// checkResponse checks the status, the header, and the field that the body of a refusal names.
func (t *callTest) checkResponse(at string, op *policy.Operation, call testservers.Call, w *httptest.ResponseRecorder) {
	t.Helper()
	failIf(t, w.Code != call.Status, "%s: %d %.300s, want %d", at, w.Code, w.Body, call.Status)
	documented := slices.Concat(op.Success, op.Errors, []int{400, 401, 403, 404, 422})
	failIf(t, len(op.Success) > 0 && call.Method == op.Method && !slices.Contains(documented, w.Code), "%s: status %d is not documented: %v", at, w.Code, documented)
	kind := w.Header().Get("Content-Type")
	failIf(t, (kind == "") != (w.Body.Len() == 0) && call.Method != http.MethodHead, "%s: Content-Type %q of a body of %d bytes", at, kind, w.Body.Len())
	failIf(t, w.Code != 401 && w.Code != 400 && w.Header().Get("X-Ratelimit-Limit") == "", "%s: no x-ratelimit-limit", at)
	if w.Code < 400 {
		return
	}
	var problem struct {
		Message string
		Errors  []struct{ Field string }
	}
	err := json.Unmarshal(w.Body.Bytes(), &problem)
	failIf(t, err != nil || problem.Message == "", "%s: %s: no message (%v)", at, w.Body, err)
	failIf(t, call.Field != "" && (len(problem.Errors) == 0 || problem.Errors[0].Field != call.Field), "%s: %s does not name %s", at, w.Body, call.Field)
}

// objectAt returns the object at a path of names and indices in a JSON text, or nil.
func objectAt(text []byte, path string) (object map[string]any) {
	var v any
	_ = json.Unmarshal(text, &v) // without an object, the record differs
	for step := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case []any:
			if n, err := strconv.Atoi(step); err == nil && n < len(in) {
				v = in[n]
			}
		case map[string]any:
			if step != "" {
				v = in[step]
			}
		}
	}
	object, _ = v.(map[string]any)
	return object
}

// checkRead repeats a read with other methods, versions, validators and pages.
func (t *callTest) checkRead(op *policy.Operation, call testservers.Call, want *httptest.ResponseRecorder) {
	t.Helper()
	head, options := call, call
	head.Method, options.Method = http.MethodHead, http.MethodOptions
	got := t.send(head, t.names)
	for _, name := range []string{"Content-Type", "Etag", "Last-Modified", "Link", "Location", "X-Service-Media-Type", "X-Ratelimit-Limit", "X-Ratelimit-Resource"} {
		if got.Code != want.Code || got.Header().Get(name) != want.Header().Get(name) {
			t.Errorf("%s: GET %d with %s %q, HEAD %d with %q", op.ID, want.Code, name, want.Header().Get(name), got.Code, got.Header().Get(name))
		}
	}
	if got := t.send(options, t.names); got.Code != http.StatusNoContent {
		t.Errorf("%s: status %d for OPTIONS", op.ID, got.Code)
	}
	if got := t.with(call, "X-Service-Api-Version", "2022-11-28"); got.Code >= 400 {
		t.Errorf("%s: status %d for the documented version", op.ID, got.Code)
	}
	if got := t.with(call, "X-Service-Api-Version", "1999-01-01"); got.Code != 400 {
		t.Errorf("%s: status %d for another version", op.ID, got.Code)
	}
	etag := want.Header().Get("Etag")
	failIf(t, (etag == "") == (want.Code == http.StatusOK), "%s: %d has ETag %q", op.ID, want.Code, etag)
	if etag != "" && op.ID != "rate-limit/get" { // its ETag changes with each request
		if got := t.with(call, "If-None-Match", `"another", `+etag); got.Code != http.StatusNotModified || got.Body.Len() > 0 {
			t.Errorf("%s: status %d for If-None-Match with its ETag: %q", op.ID, got.Code, got.Body)
		}
		modified := want.Header().Get("Last-Modified")
		failIf(t, modified != "" && t.with(call, "If-Modified-Since", modified).Code != http.StatusNotModified, "%s: If-Modified-Since with its Last-Modified gets no 304", op.ID)
	}
	if op.Paged() {
		t.checkPages(op, call, len(t.items(want)))
	}
}

// checkPages checks per_page, and the absolute URL of the next page in Link.
func (t *callTest) checkPages(op *policy.Operation, call testservers.Call, all int) {
	t.Helper()
	page := func(parameter string) *httptest.ResponseRecorder {
		paged := call
		path, query, _ := strings.Cut(call.Target, "?")
		values := testservers.Must(url.ParseQuery(query))
		values.Del("page")
		values.Del("per_page")
		paged.Target = path + "?" + strings.TrimPrefix(values.Encode()+"&"+parameter, "&")
		return t.send(paged, t.names)
	}
	first := page("per_page=1")
	if got := len(t.items(first)); got != min(1, all) {
		t.Errorf("%s: %d items with per_page=1", op.ID, got)
	}
	if all < 2 {
		return
	}
	link := first.Header().Get("Link")
	next, _, found := strings.Cut(strings.TrimPrefix(link, "<http://api.test"), ">; rel=\"next\"")
	if !found || !strings.HasPrefix(link, "<http://api.test/") {
		t.Errorf("%s: Link %q of the first page has no next page", op.ID, link)
		return
	}
	call.Target = next
	second := t.send(call, t.names)
	if got := len(t.items(second)); got != 1 || !strings.Contains(second.Header().Get("Link"), `rel="prev"`) || second.Body.String() == first.Body.String() {
		t.Errorf("%s: %s has %d items and Link %q", op.ID, next, got, second.Header().Get("Link"))
	}
	got := len(t.items(page("per_page=101")))
	failIf(t, got > 100, "%s: %d items on a page", op.ID, got)
}

// items returns the items of a list, or of the only list in an object.
func (t *callTest) items(w *httptest.ResponseRecorder) []any {
	t.Helper()
	var v any
	err := json.Unmarshal(w.Body.Bytes(), &v)
	failIf(t, err != nil, "%.200s: %v", w.Body, err)
	if object, ok := v.(map[string]any); ok {
		for _, member := range object {
			if list, ok := member.([]any); ok {
				return list
			}
		}
	}
	list, _ := v.([]any)
	return list
}
