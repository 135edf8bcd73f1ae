package house

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// finding is one place that breaks a rule.
type finding struct {
	where string // what an exception would name: a package, a file or package.Function
	what  string // what is wrong there, and what to do
}

// rule is one rule of the house: a pure function of the source.
type rule struct {
	name  string
	check func(*module) []finding
}

// rules is every rule of the house.
var rules = []rule{
	{"imports point down", importsPointDown},
	{"dependencies stay where they belong", dependenciesStay},
	{"test code stays in tests", testCodeStays},
	{"policy is pure", policyIsPure},
	{"only refuse.go writes an error body", oneErrorWriter},
	{"packages are documented", packagesDocumented},
	{"exported names are documented", namesDocumented},
	{"packages are named for what they hold", packageNames},
	{"functions are short", functionsShort},
	{"functions are short in the middle", functionsShortInTheMiddle},
	{"files are short", filesShort},
	{"packages export little", packagesExportLittle},
	{"nothing runs in init", noInit},
	{"package variables never change", variablesConstant},
	{"nothing sleeps", nothingSleeps},
	{"no test is skipped", noTestSkipped},
	{"tests outweigh code", testsOutweighCode},
}

// TestHouse holds the module against every rule.
func TestHouse(t *testing.T) {
	m, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, complaint := range judge(r, m, exceptions) {
				t.Error(complaint)
			}
		})
	}
	t.Log(weights(m))
}

// judge returns what an author has to hear: findings without an exception and
// exceptions without a finding.
func judge(r rule, m *module, exceptions []exception) []string {
	var complaints []string
	found := map[string]bool{}
	for _, f := range r.check(m) {
		found[f.where] = true
		if !slices.ContainsFunc(exceptions, func(e exception) bool { return e.rule == r.name && e.where == f.where }) {
			complaints = append(complaints, f.where+": "+f.what)
		}
	}
	for _, e := range exceptions {
		if e.rule == r.name && !found[e.where] {
			complaints = append(complaints, fmt.Sprintf("%s: the exception is no longer needed: take it out of exceptions_test.go", e.where))
		}
	}
	slices.Sort(complaints)
	return complaints
}

func TestExceptionsNameARuleAndAReason(t *testing.T) {
	for _, e := range exceptions {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.name == e.rule }) {
			t.Errorf("%s: no rule is called %q", e.where, e.rule)
		}
		if len(strings.Fields(e.why)) < 4 {
			t.Errorf("%s: %q is no reason", e.where, e.why)
		}
	}
}

func TestJudge(t *testing.T) {
	r := rule{"no cellar", func(*module) []finding { return []finding{{"a", "has a cellar"}, {"b", "has a cellar"}} }}
	got := judge(r, &module{}, []exception{
		{"no cellar", "a", "an old one"},
		{"no cellar", "c", "filled in since"},
		{"no attic", "b", "of another rule"},
		{"no attic", "d", "of another rule"},
	})
	want := []string{
		"b: has a cellar",
		"c: the exception is no longer needed: take it out of exceptions_test.go",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A trial shows a rule some source and says where it must find something.
type trial struct {
	name   string
	source map[string]string // path: text of the file
	want   []string          // where
}

// try holds the rule against each trial. Every rule needs a trial that it
// finds fault with and one that it passes, so that it is known to work.
func try(t *testing.T, check func(*module) []finding, trials []trial) {
	t.Helper()
	var finds, passes bool
	for _, c := range trials {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, f := range check(parse(t, c.source)) {
				got = append(got, f.where)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("found faults in other places (-want +got):\n%s", diff)
			}
		})
		finds = finds || len(c.want) > 0
		passes = passes || len(c.want) == 0
	}
	if !finds || !passes {
		t.Error("the trials must show the rule both what breaks it and what keeps it")
	}
}

// one is the source of a module with one file.
func one(path, text string) map[string]string { return map[string]string{path: text} }

func parse(t *testing.T, source map[string]string) *module {
	t.Helper()
	files := fstest.MapFS{}
	for path, text := range source {
		files[path] = &fstest.MapFile{Data: []byte(text)}
	}
	m, err := read(files)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
