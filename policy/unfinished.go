package policy

import (
	"encoding/json"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"
)

// unfinishedData is unfinished.yaml.
var unfinishedData = mustDecode[struct {
	Lifetime     time.Duration `yaml:"lifetime"`
	Asynchronous struct {
		Within     time.Duration `yaml:"within"`
		Operations []string      `yaml:"operations"`
	} `yaml:"asynchronous"`
	Rows []unfinishedRow `yaml:"rows"`
}]("unfinished.yaml")

type unfinishedRow struct {
	Operations []string `yaml:"operations"`
	Member     string   `yaml:"member"`
	Values     []any    `yaml:"values"`
	Unless     *struct {
		Member string `yaml:"member"`
		Value  any    `yaml:"value"`
	} `yaml:"unless"`
}

// unfinishedRule matches the bodies of unfinished responses.
type unfinishedRule struct {
	state  *regexp.Regexp
	unless *regexp.Regexp // nil without an exception
}

// memberPattern matches a member of a JSON object with one of the values.
func memberPattern(member string, values ...any) *regexp.Regexp {
	texts := make([]string, len(values))
	for i, value := range values {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err) // the values of the data are texts, booleans and null
		}
		texts[i] = regexp.QuoteMeta(string(text))
	}
	return regexp.MustCompile(`"` + member + `"\s*:\s*(?:` + strings.Join(texts, "|") + `)`)
}

// unfinishedByID contains the results of unfinishedRules ([]unfinishedRule) by the ID of the operation.
var unfinishedByID sync.Map

// unfinishedRules returns the rules of an operation.
func (o *Operation) unfinishedRules() []unfinishedRule {
	rules, ok := unfinishedByID.Load(o.ID)
	if !ok {
		rules, _ = unfinishedByID.LoadOrStore(o.ID, newUnfinishedRules(o.ID))
	}
	return rules.([]unfinishedRule)
}

func newUnfinishedRules(id string) (rules []unfinishedRule) {
	for _, row := range unfinishedData.Rows {
		for _, pattern := range row.Operations {
			if ok, err := path.Match(pattern, id); err != nil || !ok {
				continue
			}
			rule := unfinishedRule{state: memberPattern(row.Member, row.Values...)}
			if row.Unless != nil {
				rule.unless = memberPattern(row.Unless.Member, row.Unless.Value)
			}
			rules = append(rules, rule)
			break
		}
	}
	return rules
}

// MayBeUnfinished reports whether the operation has responses about unfinished states.
func (o *Operation) MayBeUnfinished() bool { return len(o.unfinishedRules()) > 0 }

// Unfinished reports whether the body of a response shows an unfinished state.
func (o *Operation) Unfinished(body []byte) bool {
	for _, rule := range o.unfinishedRules() {
		if rule.state.Match(body) && (rule.unless == nil || !rule.unless.Match(body)) {
			return true
		}
	}
	return false
}

// UnfinishedLifetime returns the longest lifetime of a response about an unfinished state.
func UnfinishedLifetime() time.Duration { return unfinishedData.Lifetime }

// Settles returns the time after a successful write with a status in which the upstream may show the state before the write,
// because the response precedes the effect. It is zero if the effect precedes the response.
func (o *Operation) Settles(status int) time.Duration {
	if status == http.StatusAccepted || matchesAny(unfinishedData.Asynchronous.Operations, o) {
		return unfinishedData.Asynchronous.Within
	}
	return 0
}
