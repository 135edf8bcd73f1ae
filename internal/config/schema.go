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

// variable is what a text must hold to stand for a number, one of an enum, a
// duration or a size: the environment has the value.
const variable = `\$\{`

// Schema returns the JSON Schema of the file, for editors and reviewers. It
// says what [Parse] says of shapes, enums and unknown keys, and wants texts,
// durations and sizes to be texts in YAML too; ranges, and rules that join
// several keys, are Parse's alone.
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

// scalarSchema gives the types that are texts in YAML their patterns.
func scalarSchema(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$|` + variable, Examples: []any{"30s"}}
	case reflect.TypeFor[Size]():
		return &jsonschema.Schema{Type: "string", Pattern: `^[0-9]+ *([KMG]iB|B)?$|` + variable, Examples: []any{"256MiB"}}
	case reflect.TypeFor[credential.Secret]():
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// describe carries descriptions, enums and defaults from the struct into its
// schema.
func describe(s *jsonschema.Schema, t reflect.Type, byDefault reflect.Value) {
	for i := range t.NumField() {
		f := t.Field(i)
		value := reflect.Value{}
		if byDefault.IsValid() {
			value = byDefault.Field(i)
		}
		if f.Anonymous {
			describe(s, f.Type, value)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		p, ok := s.Properties.Get(name)
		if !ok {
			panic("config: the schema has no " + name)
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
			orVariable(p)
		}
	}
}

// orVariable lets a text with a variable stand for a value that is no free
// text.
func orVariable(p *jsonschema.Schema) {
	if p.Type == "string" && p.Enum == nil {
		return
	}
	literal := &jsonschema.Schema{Type: p.Type, Enum: p.Enum}
	p.Type, p.Enum = "", nil
	p.AnyOf = []*jsonschema.Schema{literal, {Type: "string", Pattern: variable}}
}

func enumOf(f reflect.StructField) []any {
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

// defaultOf is a default as it would be written; nothing for an empty one.
func defaultOf(v reflect.Value) any {
	if !v.IsValid() || v.IsZero() {
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return value.String()
	case Size:
		return value.String()
	}
	return v.Interface()
}
