package service

import (
	"cmp"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ruleset holds the body that created a ruleset, with defaults (Document A section 4.9). The service sets the
// unexported fields.
type ruleset struct {
	Name         string        `json:"name"`
	Target       string        `json:"target"`      // branch, tag, push
	Enforcement  string        `json:"enforcement"` // disabled, active, evaluate
	BypassActors []bypassActor `json:"bypass_actors"`
	Conditions   conditions    `json:"conditions"`
	Rules        []rule        `json:"rules"`

	id         int
	owner      *account
	repository *repository // nil for a ruleset of an organization
	created    time.Time
}

// rule is one rule of a ruleset (Document A section 4.8). Some rule types have no parameters.
type rule struct {
	Type       string          `json:"type"`
	Parameters json.RawMessage `json:"parameters,omitempty"`
}

// bypassActor identifies a team, app, role or deploy key that may bypass the rules.
type bypassActor struct {
	ActorID    *int   `json:"actor_id"`
	ActorType  string `json:"actor_type"`
	BypassMode string `json:"bypass_mode"` // always, pull_request
}

// source returns the type and the name of the repository or organization that has the ruleset.
func (set *ruleset) source() (kind, name string) {
	if set.repository != nil {
		return "Repository", set.repository.fullName()
	}
	return "Organization", set.owner.login
}

func (set *ruleset) url(req *request) string {
	kind, name := set.source()
	return req.base + map[string]string{"Repository": "/repos/", "Organization": "/orgs/"}[kind] + name + "/rulesets/" + itoa(set.id)
}

// rulesetObject returns the summary object of a ruleset (Document A section 2.10).
func rulesetObject(req *request, set *ruleset) object {
	kind, name := set.source()
	return object{
		{"id", set.id}, {"name", set.Name}, {"source_type", kind}, {"source", name},
		{"enforcement", set.Enforcement}, {"node_id", nodeID("Ruleset", set.id)},
		{"_links", object{{"self", object{{"href", set.url(req)}}}, {"html", object{{"href", req.base + "/" + name + "/rules/" + itoa(set.id)}}}}},
		{"created_at", timestamp(set.created)}, {"updated_at", timestamp(set.created)},
	}
}

// rulesetDetails returns the summary and the other members of the body that created a ruleset.
func rulesetDetails(req *request, set *ruleset) object {
	return append(rulesetObject(req, set), object{
		{"target", set.Target}, {"bypass_actors", set.BypassActors}, {"conditions", set.Conditions}, {"rules", set.Rules},
	}...)
}

// rulesets returns the rulesets of the repository or the organization in the path.
func (r *request) rulesets() *[]*ruleset {
	if r.repo != nil {
		return &r.repo.rulesets
	}
	return &r.org.rulesets
}

// withInherited returns the rulesets of a repository, and those of its organization that apply to it.
func (r *repository) withInherited() []*ruleset {
	inherited := slices.DeleteFunc(slices.Clone(r.owner.rulesets), func(set *ruleset) bool { return !set.Conditions.selects(r) })
	return slices.Concat(r.rulesets, inherited)
}

func listRulesets(_ *Service, req *request) response {
	sets := *req.rulesets()
	switch parents := cmp.Or(req.query.Get("includes_parents"), "true"); {
	case req.repo == nil, parents == "false":
	case parents == "true":
		sets = req.repo.withInherited()
	default:
		return invalid("Ruleset", "includes_parents")
	}
	return listOf(sets, func(set *ruleset) object { return rulesetObject(req, set) })
}

// wildcards lists characters that patterns may contain and branch names may not.
const wildcards = "*?["

// listBranchRules lists the active rules of the repository and its organization for a branch (Document A section 4.7).
// The branch need not exist, but a pattern is refused.
func listBranchRules(_ *Service, req *request) response {
	branch := req.params["branch"]
	if strings.ContainsAny(branch, wildcards) {
		return invalid("Ruleset", "branch")
	}
	var rules []object
	for _, set := range req.repo.withInherited() {
		if set.Enforcement != "active" || !set.appliesToBranch(branch, req.repo.defaultBranch) {
			continue
		}
		kind, name := set.source()
		for _, rule := range set.Rules {
			o := object{{"type", rule.Type}, {"ruleset_source_type", kind}, {"ruleset_source", name}, {"ruleset_id", set.id}}
			if rule.Parameters != nil {
				o = append(o, field{"parameters", rule.Parameters})
			}
			rules = append(rules, o)
		}
	}
	return listOf(rules, func(o object) object { return o })
}

// createRuleset adds a ruleset to a repository or organization (Document A section 4.9).
func createRuleset(s *Service, req *request) response {
	set := &ruleset{id: s.world.lastRuleset + 1, owner: req.org, repository: req.repo, created: time.Now()}
	if refused := changeRuleset(req, set, *req.rulesets()); refused != nil {
		return *refused
	}
	*req.rulesets(), s.world.lastRuleset = append(*req.rulesets(), set), set.id
	return response{status: http.StatusCreated, location: set.url(req), body: rulesetDetails(req, set)}
}

// oneRuleset handles GET, PUT and DELETE of a ruleset of a repository or an organization. Members that the body of a PUT
// lacks keep their values.
func oneRuleset(_ *Service, req *request) response {
	sets := req.rulesets()
	at := slices.IndexFunc(*sets, func(set *ruleset) bool { return itoa(set.id) == keyOf(req.path) })
	if at < 0 {
		return notFound()
	}
	set, others := (*sets)[at], slices.Delete(slices.Clone(*sets), at, at+1)
	switch req.Method {
	case http.MethodDelete:
		*sets = others
		return response{status: http.StatusNoContent}
	case http.MethodPut:
		if refused := changeRuleset(req, set, others); refused != nil {
			return *refused
		}
	}
	return respond(rulesetDetails(req, set))
}

// changeRuleset sets the members of a ruleset that the body of a request has. The ruleset stays unchanged if a member is
// invalid.
func changeRuleset(req *request, set *ruleset, others []*ruleset) *response {
	var old []byte
	if set.Name != "" { // not a new one
		old = encode(set)
	}
	changed := ruleset{id: set.id, owner: set.owner, repository: set.repository, created: set.created}
	body, problem := bodySchemas()["Ruleset"].body("Ruleset", old, req.raw)
	if problem != nil {
		return problem
	}
	store(body, &changed)
	if fieldErr := changed.validate(others); fieldErr != nil {
		return fieldErr.of("Ruleset")
	}
	*set = changed
	return nil
}

// validate returns the first error that depends on several members, the source, or the other rulesets.
func (set *ruleset) validate(others []*ruleset) *fieldError {
	switch {
	case slices.ContainsFunc(others, func(other *ruleset) bool { return other.Name == set.Name }):
		return &fieldError{"name", "already_exists"}
	case set.Enforcement == "evaluate" && !set.owner.canEvaluate:
		return invalidAt("enforcement")
	}
	for i, actor := range set.BypassActors {
		if fieldErr := actor.validate("bypass_actors["+itoa(i)+"]", set.owner.members == nil); fieldErr != nil {
			return fieldErr
		}
	}
	if fieldErr := set.Conditions.validate(set.repository == nil); fieldErr != nil {
		return fieldErr
	}
	for i, rule := range set.Rules {
		var p struct{ Operator, Pattern string }
		_ = json.Unmarshal(rule.Parameters, &p) // other rules have no pattern
		if _, err := regexp.Compile(p.Pattern); err != nil && p.Operator == "regex" && strings.HasSuffix(rule.Type, "_pattern") {
			return invalidAt("rules[" + itoa(i) + "].parameters.pattern")
		}
	}
	return nil
}

// validate returns the error of an actor, or nil if the actor is valid (Document A section 4.9). It does not check that
// the team, app or role exists.
func (a bypassActor) validate(path string, isPersonal bool) *fieldError {
	switch isKey := a.ActorType == "DeployKey"; {
	case a.ActorType == "OrganizationAdmin" && isPersonal:
		return invalidAt(path + ".actor_type")
	case isKey && a.BypassMode == "pull_request":
		return invalidAt(path + ".bypass_mode")
	case !isKey && a.ActorID == nil:
		return missingAt(path + ".actor_id")
	case isKey && a.ActorID != nil, a.ActorType == "OrganizationAdmin" && *a.ActorID != 1:
		return invalidAt(path + ".actor_id")
	}
	return nil
}

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

// globs turns the wildcards of a quoted pattern into those of a regular expression.
var globs = strings.NewReplacer(`\*\*`, ".*", `\*`, "[^/]*", `\?`, "[^/]")

// matchRef reports whether a ref name matches a pattern with the rules of fnmatch. * and ? do not match slashes, and **
// matches slashes. The time is proportional to the length of the name.
func matchRef(pattern, ref string) bool {
	matches, _ := regexp.MatchString("(?s)^"+globs.Replace(regexp.QuoteMeta(pattern))+"$", ref) // false for a pattern that is too long
	return matches
}
