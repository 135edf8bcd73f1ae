package service

import (
	"slices"
	"strings"
)

// conditions say what a ruleset is for (Document A section 4.9). A ruleset of a
// repository has at most RefName; one of an organization has it and exactly one
// of the others, which choose repositories.
type conditions struct {
	RefName        *patterns `json:"ref_name,omitempty"`
	RepositoryName *struct {
		patterns
		Protected bool `json:"protected"` // targeted repositories keep their names
	} `json:"repository_name,omitempty"`
	RepositoryID *struct {
		RepositoryIDs []int `json:"repository_ids"`
	} `json:"repository_id,omitempty"`
	RepositoryProperty *struct {
		Include []propertyCondition `json:"include"`
		Exclude []propertyCondition `json:"exclude"`
	} `json:"repository_property,omitempty"`
}

// patterns are of names: one of Include must match, none of Exclude may.
type patterns struct {
	Include []string `json:"include"`
	Exclude []string `json:"exclude"`
}

func (p patterns) match(matches func(pattern string) bool) bool {
	return slices.ContainsFunc(p.Include, matches) && !slices.ContainsFunc(p.Exclude, matches)
}

// propertyCondition holds for a repository whose property has one of the values.
type propertyCondition struct {
	Name   string   `json:"name"`
	Values []string `json:"property_values"`
	Source string   `json:"source"` // custom, system
}

func (p propertyCondition) matches(r *repository) bool {
	value := r.properties[p.Name]
	if p.Source == "system" {
		value = r.systemProperties()[p.Name]
	}
	return slices.Contains(p.Values, value)
}

// systemProperties are those that every repository has.
func (r *repository) systemProperties() map[string]string {
	return map[string]string{"fork": "false", "language": r.language, "visibility": r.visibility()}
}

// concern reports whether the conditions choose a repository of their level.
// Names are not case sensitive. Of properties a repository must have every one
// that is included, and none that is excluded.
func (c conditions) selects(r *repository) bool {
	switch {
	case c.RepositoryName != nil:
		return c.RepositoryName.match(func(p string) bool { return p == "~ALL" || matchRef(strings.ToLower(p), strings.ToLower(r.name)) })
	case c.RepositoryID != nil:
		return slices.Contains(c.RepositoryID.RepositoryIDs, r.id)
	case c.RepositoryProperty != nil:
		lacks := func(p propertyCondition) bool { return !p.matches(r) }
		has := func(p propertyCondition) bool { return p.matches(r) }
		return !slices.ContainsFunc(c.RepositoryProperty.Include, lacks) && !slices.ContainsFunc(c.RepositoryProperty.Exclude, has)
	}
	return true
}

// check finds the mistake of conditions at a level.
func (c conditions) validate(source rulesetSource) *fieldError {
	var groups []string
	for _, group := range []struct {
		name string
		used bool
	}{
		{"repository_name", c.RepositoryName != nil},
		{"repository_id", c.RepositoryID != nil},
		{"repository_property", c.RepositoryProperty != nil},
	} {
		if group.used {
			groups = append(groups, group.name)
		}
	}
	switch ofOrganization := source.kind == "Organization"; {
	case !ofOrganization && len(groups) > 0:
		return invalidAt("conditions." + groups[0])
	case ofOrganization && len(groups) == 0:
		return missingAt("conditions")
	case len(groups) > 1:
		return invalidAt("conditions")
	case ofOrganization && c.RefName == nil:
		return missingAt("conditions.ref_name")
	}
	return nil
}

// covers reports whether the ruleset is for branches, and its ref_name condition
// holds for this one. Without the condition no branch is covered: one of its
// patterns must match.
func (set *ruleset) appliesToBranch(branch, defaultBranch string) bool {
	return set.Target == "branch" && set.Conditions.RefName != nil && set.Conditions.RefName.match(func(p string) bool {
		return p == "~ALL" || p == "~DEFAULT_BRANCH" && branch == defaultBranch || matchRef(p, "refs/heads/"+branch)
	})
}

// matchRef matches a ref name against a pattern as fnmatch does: * and ? stop
// at slashes, ** does not. It takes no longer than the product of both lengths.
func matchRef(pattern, ref string) bool {
	reached := make([]bool, len(ref)+1) // which beginnings of ref the pattern so far matches
	reached[0] = true
	for i := 0; i < len(pattern); i++ {
		star := pattern[i] == '*'
		across := star && i+1 < len(pattern) && pattern[i+1] == '*'
		if across {
			i++
		}
		next := make([]bool, len(ref)+1)
		next[0] = star && reached[0]
		for j := range len(ref) {
			one := pattern[i] == ref[j] || pattern[i] == '?' && ref[j] != '/'
			if star {
				next[j+1] = reached[j+1] || next[j] && (across || ref[j] != '/')
			} else {
				next[j+1] = reached[j] && one
			}
		}
		reached = next
	}
	return reached[len(ref)]
}
