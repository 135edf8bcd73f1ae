package service

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// testLimits returns limits that tests do not reach by accident.
func testLimits() policy.Limits {
	l := policy.DefaultLimits()
	l.Primary.User, l.Primary.Installation, l.Primary.Unauthenticated, l.Points.REST = 1e6, 1e6, 1e6, 1e6
	l.Search.Authenticated, l.Search.Code = 1e6, 1e6
	l.Content = []policy.Window{{Max: 1e6, Window: l.Points.Window}}
	return l
}

func newTest(t *testing.T, c Config) *Service {
	t.Helper()
	if c.Limits.Concurrent == 0 {
		c.Limits = testLimits()
	}
	s := testservers.Must(New(c))
	t.Cleanup(s.Close)
	return s
}

// tableTester sends requests to a service. The names of credentials are those of its tokens without "tok-".
type tableTester struct {
	*Service
	*testservers.Story
}

func newTester(t *testing.T, c Config) *tableTester {
	t.Helper()
	s := newTest(t, c)
	return &tableTester{s, &testservers.Story{Handler: s, Host: "example.com", Authorization: func(name string) string {
		if name == "" {
			return ""
		}
		return "Bearer tok-" + name
	}}}
}

// runTableCalls sends the calls of a test to a new service.
func runTableCalls(t *testing.T, calls []call) {
	t.Helper()
	s := newTester(t, Config{})
	for _, c := range calls {
		s.Call(t, c.as, c.request, c.status, c.want)
	}
}

func TestTableHasAllOperationsOfTheCloud(t *testing.T) {
	s := newTest(t, Config{})
	testservers.Equal(t, "operations", len(s.Operations()), 1223)
	n := len(parseTable("ghec"))
	failIf(t, n < 1223, "%d operations of ghec", n)
	for _, c := range []Config{{Product: "none"}, {Unlisted: map[string]Resource{"none": {}}}} {
		_, err := New(c)
		failIf(t, err == nil, "New(%+v) returns no error", c)
	}
	shapes := map[string]string{}
	for _, op := range s.Operations() {
		shape := op.Method + " " + parameter.ReplaceAllString(op.Path, "{}")
		other := shapes[shape]
		failIf(t, other != "", "%s and %s have the same paths", op.ID, other)
		shapes[shape] = op.ID
	}
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// statusesBeyondTheTable are success statuses that the real API uses and the table does not list.
var statusesBeyondTheTable = map[string][]int{
	"repos/get-participation-stats": {202}, "repos/get-punch-card-stats": {202},
}

func TestEveryOperationMatchesAndAnswersItsSample(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		random := rand.New(rand.NewPCG(seed, seed))
		s := newTester(t, Config{})
		operations := s.Operations()
		slices.SortStableFunc(operations, func(a, b *Operation) int { // deletions last
			return slices.Index(methods, a.Method) - slices.Index(methods, b.Method)
		})
		for _, op := range operations {
			method, target, body := s.Sample(op.ID, random)
			path, _, _ := strings.Cut(target, "?")
			if got := s.Match(method, path); got == nil || got.ID != op.ID {
				t.Errorf("%s: sample %s %s matches %v", op.ID, method, target, got)
				continue
			}
			w := s.Do("owner", method+" "+target+" "+string(body))
			allowed := slices.Concat(op.success(), statusesBeyondTheTable[op.ID])
			if op.Method == http.MethodDelete && !slices.Contains(allowed, w.Code) { // another sample deleted what this one needs
				s = newTester(t, Config{})
				method, target, body = s.Sample(op.ID, random)
				w = s.Do("owner", method+" "+target+" "+string(body))
			}
			failIf(t, !slices.Contains(allowed, w.Code), "%s: %s %s %s: status %d; want one of %v: %s", op.ID, method, target, body, w.Code, allowed, w.Body)
			isJSON := strings.HasPrefix(w.Header().Get("Content-Type"), "application/json")
			_, ok := testservers.Revision(w.Body.Bytes())
			failIf(t, isJSON && !ok && op.ID != rateLimitID, "%s: the body has no revision", op.ID)
			failIf(t, isJSON && !json.Valid(w.Body.Bytes()), "%s: invalid JSON: %s", op.ID, w.Body)
		}
	}
}

// TestRandomTrafficKeepsRevisions sends random traffic over the whole table. If the content of a read changes, its
// revision must change, too; otherwise the judge could not see a stale read.
func TestRandomTrafficKeepsRevisions(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	s := newTester(t, Config{NoRateLimits: true})
	type view struct {
		body     []byte
		revision string
	}
	seen, reported := map[string]view{}, map[string]bool{}
	var targets []string
	operations := s.Operations()
	look := func(target string, after string) {
		w := s.Do("owner", "GET "+target)
		now := view{bytes.TrimRight(w.Body.Bytes(), "\n\t "), w.Header().Get(RevisionHeader)}
		stopIf(t, w.Code == http.StatusInternalServerError, "GET %s: status 500", target)
		old, known := seen[target]
		op := s.Match(http.MethodGet, strings.Split(target, "?")[0])
		if known && !anyCovers(views().Delayed, op.view) && !bytes.Equal(old.body, now.body) && old.revision == now.revision && !reported[op.ID] {
			reported[op.ID] = true
			t.Errorf("%s: after %s, GET %s has another body, but still revision %s:\n%s\n%s", op.ID, after, target, now.revision, old.body, now.body)
		}
		if !known {
			targets = append(targets, target)
		}
		seen[target] = now
	}
	for range 1000 {
		op := operations[random.IntN(len(operations))]
		method, target, body := s.Sample(op.ID, random)
		if method == http.MethodGet {
			look(target, "")
			continue
		}
		s.Do("owner", method+" "+target+" "+string(body))
		for range min(20, len(targets)) {
			look(targets[random.IntN(len(targets))], method+" "+target+" "+string(body))
		}
	}
}

// TestJudgeSharesNoCodeWithTheGateway checks that the package uses only the text of the table and numbers.
func TestJudgeSharesNoCodeWithTheGateway(t *testing.T) {
	files := testservers.Must(filepath.Glob("*.go"))
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source := testservers.Must(os.ReadFile(name))
		for _, use := range regexp.MustCompile(`policy\.\w+|weirgate/weir/\S+`).FindAllString(string(source), -1) {
			failIf(t, !slices.Contains([]string{"policy.Table", "policy.Limits", "policy.Window", "policy.Dialect", "policy.LoadDialect", "policy.CallerKind", "policy.Embedded", "policy.Operation",
				"policy.Unauthenticated", "policy.User", "policy.Installation", "policy.OAuthApp", "policy.Workflow", "policy.Enterprise", "policy.EnterpriseInstallation",
				"policy.EnterpriseOAuthApp", "policy.Parameter", "policy.EnterpriseWorkflow", `weirgate/weir/policy"`, `weirgate/weir/internal/credential"`, `weirgate/weir/internal/service/quirk"`}, use), "%s uses %s", name, use)
		}
	}
}
