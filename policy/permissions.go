package policy

import (
	"bytes"
	"slices"
)

// permissions is permissions.yaml.
var permissions = mustDecode[struct {
	Events []string `yaml:"events"`
	Texts  []string `yaml:"texts"`
}]("permissions.yaml")

// ChangesPermissions reports whether a webhook event reports a change of the permissions of its installation.
func ChangesPermissions(event string) bool { return slices.Contains(permissions.Events, event) }

// LacksPermission reports whether the body of a denial names a missing permission as its reason.
func LacksPermission(body []byte) bool {
	body = bytes.ToLower(body)
	return slices.ContainsFunc(permissions.Texts, func(text string) bool { return bytes.Contains(body, []byte(text)) })
}
