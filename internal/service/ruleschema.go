package service

import (
	"encoding/json"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// valueSchema describes the allowed type of a JSON value. The schemas are read from reference/rulesets.yaml, which
// documents their format.
type valueSchema struct {
	kind    string       // none, boolean, integer, string, choice, object, list, record or rule
	choices []string     // choice: the allowed values; rule: the rule types
	element *valueSchema // list: the schema of its elements
	members []member     // record: its members; rule: the parameters of each rule type
}

// member is a member of a record. A null value counts as absent.
type member struct {
	name     string
	optional bool
	schema   *valueSchema
}

// rulesetSchema describes the request body that creates a ruleset (Document A sections 4.8, 4.9).
var rulesetSchema = readReference[*valueSchema]("rulesets.yaml")

// UnmarshalYAML reads a schema from its YAML form.
func (s *valueSchema) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		s.kind = n.Value
		if choices := strings.Split(n.Value, " | "); len(choices) > 1 {
			s.kind, s.choices = "choice", choices
		}
	case yaml.SequenceNode:
		s.kind, s.element = "list", &valueSchema{}
		return n.Content[0].Decode(s.element)
	case yaml.MappingNode:
		s.kind = "record"
		for i := 0; i < len(n.Content); i += 2 {
			name, optional := strings.CutSuffix(n.Content[i].Value, "?")
			s.members = append(s.members, member{name, optional, &valueSchema{}})
			if err := n.Content[i+1].Decode(s.members[i/2].schema); err != nil {
				return err
			}
			if n.Tag == "!rule" {
				s.kind, s.choices = "rule", append(s.choices, name)
			}
		}
	}
	return nil
}

// fieldError is a validation error of one field. The field is a dotted path with indices, for example
// rules[0].parameters.operator. The code is a code of [problemField].
type fieldError struct{ field, code string }

func invalidAt(field string) *fieldError { return &fieldError{field, "invalid"} }
func missingAt(field string) *fieldError { return &fieldError{field, "missing_field"} }

// memberPath returns the path of a member of the value at path.
func memberPath(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// read validates a value and returns it, or returns the first error. It puts members in the order of the schema, adds
// defaults and drops unknown members.
func (s *valueSchema) read(text json.RawMessage, path string) (any, *fieldError) {
	switch s.kind {
	case "list":
		return s.readList(text, path)
	case "record":
		return s.readRecord(text, path)
	case "rule":
		return s.readRule(text, path)
	}
	if value, ok := s.readScalar(text); ok {
		return value, nil
	}
	return nil, invalidAt(path)
}

func (s *valueSchema) readScalar(text json.RawMessage) (any, bool) {
	switch s.kind {
	case "boolean":
		var b bool
		ok := unmarshalNonNull(text, &b)
		return b, ok
	case "integer":
		var n int
		ok := unmarshalNonNull(text, &n)
		return n, ok && n >= 0
	case "object":
		return text, unmarshalNonNull(text, &map[string]any{})
	}
	var t string
	ok := unmarshalNonNull(text, &t)
	return t, ok && t != "" && (s.choices == nil || slices.Contains(s.choices, t))
}

// unmarshalNonNull decodes JSON and reports whether it succeeded. null is an error.
func unmarshalNonNull(text json.RawMessage, into any) bool {
	return string(text) != "null" && json.Unmarshal(text, into) == nil
}

func (s *valueSchema) readList(text json.RawMessage, path string) (any, *fieldError) {
	var elements []json.RawMessage
	if !unmarshalNonNull(text, &elements) {
		return nil, invalidAt(path)
	}
	values := make([]any, len(elements))
	for i, element := range elements {
		var fieldErr *fieldError
		if values[i], fieldErr = s.element.read(element, path+"["+itoa(i)+"]"); fieldErr != nil {
			return nil, fieldErr
		}
	}
	return values, nil
}

func (s *valueSchema) readRecord(text json.RawMessage, path string) (any, *fieldError) {
	var given map[string]json.RawMessage
	if !unmarshalNonNull(text, &given) {
		return nil, invalidAt(path)
	}
	o := object{}
	for _, m := range s.members {
		switch absent := m.isAbsent(given[m.name]); {
		case absent && !m.optional:
			return nil, missingAt(memberPath(path, m.name))
		case absent && m.schema.kind == "choice":
			o = append(o, field{m.name, m.schema.choices[0]})
		case absent && m.schema.kind == "list":
			o = append(o, field{m.name, []any{}})
		case !absent:
			value, fieldErr := m.schema.read(given[m.name], memberPath(path, m.name))
			if fieldErr != nil {
				return nil, fieldErr
			}
			o = append(o, field{m.name, value})
		}
	}
	return o, nil
}

// isAbsent reports whether a member is missing, null, or an empty string.
func (m member) isAbsent(text json.RawMessage) bool {
	isText := m.schema.kind == "string" || m.schema.kind == "choice"
	return text == nil || string(text) == "null" || isText && string(text) == `""`
}

// readRule reads {type, parameters}. It drops the parameters if the rule type has no parameters.
func (s *valueSchema) readRule(text json.RawMessage, path string) (any, *fieldError) {
	record := &valueSchema{kind: "record", members: []member{{name: "type", schema: &valueSchema{kind: "choice", choices: s.choices}}}}
	rule, fieldErr := record.read(text, path)
	if fieldErr != nil {
		return nil, fieldErr
	}
	parameters := s.members[slices.Index(s.choices, rule.(object)[0].value.(string))].schema
	if parameters.kind == "none" {
		return rule, nil
	}
	record.members = append(record.members, member{"parameters", parameters.kind == "object", parameters})
	return record.read(text, path)
}
