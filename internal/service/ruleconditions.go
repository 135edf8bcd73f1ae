package service

import (
	"slices"
	"strings"
)

// conditions select the refs and repositories of a ruleset (Document A section 4.9). A repository ruleset may have
// RefName only. An organization ruleset has RefName and exactly one of the other fields, which select repositories.
type conditions struct {
	RefName        *patterns `json:"ref_name,omitempty"`
	RepositoryName *struct {
		patterns
		Protected bool `json:"protected"` // selected repositories cannot be renamed
	} `json:"repository_name,omitempty"`
	RepositoryID *struct {
		RepositoryIDs []int `json:"repository_ids"`
	} `json:"repository_id,omitempty"`
	RepositoryProperty *struct {
		Include []propertyCondition `json:"include"`
		Exclude []propertyCondition `json:"exclude"`
	} `json:"repository_property,omitempty"`
}

// patterns select names. A name must match a pattern of Include and no pattern of Exclude.
type patterns struct {
	Include []string `json:"include"`
	Exclude []string `json:"exclude"`
}

func (p patterns) match(matches func(pattern string) bool) bool {
	return slices.ContainsFunc(p.Include, matches) && !slices.ContainsFunc(p.Exclude, matches)
}

// propertyCondition selects repositories whose property has one of the values.
type propertyCondition struct {
	Name   string   `json:"name"`
	Values []string `json:"property_values"`
	Source string   `json:"source"` // custom, system
}

// has reports whether a repository has one of the values. Every repository has the system properties.
func (r *repository) has(p propertyCondition) bool {
	value := r.properties[p.Name]
	if p.Source == "system" {
		value = map[string]string{"fork": "false", "language": r.language, "visibility": r.visibility()}[p.Name]
	}
	return slices.Contains(p.Values, value)
}

// selects reports whether the conditions select a repository. Names are not case sensitive. A repository must match
// every included property condition and no excluded condition.
func (c conditions) selects(r *repository) bool {
	switch {
	case c.RepositoryName != nil:
		return c.RepositoryName.match(func(p string) bool { return p == "~ALL" || matchRef(strings.ToLower(p), strings.ToLower(r.name)) })
	case c.RepositoryID != nil:
		return slices.Contains(c.RepositoryID.RepositoryIDs, r.id)
	case c.RepositoryProperty != nil:
		lacks := func(p propertyCondition) bool { return !r.has(p) }
		return !slices.ContainsFunc(c.RepositoryProperty.Include, lacks) && !slices.ContainsFunc(c.RepositoryProperty.Exclude, r.has)
	}
	return true
}

// validate returns the first invalid or missing condition, or nil if all conditions are valid.
func (c conditions) validate(ofOrganization bool) *fieldError {
	var selectors []string
	for _, s := range []struct {
		name string
		used bool
	}{{"repository_name", c.RepositoryName != nil}, {"repository_id", c.RepositoryID != nil}, {"repository_property", c.RepositoryProperty != nil}} {
		if s.used {
			selectors = append(selectors, s.name)
		}
	}
	switch {
	case !ofOrganization && len(selectors) > 0:
		return invalidAt("conditions." + selectors[0])
	case ofOrganization && len(selectors) == 0:
		return missingAt("conditions")
	case len(selectors) > 1:
		return invalidAt("conditions")
	case ofOrganization && c.RefName == nil:
		return missingAt("conditions.ref_name")
	}
	return nil
}

// appliesToBranch reports whether the ruleset targets branches and its ref_name condition matches this branch. A
// ruleset without the condition applies to no branch.
func (set *ruleset) appliesToBranch(branch, defaultBranch string) bool {
	return set.Target == "branch" && set.Conditions.RefName != nil && set.Conditions.RefName.match(func(p string) bool {
		return p == "~ALL" || p == "~DEFAULT_BRANCH" && branch == defaultBranch || matchRef(p, "refs/heads/"+branch)
	})
}

// matchRef reports whether a ref name matches a pattern with the rules of fnmatch. * and ? do not match slashes, and **
// matches slashes. The time is at most proportional to the product of both lengths.
func matchRef(pattern, ref string) bool {
	reached := make([]bool, len(ref)+1) // reached[j] is true if the pattern up to here matches ref[:j]
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
			same := pattern[i] == ref[j] || pattern[i] == '?' && ref[j] != '/'
			if star {
				next[j+1] = reached[j+1] || next[j] && (across || ref[j] != '/')
			} else {
				next[j+1] = reached[j] && same
			}
		}
		reached = next
	}
	return reached[len(ref)]
}
