package records

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// types are those of values as [encoding/json] reads them into an any.
var types = map[string]func(any) bool{
	"":       func(any) bool { return true },
	"bool":   func(v any) bool { _, ok := v.(bool); return ok },
	"int":    func(v any) bool { n, ok := v.(float64); return ok && n == math.Trunc(n) },
	"number": func(v any) bool { _, ok := v.(float64); return ok },
	"string": func(v any) bool { _, ok := v.(string); return ok },
	// A timestamp as Document A section 1 writes it.
	"time": func(v any) bool {
		s, ok := v.(string)
		_, err := time.Parse("2006-01-02T15:04:05Z", s)
		return ok && err == nil
	},
	"{}": func(v any) bool { _, ok := v.(map[string]any); return ok },
}

// Differences tells where an object, as [encoding/json] reads it into an any, is not
// of a record, a line for each member; it is empty where there is nothing to tell. A
// member "name:type" must be there and of the type, and no other may be. Types are
// bool, int, number, string, time, {} for an object, []T for an array of T, and T? for
// what may be null; a member without a type takes anything. It panics at another type.
func Differences(record string, object map[string]any) string {
	var lines []string
	others := maps.Clone(object)
	for member := range strings.FieldsSeq(record) {
		name, kind, _ := strings.Cut(member, ":")
		value, there := object[name]
		switch {
		case !there:
			lines = append(lines, name+" is missing")
		case !is(kind, value):
			text, err := json.Marshal(value)
			if err != nil {
				panic(err) // it has been JSON
			}
			lines = append(lines, fmt.Sprintf("%s is %s, want %s", name, text, kind))
		}
		delete(others, name)
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		lines = append(lines, name+" is not in the documents")
	}
	return strings.Join(lines, "\n")
}

// is reports whether a value is of a type.
func is(kind string, value any) bool {
	if plain, nullable := strings.CutSuffix(kind, "?"); nullable {
		return value == nil || is(plain, value)
	}
	if element, array := strings.CutPrefix(kind, "[]"); array {
		items, ok := value.([]any)
		return ok && !slices.ContainsFunc(items, func(item any) bool { return !is(element, item) })
	}
	of, known := types[kind]
	if !known {
		panic("records: no type " + kind)
	}
	return of(value)
}
