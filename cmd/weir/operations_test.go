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

	"github.com/weirgate/weir/internal/records"
	"github.com/weirgate/weir/policy"
)

// operations are those of the catalogue, and the unknown one, in the order of
// their names.
func operations() []*policy.Operation {
	unknown, err := policy.Embedded().Classify(http.MethodGet, "/nowhere", "")
	if err != nil {
		panic(err) // the path is ours
	}
	all := append(slices.Clone(policy.Embedded().Operations()), unknown.Operation)
	slices.SortFunc(all, func(a, b *policy.Operation) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// names stand for the parameters in paths and bodies, as the seed has them.
func names(t *testing.T, direct, through *client) *strings.Replacer {
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
		t.Fatalf("%d %s", made.Status, made.Body)
	}
	return strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-member", "{name}", "Go",
		"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{code}", "abc", "{role_id}", "1", "{configuration_id}", "1", "{invitation_id}", "1", "{team_slug}", "builders", "{head}", head, "{tag_sha}", object.SHA)
}

// TestTheSameClientCodeSeesTheSameThroughTheGateway calls every operation of the
// catalogue at the reference service and, with the same code, through a gateway in
// front of another of the same seed, with valid, invalid and unauthorized input.
func TestTheSameClientCodeSeesTheSameThroughTheGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := pair(t)
		named := names(t, direct, through)
		for _, op := range operations() {
			v := calls[op.ID]
			for i, call := range slices.Concat(v.valid, v.invalid, v.unauthorized, unauthorized(op)) {
				at := fmt.Sprintf("%s: call %d as %q", op.ID, i, call.as)
				if call.status == 0 {
					call.status = cmp.Or(op.Success...)
				}
				want := direct.do(t, op, call, named)
				wantAnswer(t, at, op, call, want)
				if i == len(v.valid)-1 {
					wantRecords(t, at, v.records, want.Body)
				}
				compare(t, at, op, call, want, func() answer { return through.do(t, op, call, named) })
			}
			time.Sleep(20 * time.Second) // within every search window
		}
	})
}

// unauthorized are the calls that the catalogue says are refused, whatever the
// operation: bad credentials, none where some are needed, and kinds of token that
// do not work.
func unauthorized(op *policy.Operation) []call {
	target := op.Path
	if slices.ContainsFunc(op.Query, func(p policy.Parameter) bool { return p.Required }) {
		target += "?q=gear" // what is required is asked for before the token is looked at
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

// compare asks through the gateway, twice where asking changes nothing: the second
// answer comes from the cache where it may.
func compare(t *testing.T, at string, op *policy.Operation, call call, want answer, ask func() answer) {
	t.Helper()
	if want.Status == http.StatusUnauthorized && (op.Cache.Class == policy.Shared || op.ID == "rate-limit/get") {
		return // what is the same for everyone, and what the gateway itself has counted, needs no asking who it is
	}
	turns := []string{"first", "again"}
	if method := cmp.Or(call.method, op.Method); method != http.MethodGet && method != http.MethodHead {
		turns = turns[:1] // a write has its effect once on either side
	}
	for _, turn := range turns {
		got := ask()
		allowDifferences(op.ID, &want, &got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s, %s: direct (-), through the gateway (+):\n%s", at, turn, diff)
		}
	}
}

// wantAnswer holds an answer against the row of the operation in the documents.
func wantAnswer(t *testing.T, at string, op *policy.Operation, call call, got answer) {
	t.Helper()
	if got.Status != call.status {
		t.Errorf("%s: %d %.300s, want %d", at, got.Status, got.Body, call.status)
	}
	listed := slices.Concat(op.Success, op.Errors, []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusUnprocessableEntity})
	if len(op.Success) > 0 && call.method == "" && !slices.Contains(listed, got.Status) {
		t.Errorf("%s: %d is not among the statuses of the documents, %v", at, got.Status, listed)
	}
	wantFields(t, at, call, got)
}

// wantFields looks at the header, and at what the body of a refusal names.
func wantFields(t *testing.T, at string, call call, got answer) {
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

// wantRecords holds objects in an answer, by their paths, against the records of the
// documents.
func wantRecords(t *testing.T, at string, documented map[string]string, body string) {
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
		if differences := records.Differences(record, object); differences != "" {
			t.Errorf("%s, at %q:\n%s", at, path, differences)
		}
	}
}

// TestEveryOperationIsCalled: what the catalogue has is implemented, and called
// with valid and, where anything can be wrong with a call, invalid input.
func TestEveryOperationIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := pair(t)
		named := names(t, direct, through)
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
