package policy

import (
	"iter"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// FieldRule decides how the gateway treats a request field.
type FieldRule string

// These are the rules of fields.yaml. A field without a row is keyed: it is forwarded and belongs to the cache key.
const (
	FieldKeyed      FieldRule = ""
	FieldPassed     FieldRule = "passed"
	FieldConsumed   FieldRule = "consumed"
	FieldWithheld   FieldRule = "withheld"
	FieldCredential FieldRule = "credential"
)

// fieldRow is a row of the table by name. name is the field, or the beginning of the names of fields with a star.
type fieldRow struct {
	name string
	rule FieldRule
}

type fieldGroup struct {
	Group    string    `yaml:"group"`
	Rule     FieldRule `yaml:"rule"`
	Standard bool      `yaml:"standard"`
	Names    string    `yaml:"names"`
}

var fieldGroups = mustDecode[[]fieldGroup]("fields.yaml")

// fieldRows contains fields under their name, and beginnings of names under the part before the star.
var fieldRows = func() map[string]fieldRow {
	rows := map[string]fieldRow{}
	for _, g := range fieldGroups {
		for name := range strings.FieldsSeq(g.Names) {
			rows[strings.TrimSuffix(name, "*")] = fieldRow{name, g.Rule}
		}
	}
	return rows
}()

// StandardFields are the fields of HTTP that are forwarded and do not belong to the cache key.
var StandardFields = func() []string {
	i := slices.IndexFunc(fieldGroups, func(g fieldGroup) bool { return g.Standard })
	return strings.Fields(fieldGroups[i].Names)
}()

// RequestField returns the rule for a request field with a canonical name, and the name in the table. The name in the table
// contains no text of the client. It is empty for keyed fields.
//
// Programs that pass fields as variables (CGI) read every character except letters and digits as an underscore. A name with such
// a character has the rule of the name with hyphens, unless that field is forwarded.
func RequestField(name string) (rule FieldRule, row string) {
	if strings.ContainsFunc(name, isAliasing) {
		alias := strings.Map(func(r rune) rune {
			if isAliasing(r) {
				return '-'
			}
			return r
		}, name)
		r := rowOf(http.CanonicalHeaderKey(alias))
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return FieldWithheld, "names that are no token"
		case r.rule == FieldPassed:
			return FieldKeyed, ""
		}
		return r.rule, r.name
	}
	r := rowOf(name)
	return r.rule, r.name
}

// rowOf returns the row with the longest name for a field.
func rowOf(name string) fieldRow {
	if r, ok := fieldRows[name]; ok {
		return r
	}
	for end := strings.LastIndexByte(name, '-'); end > 0; end = strings.LastIndexByte(name[:end], '-') {
		if r, ok := fieldRows[name[:end+1]]; ok {
			return r
		}
	}
	return fieldRow{}
}

// isAliasing reports whether a character of a field name is neither a letter, a digit nor a hyphen.
func isAliasing(r rune) bool {
	return r != '-' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
}

// Members yields the members of the lists in the values of a field, without the blanks around them (RFC 9110 section 5.6.1).
func Members(values []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, value := range values {
			for member := range strings.SplitSeq(value, ",") {
				if !yield(strings.Trim(member, " \t")) {
					return
				}
			}
		}
	}
}
