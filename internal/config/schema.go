package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/weirgate/weir/internal/credential"
)

// variable matches a text with an environment variable. Such a text is valid for a number, an enum, a duration or a
// size.
const variable = `\$\{`

// Schema returns the JSON Schema of the file, for editors. The schema covers types, enums and unknown keys, but not
// ranges and relations between keys, which [Parse] checks.
func Schema() ([]byte, error) {
	r := jsonschema.Reflector{
		FieldNameTag:               "yaml",
		ExpandedStruct:             true,
		DoNotReference:             true,
		RequiredFromJSONSchemaTags: true,
		Mapper:                     scalarSchema,
	}
	s := r.Reflect(&Config{})
	s.ID, s.Title = "https://github.com/weirgate/weir/config.schema.json", "Weir configuration"
	describe(s, reflect.TypeFor[Config](), reflect.ValueOf(Default()).Elem())
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return append(text, '\n'), nil
}

// scalarSchema returns the schema of the types that are strings in YAML.
func scalarSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$|` + variable, Examples: []any{"30s"}}
	case reflect.TypeFor[Size]():
		return &jsonschema.Schema{Type: "string", Pattern: `^[0-9]+ *([KMG]iB|B)?$|` + variable, Examples: []any{"256MiB"}}
	case reflect.TypeFor[credential.Secret]():
		return &jsonschema.Schema{Type: "string"}
	case reflect.TypeFor[Switch]():
		return &jsonschema.Schema{Enum: switchValues}
	}
	return nil
}

// describe adds descriptions, enums and defaults of a struct to its schema.
func describe(s *jsonschema.Schema, t reflect.Type, byDefault reflect.Value) {
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue // the fields of f are visible, too
		}
		value := reflect.Value{}
		if byDefault.IsValid() {
			value = byDefault.FieldByIndex(f.Index)
		}
		p, ok := s.Properties.Get(yamlName(f))
		if !ok {
			panic("config: the schema has no property " + yamlName(f))
		}
		p.Description = f.Tag.Get("desc")
		switch inner := f.Type; inner.Kind() {
		case reflect.Struct:
			describe(p, inner, value)
		case reflect.Slice, reflect.Map:
			element := inner.Elem()
			if element.Kind() == reflect.Struct {
				items := p.Items
				if inner.Kind() == reflect.Map {
					items = p.AdditionalProperties
				}
				describe(items, element, reflect.Value{})
			}
		default:
			p.Default = defaultOf(value)
			p.Enum = enumOf(f)
			if p.Type != "string" || p.Enum != nil { // the value may be a variable instead of the literal
				literal := &jsonschema.Schema{Type: p.Type, Enum: p.Enum}
				p.Type, p.Enum = "", nil
				p.AnyOf = []*jsonschema.Schema{literal, {Type: "string", Pattern: variable}}
			}
		}
	}
}

func enumOf(f reflect.StructField) []any {
	if f.Type == reflect.TypeFor[Switch]() {
		return switchValues
	}
	tag := f.Tag.Get("enum")
	if tag == "" {
		return nil
	}
	var enum []any
	for value := range strings.SplitSeq(tag, ",") {
		if n, err := strconv.Atoi(value); err == nil && f.Type.Kind() == reflect.Int {
			enum = append(enum, n)
			continue
		}
		enum = append(enum, value)
	}
	return enum
}

// defaultOf returns a default as written in the file, or nil for an empty default.
func defaultOf(v reflect.Value) any {
	if !v.IsValid() || v.IsZero() {
		return nil
	}
	if value, ok := v.Interface().(fmt.Stringer); ok { // a duration or a size
		return value.String()
	}
	return v.Interface()
}
