package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weirgate/weir/internal/credential"
)

// Problem is one mistake in a configuration.
type Problem struct {
	File         string // empty for a flag
	Line, Column int    // 0 for a flag or where the whole file is meant
	Key          string // path of the key, for example "limits.wait"
	Message      string
}

// String is "FILE:LINE:COLUMN: KEY: MESSAGE", without the parts that are not
// known.
func (p Problem) String() string {
	s := ""
	if p.File != "" {
		s = p.File
		if p.Line > 0 {
			s += fmt.Sprintf(":%d:%d", p.Line, p.Column)
		}
		s += ": "
	}
	if p.Key != "" {
		s += p.Key + ": "
	}
	return s + p.Message
}

// Problems is every mistake in a configuration, in the order of the file. It
// is the only kind of error that [Load] and [Parse] return.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Source is what a configuration is made from: a file, laid over the defaults,
// under the flags.
type Source struct {
	// Path is the file; empty for none.
	Path string
	// Flags are values by key path ("upstream.url") that override the file.
	Flags map[string]string
	// FlagNames are how the user wrote them ("--upstream"), by key path.
	FlagNames map[string]string
	// Getenv looks up an environment variable.
	Getenv func(string) (string, bool)
}

// Load reads and checks the configuration.
func Load(s Source) (*Config, error) {
	if s.Path == "" {
		return Parse(s, nil)
	}
	text, err := os.ReadFile(s.Path)
	if err != nil {
		return nil, Problems{{File: s.Path, Message: reason(err)}}
	}
	return Parse(s, text)
}

// reason is an error of the file system without the path, which stands before
// it.
func reason(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// Parse is [Load] with the text of the file at hand.
func Parse(s Source, text []byte) (*Config, error) {
	c, _, err := ParseWithPositions(s, text)
	return c, err
}

// ParseWithPositions is [Parse] that tells, too, where in the file each value stands.
func ParseWithPositions(s Source, text []byte) (*Config, Positions, error) {
	d := &decoder{source: s, at: map[string]position{}, failed: map[string]bool{}}
	c := Default()
	document, err := read(text)
	if err != nil {
		d.syntax(err, text)
		return nil, Positions{}, d.problems
	}
	for _, root := range document.Content {
		d.value(root, reflect.ValueOf(c).Elem(), "")
	}
	d.flags(reflect.ValueOf(c).Elem())
	d.check(c)
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Key, b.Key))
		})
		return nil, Positions{}, d.problems
	}
	return c, Positions{d}, nil
}

// Positions are where in a file the values of a configuration stand.
type Positions struct{ d *decoder }

// At is the line and column of the value at a key ("clients[0].key"); of one that is
// not given those of the nearest around it.
func (p Positions) At(key string) (line, column int) {
	at, given := p.d.at[key]
	if !given {
		at = p.d.around(key)
	}
	return at.line, at.column
}

// Given reports whether the file has a value at a key.
func (p Positions) Given(key string) bool {
	_, given := p.d.at[key]
	return given
}

// Plain reports whether the value at a key is written out in the file: neither from
// the environment nor read from a file of its own.
func (p Positions) Plain(key string) bool { return p.d.at[key].plain }

// read parses the one document of a file; an empty file has none.
func read(text []byte) (document yaml.Node, err error) {
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithUniqueKeys(false))
	if err != nil {
		return document, err
	}
	if err := loader.Load(&document); err != nil && !errors.Is(err, io.EOF) {
		return document, err
	}
	var second yaml.Node
	switch err := loader.Load(&second); {
	case err == nil:
		at := yaml.Mark{Line: second.Line, Column: second.Column}
		return document, &yaml.LoadError{Mark: at, Message: "a second document begins here; a configuration is one"}
	case !errors.Is(err, io.EOF):
		return document, err
	}
	return document, nil
}

// decoder lays YAML nodes over a Config and remembers where each value stood.
type decoder struct {
	source   Source
	problems Problems
	at       map[string]position // by key
	failed   map[string]bool     // keys that have a report
}

// position is where a value was given: in the file, or by a flag.
type position struct {
	line, column int
	flag         string
	plain        bool // written out: no variable, no file:
}

func (d *decoder) problem(n *yaml.Node, key, format string, args ...any) {
	d.failed[key] = true
	d.problems = append(d.problems, Problem{File: d.source.Path, Line: n.Line, Column: n.Column, Key: key, Message: fmt.Sprintf(format, args...)})
}

// syntax reports what the YAML parser could not read, and the mistakes that people
// make.
func (d *decoder) syntax(err error, text []byte) {
	p := Problem{File: d.source.Path, Line: 1, Column: 1, Message: err.Error()}
	var load *yaml.LoadError
	if errors.As(err, &load) {
		p.Message = load.Message
		if load.Mark.Line > 0 {
			p.Line, p.Column = load.Mark.Line, max(1, load.Mark.Column)
		}
	}
	if lines := strings.Split(string(text), "\n"); p.Line <= len(lines) {
		switch line := lines[p.Line-1]; {
		case strings.Contains(line, "{") && unquoted.MatchString(line):
			p.Message += `; within {…} a variable stands in quotes: "${NAME}"`
		case strings.HasPrefix(strings.TrimLeft(line, " "), "\t"):
			p.Message += "; the line is indented by a tab: write spaces"
		}
	}
	d.problems = append(d.problems, p)
}

// unquoted is a variable outside of quotes.
var unquoted = regexp.MustCompile(`[:,\[{ ]\$\{`)

// value decodes a node into v, whatever that is.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	tagged := n.Style&yaml.TaggedStyle != 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" && !tagged {
		return // "key:" with nothing, null or ~ keeps the default
	}
	written := n.Kind == yaml.ScalarNode && !strings.Contains(n.Value, "${") && !strings.HasPrefix(n.Value, "file:")
	d.at[key] = position{line: n.Line, column: n.Column, plain: written && n.Value != ""}
	switch {
	case tagged:
		d.problem(n, key, "%q: tags mean nothing here; write the value alone", n.Tag)
	case v.Kind() == reflect.Struct:
		d.mapping(n, key, func(k, value *yaml.Node, path string) { d.field(k, value, v, path) })
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(n, key, func(k, value *yaml.Node, path string) {
			element := reflect.New(v.Type().Elem()).Elem()
			setDefaults(element)
			d.value(value, element, path)
			v.SetMapIndex(reflect.ValueOf(k.Value), element)
		})
	case v.Kind() == reflect.Slice:
		d.sequence(n, v, key)
	case n.Kind != yaml.ScalarNode:
		d.problem(n, key, "want a single value")
	default:
		if text, ok := d.expand(n, key); ok {
			if err := d.scalar(text, v); err != nil {
				d.problem(n, key, "%v", err)
			}
		}
	}
}

// mapping visits each key once.
func (d *decoder) mapping(n *yaml.Node, key string, visit func(k, value *yaml.Node, path string)) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, key, "want a mapping")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			d.problem(k, key, "want keys that are plain text")
			continue
		}
		path := strings.TrimPrefix(key+"."+k.Value, ".")
		if line, again := seen[k.Value]; again {
			d.problem(k, path, "stands twice; first in line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		visit(k, n.Content[i+1], path)
	}
}

// field decodes one key of a struct.
func (d *decoder) field(k, value *yaml.Node, v reflect.Value, path string) {
	fields := fieldsOf(v)
	if f, ok := fields[k.Value]; ok {
		d.value(value, f, path)
		return
	}
	if k.Value == "alone" && v.Type() == reflect.TypeFor[CacheOperation]() {
		d.problem(k, path, "the key is now called coalesce; replace alone: true with coalesce: false")
		return
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	if near := nearest(k.Value, names); near != "" {
		d.problem(k, path, "unknown key; did you mean %q?", near)
		return
	}
	d.problem(k, path, "unknown key; must be one of %s", strings.Join(names, ", "))
}

// fieldsOf returns the fields of a struct by their keys, embedded ones among
// them.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			for name, inner := range fieldsOf(v.Field(i)) {
				fields[name] = inner
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		fields[name] = v.Field(i)
	}
	return fields
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind != yaml.SequenceNode {
		d.problem(n, key, "want a list")
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		element := list.Index(i)
		setDefaults(element)
		d.value(item, element, fmt.Sprintf("%s[%d]", key, i))
	}
	v.Set(list)
}

// flags lays the flags over the file.
func (d *decoder) flags(root reflect.Value) {
	for _, key := range slices.Sorted(maps.Keys(d.source.Flags)) {
		v := root
		for part := range strings.SplitSeq(key, ".") {
			v = fieldsOf(v)[part]
		}
		name := d.source.FlagNames[key]
		d.at[key] = position{flag: name}
		if err := d.scalar(d.source.Flags[key], v); err != nil {
			d.failed[key] = true
			d.problems = append(d.problems, Problem{Key: name, Message: err.Error()})
		}
	}
}

// expand puts the environment and, for a secret, a file into a scalar's text.
func (d *decoder) expand(n *yaml.Node, key string) (string, bool) {
	text, err := expandEnv(n.Value, d.source.Getenv)
	if err != nil {
		d.problem(n, key, "%v", err)
		return "", false
	}
	return text, true
}

// scalar parses a text into v. A secret's text is quoted in no error.
func (d *decoder) scalar(text string, v reflect.Value) error {
	switch target := v.Addr().Interface().(type) {
	case *credential.Secret:
		secret, err := d.secret(text)
		*target = secret
		return err
	case *time.Duration:
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed < 0 {
			return fmt.Errorf("%q is not a duration: write for example 500ms, 30s or 1h30m", text)
		}
		*target = parsed
		return nil
	case *Size:
		parsed, err := parseSize(text)
		if err != nil {
			return err
		}
		*target = parsed
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q: must be true or false", text)
		}
		v.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("%q is not a number", text)
		}
		v.SetFloat(f)
	default:
		panic("config: a field of kind " + v.Kind().String())
	}
	return nil
}

// secret reads "file:PATH", relative to the configuration's folder; anything
// else is the secret itself. A file that holds nothing is a mistake: an empty
// secret would switch off what it was to protect.
func (d *decoder) secret(text string) (credential.Secret, error) {
	path, ok := strings.CutPrefix(text, "file:")
	if !ok {
		return credential.Secret(text), nil
	}
	path = d.path(path)
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("file %q: %s", path, reason(err))
	}
	held := strings.TrimRight(string(content), "\r\n")
	if held == "" {
		return "", fmt.Errorf("file %q: is empty", path)
	}
	return credential.Secret(held), nil
}
