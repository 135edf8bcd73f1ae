package testservers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// schemaTypes are the types of decoded JSON values.
var schemaTypes = map[string]func(any) bool{
	"":       func(any) bool { return true },
	"bool":   func(v any) bool { _, ok := v.(bool); return ok },
	"int":    func(v any) bool { n, ok := v.(float64); return ok && n == math.Trunc(n) },
	"number": func(v any) bool { _, ok := v.(float64); return ok },
	"string": func(v any) bool { _, ok := v.(string); return ok },
	// This is the format of timestamps in Document A section 1.
	"time": func(v any) bool {
		s, ok := v.(string)
		_, err := time.Parse("2006-01-02T15:04:05Z", s)
		return ok && err == nil
	},
	"{}": func(v any) bool { _, ok := v.(map[string]any); return ok },
}

// SchemaDifferences compares a decoded JSON object with a schema. It returns one line for each
// difference, or an empty string.
//
// A schema lists the members of an object as "name:type", separated by blanks. The object must have
// all members and no additional members. The types are bool, int, number, string, time, {} for an
// object, []T for an array of T, and T? for T or null. A member without a type may have any value.
// SchemaDifferences panics for an unknown type.
func SchemaDifferences(schema string, object map[string]any) string {
	var lines []string
	additional := maps.Clone(object)
	for member := range strings.FieldsSeq(schema) {
		name, kind, _ := strings.Cut(member, ":")
		value, found := object[name]
		switch {
		case !found:
			lines = append(lines, name+" is missing")
		case !hasType(kind, value):
			text, err := json.Marshal(value)
			if err != nil {
				panic(err) // The value was decoded from JSON, so this cannot happen.
			}
			lines = append(lines, fmt.Sprintf("%s is %s, want %s", name, text, kind))
		}
		delete(additional, name)
	}
	for _, name := range slices.Sorted(maps.Keys(additional)) {
		lines = append(lines, name+" is not in the documents")
	}
	return strings.Join(lines, "\n")
}

// hasType reports whether a value has a type.
func hasType(kind string, value any) bool {
	if plain, nullable := strings.CutSuffix(kind, "?"); nullable {
		return value == nil || hasType(plain, value)
	}
	if element, array := strings.CutPrefix(kind, "[]"); array {
		items, ok := value.([]any)
		return ok && !slices.ContainsFunc(items, func(item any) bool { return !hasType(element, item) })
	}
	check, known := schemaTypes[kind]
	if !known {
		panic("testservers: unknown type " + kind + " in a schema")
	}
	return check(value)
}
