package policy

import (
	"cmp"
	"slices"
	"strings"
)

// moves is moves.yaml.
var moves = mustDecode[struct {
	Former struct {
		Repository []string `yaml:"repository"`
		Owner      []string `yaml:"owner"`
	} `yaml:"former"`
	Writes []string `yaml:"writes"`
}]("moves.yaml")

// FormerName returns the former name, in lower case, of the object that a webhook event renamed or transferred: that of the
// repository ("owner/name"), or of the organization or user if repository is empty. Without a former name it returns an empty
// string. payload is the decoded payload of the event.
func FormerName(repository string, payload map[string]any) string {
	owner, name := member(payload, moves.Former.Owner), member(payload, moves.Former.Repository)
	presentOwner, presentName, ok := strings.Cut(repository, "/")
	switch {
	case !ok:
		return lower(owner)
	case owner == "" && name == "":
		return ""
	}
	return lower(cmp.Or(owner, presentOwner) + "/" + cmp.Or(name, presentName))
}

// MayName reports whether a write may create, rename or move a repository. The member full_name of the response is then its
// present name.
func (o *Operation) MayName() bool { return slices.Contains(moves.Writes, o.ID) }

// member returns the first text at the paths in a value. A path has the names of members, separated by dots.
func member(value map[string]any, paths []string) string {
	for _, path := range paths {
		var v any = value
		for name := range strings.SplitSeq(path, ".") {
			object, _ := v.(map[string]any)
			v = object[name]
		}
		if text, ok := v.(string); ok && !strings.Contains(text, "/") {
			return text
		}
	}
	return ""
}
