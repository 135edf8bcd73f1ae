package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// valueSchema describes the allowed type of a JSON value. The schemas are read from reference/bodies.yaml, which
// documents their format.
type valueSchema struct {
	kind     string       // none, boolean, integer, string, choice, object, list, record or rule
	choices  []string     // choice: the allowed values; rule: the rule types
	element  *valueSchema // list: the schema of its elements
	members  []member     // record: its members; rule: the parameters of each rule type
	fallback string       // the JSON of an absent value, or ""
}

// member is a member of a record. A null value counts as absent.
type member struct {
	name     string
	optional bool
	schema   *valueSchema
}

// bodySchemas are the schemas of request bodies, by resource.
var bodySchemas = readReference[map[string]*valueSchema]("bodies.yaml")

// UnmarshalYAML reads a schema from its YAML form.
func (s *valueSchema) UnmarshalYAML(n *yaml.Node) error {
	switch n.Kind {
	case yaml.ScalarNode:
		s.kind = n.Value
		if choices := strings.Split(n.Value, " | "); len(choices) > 1 {
			s.kind, s.choices, s.fallback = "choice", choices, string(encode(choices[0]))
		}
	case yaml.SequenceNode:
		s.kind, s.element, s.fallback = "list", &valueSchema{}, "[]"
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
	if n.Tag == "!default" {
		s.fallback = map[string]string{"record": "{}", "boolean": "false"}[s.kind]
	}
	return nil
}

// fieldError is a validation error of one field. The field is a dotted path with indices, for example
// rules[0].parameters.operator. The code is a code of [problemField].
type fieldError struct{ field, code string }

// of returns the error response for a resource.
func (e *fieldError) of(resource string) *response {
	return refuse(http.StatusUnprocessableEntity, "Validation Failed", problemField{resource, e.field, e.code})
}

func invalidAt(field string) *fieldError { return &fieldError{field, "invalid"} }
func missingAt(field string) *fieldError { return &fieldError{field, "missing_field"} }

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
		text, name := given[m.name], strings.TrimPrefix(path+"."+m.name, ".")
		if text == nil || string(text) == "null" || m.schema.kind == "string" && string(text) == `""` {
			if !m.optional {
				return nil, missingAt(name)
			}
			if text = json.RawMessage(m.schema.fallback); len(text) == 0 {
				continue
			}
		}
		value, fieldErr := m.schema.read(text, name)
		if fieldErr != nil {
			return nil, fieldErr
		}
		o = append(o, field{m.name, value})
	}
	return o, nil
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

// body validates the body of a request for a resource, a JSON object. An empty body and null count as an empty object.
// Members that the body lacks have the values of the JSON object old, which may be empty.
func (s *valueSchema) body(resource string, old, body []byte) (object, *response) {
	members := map[string]json.RawMessage{}
	for _, text := range [][]byte{old, body} {
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var given map[string]json.RawMessage
		err := json.Unmarshal(text, &given)
		if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
			return nil, refuse(http.StatusBadRequest, "Body should be a JSON object")
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "Problems parsing JSON")
		}
		maps.Copy(members, given)
	}
	value, fieldErr := s.read(encode(members), "")
	if fieldErr != nil {
		return nil, fieldErr.of(resource)
	}
	return value.(object), nil
}

// readBody stores the body of a request, which the schema with a name validates, in a structure.
func readBody(body []byte, name string, into any) *response {
	resource, _, _ := strings.Cut(name, "/")
	value, problem := bodySchemas()[name].body(resource, nil, body)
	if problem == nil {
		store(value, into)
	}
	return problem
}

// store stores an object in a structure with the members of its schema.
func store(o object, into any) {
	if err := json.Unmarshal(encode(o), into); err != nil {
		panic(err) // the schema matches the structure
	}
}
