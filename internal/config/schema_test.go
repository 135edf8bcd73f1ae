package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// node is the part of JSON Schema that the schema uses.
type node struct {
	Type                 string
	Description          string
	Enum                 []any
	Default              any
	Pattern              string
	AnyOf                []*node
	Properties           map[string]*node
	Items                *node
	AdditionalProperties json.RawMessage
}

func schema(t *testing.T) *node {
	t.Helper()
	var root node
	noError(t, json.Unmarshal(must(Schema()), &root))
	return &root
}

// validate returns the violations of a value, or nil for a valid value.
func (n *node) validate(key string, value any) (mistakes []string) {
	if len(n.AnyOf) > 0 && !slices.ContainsFunc(n.AnyOf, func(alternative *node) bool { return alternative.validate(key, value) == nil }) {
		mistakes = append(mistakes, key+": matches no alternative")
	}
	if n.Type != "" && n.Type != typeOf(value) && (n.Type != "number" || typeOf(value) != "integer") {
		return append(mistakes, fmt.Sprintf("%s: not of type %s", key, n.Type))
	}
	if n.Enum != nil && !slices.ContainsFunc(n.Enum, func(one any) bool { return fmt.Sprint(one) == fmt.Sprint(value) }) {
		mistakes = append(mistakes, key+": not in the enum")
	}
	if text, ok := value.(string); ok && !regexp.MustCompile(n.Pattern).MatchString(text) {
		mistakes = append(mistakes, key+": does not match the pattern")
	}
	switch value := value.(type) {
	case []any:
		for i, item := range value {
			mistakes = append(mistakes, n.Items.validate(fmt.Sprintf("%s[%d]", key, i), item)...)
		}
	case map[string]any:
		for name, member := range value {
			mistakes = append(mistakes, n.member(name).validate(strings.TrimPrefix(key+"."+name, "."), member)...)
		}
	}
	return mistakes
}

// member returns the schema of a property. For an unknown property, member returns a schema that no value matches.
func (n *node) member(name string) *node {
	if p := n.Properties[name]; p != nil {
		return p
	}
	var additional node
	if json.Unmarshal(n.AdditionalProperties, &additional) == nil && additional.Type != "" {
		return &additional
	}
	return &node{Type: "known key"}
}

func typeOf(value any) string {
	if value == nil {
		return "null"
	}
	return map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Float64: "number", reflect.Slice: "array", reflect.Map: "object",
	}[reflect.TypeOf(value).Kind()]
}

// violations validates a file and returns the violations.
func violations(t *testing.T, root *node, text string) []string {
	t.Helper()
	var value any
	noError(t, yaml.Load([]byte(text), &value))
	return root.validate("", value)
}

func TestSchemaAcceptsValidFiles(t *testing.T) {
	root := schema(t)
	for _, text := range []string{
		everything,
		`limits: {concurrent: "${N}", headroom: "${H:-0.5}", refusal_status: "${N:-429}", wait: "${W}", content: [{max: "${N}", window: 1h30m}]}`,
		`cache: {memory: "512KiB"}`, `cache: {memory: "${N}MiB"}`, `upstream: {dialect: "${D:-service}"}`, `callers: {pass_through: "${P}"}`,
		`telemetry: {sample: 1}`, `telemetry: {sample: 0.5}`, `statistics: {wait: "0"}`, `statistics: {wait: 1.5s}`, `tls: {domains: []}`,
	} {
		equal(t, text, violations(t, root, text), []string(nil))
	}
}

func TestSchemaRejectsInvalidFiles(t *testing.T) {
	root := schema(t)
	for text, want := range map[string]string{
		"listne: x":                                             "listne: not of type known key",
		"limits: {primary: {root: 1}}":                          "limits.primary.root: not of type known key",
		"limits: {policy.Limits: {}}":                           "limits.policy.Limits: not of type known key",
		"clients: [{nick: a}]":                                  "clients[0].nick: not of type known key",
		"limits: {content: [{max: 1, for: 1s}]}":                "limits.content[0].for: not of type known key",
		"cache: {operations: {gitignore/get-template: {t: 1}}}": "cache.operations.gitignore/get-template.t: not of type known key",
		"clients: a":                                            "clients: not of type array",
		"limits: 3":                                             "limits: not of type object",
		"listen: 8080":                                          "listen: not of type string",
		"limits: {wait: soon}":                                  "limits.wait: does not match the pattern",
		"limits: {wait: '30'}":                                  "limits.wait: does not match the pattern",
		"limits: {wait: '-1s'}":                                 "limits.wait: does not match the pattern",
		"cache: {memory: 256MB}":                                "cache.memory: does not match the pattern",
		"upstream: {dialect: klingon}":                          "upstream.dialect: matches no alternative",
		"limits: {refusal_status: 500}":                         "limits.refusal_status: matches no alternative",
		"limits: {concurrent: many}":                            "limits.concurrent: matches no alternative",
		"limits: {inbound: {rate: 1.5}}":                        "limits.inbound.rate: matches no alternative",
		"limits: {inbound: {per: 1s}}":                          "limits.inbound.per: not of type known key",
		"limits: {concurrent: 1.5}":                             "limits.concurrent: matches no alternative",
		"callers: {pass_through: 'yes'}":                        "callers.pass_through: matches no alternative",
	} {
		equal(t, text, violations(t, root, text), []string{want})
		_, err := parse(t, minimal+text)
		failIf(t, err == nil && !strings.HasPrefix(text, "upstream"), "%s: Parse accepts it", text)
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	var undescribed func(key string, n *node)
	undescribed = func(key string, n *node) {
		failIf(t, n.Description == "" && key != "" && !strings.HasSuffix(key, "[]"), "%s has no description", key)
		for name, p := range n.Properties {
			undescribed(strings.TrimPrefix(key+"."+name, "."), p)
		}
		if n.Items != nil {
			undescribed(key+"[]", n.Items)
		}
	}
	undescribed("", schema(t))
}

func TestSchemaHasTheDefaults(t *testing.T) {
	root := schema(t)
	for key, want := range map[string]any{
		"listen": ":8080", "admin.listen": "127.0.0.1:9090", "upstream.dialect": "service", "upstream.timeout": "30s", "upstream.limits": "on", "store.url": "memory:",
		"callers.pass_through": true, "limits.wait": "10s", "limits.primary.user": 5000.0, "limits.inbound.rate": 500.0, "limits.inbound.burst": 1000.0, "limits.inbound.body": "10m0s", "cache.memory": "256MiB", "cache.etags": "computed",
		"telemetry.sample": 1.0, "telemetry.access_log": "all", "telemetry.log_format": "text", "telemetry.propagate": "off", "headers.ratelimit": "off", "drain.timeout": "10s", "upstream.url": nil, "admin.token": nil, "admin.prometheus.url": nil,
	} {
		n := root
		for name := range strings.SplitSeq(key, ".") {
			n = n.Properties[name]
		}
		equal(t, key, n.Default, want)
	}
}

func TestSchemaAcceptsTheMaskedDefaults(t *testing.T) {
	equal(t, "violations", schema(t).validate("", plain(Default().Masked())), []string(nil))
}

// plain removes empty lists and maps, which YAML decodes as null.
func plain(values map[string]any) map[string]any {
	kept := map[string]any{}
	for name, value := range values {
		if inner, ok := value.(map[string]any); ok {
			value = plain(inner)
		}
		if value != nil {
			kept[name] = value
		}
	}
	return kept
}
