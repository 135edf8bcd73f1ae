package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v4"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
)

// Problem is one mistake in a configuration.
type Problem struct {
	File    string `json:"file"` // empty for a flag
	Line    int    `json:"line"` // 0 for a flag or for the whole file
	Column  int    `json:"column"`
	Key     string `json:"key"` // path of the key, for example "limits.wait"
	Message string `json:"message"`
}

// String returns "FILE:LINE:COLUMN: KEY: MESSAGE", without the parts that are unknown.
func (p Problem) String() string {
	place := p.File
	if p.Line > 0 {
		place += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	parts := []string{place, p.Key, p.Message}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// Problems are all mistakes in a configuration, in the order of the file. Every error of [Load] and [Parse] has this
// type.
type Problems []Problem

// Error returns a line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = "read config " + p.String()
	}
	return strings.Join(lines, "\n")
}

// Source describes the origin of a configuration. Flags override the file, and the file overrides the defaults.
type Source struct {
	// Path is the file, or empty without a file.
	Path string
	// Flags are values by key path, for example "upstream.url".
	Flags map[string]string
	// FlagNames are the names of the flags in messages, for example "--upstream", by key path.
	FlagNames map[string]string
	// Getenv looks up an environment variable.
	Getenv func(string) (string, bool)
}

// Load reads and validates the configuration.
func Load(s Source) (*Config, error) {
	if s.Path == "" {
		return Parse(s, nil)
	}
	text, err := os.ReadFile(s.Path)
	if err != nil {
		return nil, Problems{{File: s.Path, Message: reason(err) + FileRemedy(err)}}
	}
	return Parse(s, text)
}

// reason returns an error of the file system without the path.
func reason(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// Parse is like [Load] for the given text of the file.
func Parse(s Source, text []byte) (*Config, error) {
	c, _, err := ParseWithPositions(s, text)
	return c, err
}

// ParseWithPositions is like [Parse] and also returns the positions of the values in the file.
func ParseWithPositions(s Source, text []byte) (*Config, Positions, error) {
	c, d := decode(s, text)
	if len(d.problems) > 0 {
		return nil, nil, d.problems
	}
	return c, d.at, nil
}

// decode decodes and checks a configuration. The decoder has the problems.
func decode(s Source, text []byte) (*Config, *decoder) {
	d := &decoder{source: s, at: Positions{}, failed: map[string]bool{}}
	c := Default()
	var documents []yaml.Node
	if err := yaml.Load(text, &documents, yaml.WithAllDocuments(), yaml.WithUniqueKeys(false)); err != nil {
		d.syntax(err, text)
		return c, d
	}
	if len(documents) > 1 {
		d.problem(&documents[1], "", "a second YAML document starts here; use a single document")
		return c, d
	}
	root := reflect.ValueOf(c).Elem()
	for _, document := range documents {
		for _, node := range document.Content {
			d.value(node, root, "")
		}
	}
	d.flags(root)
	if _, given := d.at["upstream.dialect"]; !given {
		c.Upstream.Dialect, _, _ = c.Upstream.InferDialect()
	}
	d.check(c)
	slices.SortStableFunc(d.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Key, b.Key))
	})
	return c, d
}

// Positions maps the keys of a configuration to their places in the file.
type Positions map[string]position

// position is the place of a value: in the file, or a flag.
type position struct {
	line, column int
	flag         string
	plain        bool // the text in the file is the value, without a variable or file:
}

// At returns the line and column of the value at a key such as "clients[0].key". If the file has no such value, At
// returns the position of the nearest enclosing value.
func (p Positions) At(key string) (line, column int) {
	for {
		if at, given := p[key]; given && at.flag == "" {
			return at.line, at.column
		}
		if key == "" {
			return 1, 1
		}
		key = parent(key)
	}
}

// Plain reports whether the file contains the value at a key literally. Values from the environment or from another
// file are not plain.
func (p Positions) Plain(key string) bool { return p[key].plain }

// decoder decodes YAML nodes into a Config and records the position of each value.
type decoder struct {
	source   Source
	problems Problems
	at       Positions
	failed   map[string]bool // keys with a problem
	files    []string        // of secrets
}

func (d *decoder) problem(n *yaml.Node, key, format string, args ...any) {
	d.failed[key] = true
	d.problems = append(d.problems, Problem{
		File: d.source.Path, Line: n.Line, Column: n.Column, Key: masked(key), Message: masked(fmt.Sprintf(format, args...)),
	})
}

// anyToken matches a token of the API, a key of the gateway and a JWT, which may be at a wrong place.
var anyToken = regexp.MustCompile(`\b(gh[a-z]_|github_pat_|weir_)[A-Za-z0-9_-]{8,}|\beyJ[A-Za-z0-9_.-]{8,}|\b[0-9a-f]{40}\b`)

// masked returns a message without the tokens that it quotes.
func masked(message string) string { return anyToken.ReplaceAllString(message, "${1}•••") }

// unquoted matches a variable outside of quotes.
var unquoted = regexp.MustCompile(`[:,\[{ ]\$\{`)

// syntaxHints are remedies by a part of the parser's message.
var syntaxHints = map[string]string{
	"unexpected end of stream":           "a quote is not closed",
	"expected ',' or '}'":                "a brace before it is not closed, or a comma is missing",
	"expected ',' or ']'":                "a bracket before it is not closed, or a comma is missing",
	"mapping values are not allowed":     "put a value with a colon in quotes, or correct the indentation",
	"did not find expected '-'":          "begin each entry of the list with a dash, at the same indentation",
	"did not find expected key":          "give the keys of a mapping the same indentation",
	"UTF-8":                              "save the file as UTF-8",
	"control characters are not allowed": "save the file as plain text in UTF-8",
}

// syntax reports an error of the YAML parser, with a hint at common mistakes.
func (d *decoder) syntax(err error, text []byte) {
	message, at := err.Error(), yaml.Node{Line: 1, Column: 1}
	if load, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = load.Message
		if load.Mark.Line > 0 {
			at.Line, at.Column = load.Mark.Line, max(1, load.Mark.Column)
		}
	}
	for part, hint := range syntaxHints {
		if strings.Contains(message, part) {
			message += "; " + hint
		}
	}
	if lines := strings.Split(string(text), "\n"); at.Line <= len(lines) {
		switch line := lines[at.Line-1]; {
		case strings.Contains(line, "{") && unquoted.MatchString(line):
			message += `; inside {…} put a variable in quotes: "${NAME}"`
		case strings.HasPrefix(strings.TrimLeft(line, " "), "\t"):
			message += "; the line is indented with a tab; use spaces"
		}
	}
	d.problem(&at, "", "%s", message)
}

// value decodes a node into v.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	tagged := n.Style&yaml.TaggedStyle != 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" && !tagged {
		if v.Kind() == reflect.Slice && v.IsNil() { // the check of a list can tell an empty value from a missing key
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
			d.at[key] = position{line: n.Line, column: n.Column}
		}
		return // an empty value, null and ~ keep the default
	}
	literal := n.Kind == yaml.ScalarNode && !strings.Contains(n.Value, "${") && !strings.HasPrefix(n.Value, "file:")
	d.at[key] = position{line: n.Line, column: n.Column, plain: literal && n.Value != ""}
	switch {
	case tagged:
		d.problem(n, key, "%q: YAML tags are not supported; write only the value", n.Tag)
	case v.Kind() == reflect.Struct:
		fields := fieldsOf(v)
		d.mapping(n, key, func(k, value *yaml.Node, path string) {
			if f, ok := fields[k.Value]; ok {
				d.value(value, f, path)
				return
			}
			d.unknownKey(k, v.Type(), path, slices.Sorted(maps.Keys(fields)))
		})
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(n, key, func(k, value *yaml.Node, path string) {
			element := reflect.New(v.Type().Elem()).Elem()
			setDefaults(element)
			d.value(value, element, path)
			v.SetMapIndex(reflect.ValueOf(k.Value), element)
		})
	case v.Kind() == reflect.Slice && n.Kind != yaml.SequenceNode:
		d.problem(n, key, "must be a list: begin each entry with a dash")
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			setDefaults(v.Index(i))
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", key, i))
		}
	case n.Kind != yaml.ScalarNode:
		d.problem(n, key, "must be a single value")
	default:
		text, err := expandEnv(n.Value, d.source.Getenv)
		if err == nil {
			err = d.scalar(text, v)
		}
		if err != nil {
			d.problem(n, key, "%v", err)
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, key string, visit func(k, value *yaml.Node, path string)) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, key, "must be a mapping of keys to values, such as {KEY: VALUE}")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			d.problem(k, key, "keys must be plain text")
			continue
		}
		path := strings.TrimPrefix(key+"."+k.Value, ".")
		if line, again := seen[k.Value]; again {
			d.problem(k, path, "duplicate key; first on line %d; move its keys there, or remove it", line)
			continue
		}
		seen[k.Value] = k.Line
		visit(k, n.Content[i+1], path)
	}
}

// removedKeys contains what replaces the keys that structs had in earlier versions.
var removedKeys = map[reflect.Type]map[string]string{
	reflect.TypeFor[policy.CacheOverride](): {"alone": "the key is now called coalesce; replace alone: true with coalesce: false"},
	reflect.TypeFor[Client]():               {"pace": "the key was removed; remove pace: burst, and replace pace: even with priority: batch"},
}

// noColon matches the key at the start of a text that YAML reads as a key alone, such as "token:VALUE".
var noColon = regexp.MustCompile(`^[a-z_]+`)

// unknownKey reports a key that a struct of type t does not have.
func (d *decoder) unknownKey(k *yaml.Node, t reflect.Type, path string, names []string) {
	if name := noColon.FindString(k.Value); slices.Contains(names, name) { // the rest may be a secret
		d.problem(k, strings.TrimSuffix(path, k.Value)+name, "no space follows its colon, or it has no colon; write %s: VALUE", name)
	} else if remedy := removedKeys[t][k.Value]; remedy != "" {
		d.problem(k, path, "%s", remedy)
	} else if near := nearest(k.Value, names); near != "" {
		d.problem(k, path, "unknown key; did you mean %q?", near)
	} else {
		d.problem(k, path, "unknown key; must be one of %s", strings.Join(names, ", "))
	}
}

// fieldsOf returns the fields of a struct by key, including the fields of embedded structs.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.Anonymous {
			fields[yamlName(f)] = v.FieldByIndex(f.Index)
		}
	}
	return fields
}

func yamlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

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

// ParseDuration parses a duration that is not negative.
func ParseDuration(text string) (time.Duration, error) {
	parsed, err := time.ParseDuration(text)
	if _, bare := strconv.Atoi(text); err != nil && bare == nil {
		return 0, fmt.Errorf("%q has no unit; use %ss", text, strings.TrimLeft(text, "-+"))
	}
	if days, ok := strings.CutSuffix(text, "d"); err != nil && ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 {
			return 0, fmt.Errorf("%q has days; use %dh", text, 24*n)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration; use for example 500ms, 30s or 1h30m", text)
	}
	if parsed < 0 {
		return 0, fmt.Errorf("%q is negative; use for example 500ms, 30s or 1h30m", text)
	}
	return parsed, nil
}

// scalar parses a text into v. Errors do not quote a secret.
func (d *decoder) scalar(text string, v reflect.Value) error {
	switch target := v.Addr().Interface().(type) {
	case *credential.Secret:
		secret, err := d.secret(text)
		*target = secret
		return err
	case *time.Duration:
		parsed, err := ParseDuration(text)
		*target = parsed
		return err
	case *Switch:
		parsed, err := parseSwitch(text)
		*target = parsed
		return err
	case *Size:
		parsed, err := parseSize(text)
		*target = parsed
		return err
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
			return fmt.Errorf("%q is not a whole number; use only digits", text)
		}
		v.SetInt(int64(n))
	case reflect.Float64:
		f, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		switch {
		case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
			return fmt.Errorf("%q is not a number; use digits, such as 0.5", text)
		case strings.HasSuffix(text, "%"):
			return fmt.Errorf("%q is not a number; use %g", text, f/100)
		}
		v.SetFloat(f)
	default:
		panic("config: unsupported field of kind " + v.Kind().String())
	}
	return nil
}

// secret reads the file of "file:PATH", relative to the directory of the configuration. Any other text is the secret
// itself. An empty file is an error, because an empty secret would turn off the protection.
func (d *decoder) secret(text string) (credential.Secret, error) {
	path, ok := strings.CutPrefix(text, "file:")
	if !ok {
		return credential.Secret(text), nil
	}
	if path = d.path(path); path == "" {
		path = filepath.Dir(d.source.Path)
	}
	d.files = append(d.files, path)
	content, err := readSecret(path)
	if err != nil {
		return "", fmt.Errorf("file %q: %s%s", path, reason(err), FileRemedy(err))
	}
	secret := strings.TrimRight(string(content), "\r\n")
	switch {
	case len(content) > maxSecretFile:
		return "", fmt.Errorf("file %q: has more than 1 MiB, so it is not that of a secret; correct its path", path)
	case secret == "":
		return "", fmt.Errorf("file %q: is empty; write the secret into it", path)
	case strings.HasPrefix(secret, "\ufeff"): // editors hide the byte order mark, and it changes the secret
		return "", fmt.Errorf("file %q: begins with a byte order mark; save it without one", path)
	}
	return credential.Secret(secret), nil
}

// maxSecretFile is the largest file of a secret in bytes.
const maxSecretFile = 1 << 20

// readSecret reads a file, and stops after the largest size: a device such as /dev/zero has no end.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxSecretFile+1))
}

// reference matches a reference to a variable, also without the closing brace, and "$${".
var reference = regexp.MustCompile(`\$\$\{|\$\{[^}]*\}?`)

// expandEnv replaces ${NAME} and ${NAME:-default} by environment variables; "$${" is a literal "${". The default also
// replaces an empty variable. Without a default, a variable that is not set or empty is an error, because an empty
// secret would turn off the protection.
func expandEnv(text string, getenv func(string) (string, bool)) (string, error) {
	var problem error
	expanded := reference.ReplaceAllStringFunc(text, func(match string) string {
		inner, isReference := strings.CutPrefix(match, "${")
		if !isReference {
			return "${"
		}
		inner, closed := strings.CutSuffix(inner, "}")
		name, byDefault, hasDefault := strings.Cut(inner, ":-")
		value, set := getenv(name)
		switch {
		case closed && name == "":
			problem = cmp.Or(problem, errors.New("${} names no variable; use ${NAME}, or $${ for a literal ${"))
		case !closed:
			problem = cmp.Or(problem, errors.New("${ has no closing }; use $${ for a literal ${"))
		case value != "":
			return value
		case set && !hasDefault:
			problem = cmp.Or(problem, fmt.Errorf("environment variable %q is empty; set it, or use ${%s:-VALUE} for a default", name, name))
		case !hasDefault:
			problem = cmp.Or(problem, fmt.Errorf("environment variable %q is not set; set it, or use ${%s:-VALUE} for a default", name, name))
		}
		return byDefault
	})
	return expanded, problem
}

// nearest returns the name with the smallest edit distance to key, at most two, or an empty string.
func nearest(key string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if d := levenshtein.ComputeDistance(key, name); d < distance && d < len(name) {
			best, distance = name, d
		}
	}
	return best
}

// Size is a number of bytes. The text has a unit, such as 512KiB, 256MiB or 2GiB, or no unit.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

func parseSize(text string) (Size, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.bytes {
			break
		}
		return Size(n * u.bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size; use a number with KiB, MiB or GiB", text)
}

// String returns the size in the largest unit that divides the size.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return "0B"
}

// MarshalYAML returns the size as [Size.String] does.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// Switch is a setting with the values on and off. Some YAML tools read and write these words as booleans, so true and
// false are accepted, too.
type Switch bool

// switchValues are the values of a [Switch] in YAML.
var switchValues = []any{"on", "off", true, false}

func parseSwitch(text string) (Switch, error) {
	switch strings.ToLower(text) {
	case "on", "true":
		return true, nil
	case "off", "false":
		return false, nil
	}
	return false, fmt.Errorf("%q: must be on or off", text)
}

// String returns "on" or "off".
func (s Switch) String() string {
	if s {
		return "on"
	}
	return "off"
}

// MarshalYAML returns the setting as [Switch.String] does.
func (s Switch) MarshalYAML() (any, error) { return s.String(), nil }
