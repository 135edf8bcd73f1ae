package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// operations returns the operations of the catalogue and the unknown operation, sorted by ID.
func operations() []*policy.Operation {
	unknown, err := policy.Embedded().Classify(http.MethodGet, "/nowhere", "")
	if err != nil {
		panic(err)
	}
	all := append(slices.Clone(policy.Embedded().Operations()), unknown.Operation)
	slices.SortFunc(all, func(a, b *policy.Operation) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// seedNames returns values for the parameters in paths and bodies.
func seedNames(t *testing.T, direct, through *client) *strings.Replacer {
	t.Helper()
	found := direct.do(t, policy.Embedded().Operation("search/commits"), call{target: "/search/commits?q=repo:acme/widgets&per_page=1"}, strings.NewReplacer())
	head := regexp.MustCompile(`[0-9a-f]{40}`).FindString(found.Body)
	known := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{head}", head)
	tag := call{as: "tok-member", body: `{"tag":"v9","message":"m","object":"{head}","type":"commit","tagger":{"name":"a","email":"b","date":"2000-01-01T00:00:00Z"}}`}
	create := policy.Embedded().Operation("git-tags/create")
	made := direct.do(t, create, tag, known)
	through.do(t, create, tag, known)
	var object struct{ SHA string }
	if err := json.Unmarshal([]byte(made.Body), &object); err != nil || object.SHA == "" {
		t.Fatalf("create a tag: got %d %s", made.Status, made.Body)
	}
	return strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-member", "{name}", "Go",
		"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{code}", "abc", "{role_id}", "1", "{configuration_id}", "1", "{invitation_id}", "1", "{team_slug}", "builders", "{head}", head, "{tag_sha}", object.SHA)
}

// TestGatewayRespondsLikeService sends valid, invalid and unauthorized calls of every
// operation to the service, and to a gateway in front of an identical service.
func TestGatewayRespondsLikeService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := startPair(t)
		named := seedNames(t, direct, through)
		for _, op := range operations() {
			v := calls[op.ID]
			for i, call := range slices.Concat(v.valid, v.invalid, v.unauthorized, unauthorized(op)) {
				at := fmt.Sprintf("%s: call %d as %q", op.ID, i, call.as)
				if call.status == 0 {
					call.status = cmp.Or(op.Success...)
				}
				want := direct.do(t, op, call, named)
				checkAnswer(t, at, op, call, want)
				if i == len(v.valid)-1 {
					checkRecords(t, at, v.records, want.Body)
				}
				compare(t, at, op, call, want, func() answer { return through.do(t, op, call, named) })
			}
			time.Sleep(20 * time.Second) // a new search window
		}
	})
}

// unauthorized returns calls that the catalogue refuses: bad credentials, missing credentials,
// and kinds of tokens that are not accepted.
func unauthorized(op *policy.Operation) []call {
	target := op.Path
	if slices.ContainsFunc(op.Query, func(p policy.Parameter) bool { return p.Required }) {
		target += "?q=gear" // the service checks required parameters before the token
	}
	all := []call{{as: "wrong-token", target: target, status: http.StatusUnauthorized}}
	if op.Auth != "optional" {
		all = append(all, call{status: http.StatusUnauthorized})
	}
	tokens := map[string]string{"app_user": "tok-app-user", "installation": "tok-app", "fine_grained": "tok-fine-grained"}
	for _, kind := range op.Refuses {
		all = append(all, call{as: tokens[kind], status: http.StatusForbidden})
	}
	return all
}

// compare sends a call through the gateway and compares the response. A read is sent twice, because the second response
// may come from the cache.
func compare(t *testing.T, at string, op *policy.Operation, call call, want answer, send func() answer) {
	t.Helper()
	if want.Status == http.StatusUnauthorized && (op.Cache.Class == policy.Shared || op.ID == "rate-limit/get") {
		return // the gateway serves shared responses and the rate limit without authentication
	}
	attempts := []string{"first", "again"}
	if method := cmp.Or(call.method, op.Method); method != http.MethodGet && method != http.MethodHead {
		attempts = attempts[:1] // a write may have an effect only once
	}
	for _, attempt := range attempts {
		got := send()
		allowDifferences(op.ID, &want, &got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s, %s: direct (-), through the gateway (+):\n%s", at, attempt, diff)
		}
	}
}

// checkAnswer compares a response with the documentation of the operation.
func checkAnswer(t *testing.T, at string, op *policy.Operation, call call, got answer) {
	t.Helper()
	if got.Status != call.status {
		t.Errorf("%s: %d %.300s, want %d", at, got.Status, got.Body, call.status)
	}
	listed := slices.Concat(op.Success, op.Errors, []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity})
	if len(op.Success) > 0 && call.method == "" && !slices.Contains(listed, got.Status) {
		t.Errorf("%s: status %d is not documented: %v", at, got.Status, listed)
	}
	checkFields(t, at, call, got)
}

// checkFields checks the header, and the field that the body of a refusal names.
func checkFields(t *testing.T, at string, call call, got answer) {
	t.Helper()
	if kind := got.Header["Content-Type"]; (kind == "") != (got.Body == "") && call.method != http.MethodHead {
		t.Errorf("%s: Content-Type %q of a body of %d bytes", at, kind, len(got.Body))
	}
	if got.Status != http.StatusUnauthorized && got.Status != http.StatusBadRequest && got.Header["X-Ratelimit-Limit"] == "" {
		t.Errorf("%s: no x-ratelimit-limit", at)
	}
	if got.Status < http.StatusBadRequest {
		return
	}
	var problem struct {
		Message string
		Errors  []struct{ Field string }
	}
	if err := json.Unmarshal([]byte(got.Body), &problem); err != nil || problem.Message == "" {
		t.Errorf("%s: %s: no message (%v)", at, got.Body, err)
	}
	if call.field != "" && (len(problem.Errors) == 0 || problem.Errors[0].Field != call.field) {
		t.Errorf("%s: %s does not name %s", at, got.Body, call.field)
	}
}

// checkRecords compares objects in the body with the documented records. The objects are given by their paths in the
// body.
func checkRecords(t *testing.T, at string, documented map[string]string, body string) {
	t.Helper()
	for path, record := range documented {
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatalf("%s: %s: %v", at, body, err)
		}
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
		object, _ := v.(map[string]any)
		if differences := testservers.SchemaDifferences(record, object); differences != "" {
			t.Errorf("%s, at %q:\n%s", at, path, differences)
		}
	}
}

// TestEveryOperationIsImplemented checks that the service implements each operation. Each operation needs valid and
// invalid calls in calls.
func TestEveryOperationIsImplemented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := startPair(t)
		named := seedNames(t, direct, through)
		for _, op := range operations() {
			v, known := calls[op.ID]
			if got := direct.do(t, op, call{as: "tok-owner"}, named); got.Status == http.StatusNotImplemented {
				t.Errorf("%s is not implemented", op.ID)
				continue
			}
			if !known || len(v.valid) == 0 || op.Section != "" && strings.Contains(op.Path, "{") && len(v.invalid) == 0 {
				t.Errorf("%s has %d valid and %d invalid calls", op.ID, len(v.valid), len(v.invalid))
			}
			time.Sleep(10 * time.Second)
		}
	})
}
