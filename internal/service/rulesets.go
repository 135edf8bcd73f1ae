package service

import (
	"cmp"
	"encoding/json"
	"maps"
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

	id      int
	created time.Time
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

// rulesetSource identifies the repository or organization that has a ruleset.
type rulesetSource struct {
	kind  string // Repository or Organization
	name  string
	path  string // path of the API URL
	owner *account
}

// sourcedRuleset is a ruleset together with its source.
type sourcedRuleset struct {
	*ruleset
	rulesetSource
}

func repositorySource(r *repository) rulesetSource {
	return rulesetSource{"Repository", r.fullName(), "/repos/" + r.fullName(), r.owner}
}

func organizationSource(org *account) rulesetSource {
	return rulesetSource{"Organization", org.login, "/orgs/" + org.login, org}
}

func (source rulesetSource) attach(sets []*ruleset) []sourcedRuleset {
	var all []sourcedRuleset
	for _, set := range sets {
		all = append(all, sourcedRuleset{set, source})
	}
	return all
}

// inheritedRulesets returns the rulesets of the organization that apply to the repository.
func inheritedRulesets(r *repository) []sourcedRuleset {
	return slices.DeleteFunc(organizationSource(r.owner).attach(r.owner.rulesets), func(set sourcedRuleset) bool { return !set.Conditions.selects(r) })
}

// rulesetObject returns the summary object of a ruleset (Document A section 2.10).
func rulesetObject(req *request, set sourcedRuleset) object {
	html := req.base + strings.TrimPrefix(strings.TrimPrefix(set.path, "/repos"), "/orgs") + "/rules/" + itoa(set.id)
	return object{
		{"id", set.id}, {"name", set.Name}, {"source_type", set.kind}, {"source", set.name},
		{"enforcement", set.Enforcement}, {"node_id", nodeID("Ruleset", set.id)},
		{"_links", object{{"self", object{{"href", set.url(req)}}}, {"html", object{{"href", html}}}}},
		{"created_at", timestamp(set.created)}, {"updated_at", timestamp(set.created)},
	}
}

func (set sourcedRuleset) url(req *request) string {
	return req.base + set.path + "/rulesets/" + itoa(set.id)
}

func listRepositoryRulesets(s *Service, req *request) response {
	r := req.repo
	sets := repositorySource(r).attach(r.rulesets)
	parents := cmp.Or(req.query.Get("includes_parents"), "true")
	if parents != "true" && parents != "false" {
		return invalid("Ruleset", "includes_parents")
	}
	if parents == "true" {
		sets = append(sets, inheritedRulesets(r)...)
	}
	return list(req, "/repositories/"+itoa(r.id)+"/rulesets", sets, func(set sourcedRuleset) object { return rulesetObject(req, set) })
}

func listOrganizationRulesets(s *Service, req *request) response {
	org := req.org
	sets := organizationSource(org).attach(org.rulesets)
	return list(req, "/organizations/"+itoa(org.id)+"/rulesets", sets, func(set sourcedRuleset) object { return rulesetObject(req, set) })
}

// branchRule is a rule that applies to a branch.
type branchRule struct {
	rule
	from sourcedRuleset
}

// wildcards lists characters that patterns may contain and branch names may not.
const wildcards = "*?["

// listBranchRules lists the active rules of the repository and its organization for a branch (Document A section 4.7).
// The branch need not exist, but a pattern is refused.
func listBranchRules(s *Service, req *request) response {
	r := req.repo
	branch := req.params["branch"]
	if strings.ContainsAny(branch, wildcards) {
		return invalid("Ruleset", "branch")
	}
	var rules []branchRule
	for _, set := range append(repositorySource(r).attach(r.rulesets), inheritedRulesets(r)...) {
		if set.Enforcement != "active" || !set.appliesToBranch(branch, r.defaultBranch) {
			continue
		}
		for _, rule := range set.Rules {
			rules = append(rules, branchRule{rule, set})
		}
	}
	path := "/repositories/" + itoa(r.id) + "/rules/branches/" + escapePath(branch)
	return list(req, path, rules, func(a branchRule) object {
		o := object{
			{"type", a.Type}, {"ruleset_source_type", a.from.kind}, {"ruleset_source", a.from.name}, {"ruleset_id", a.from.id},
		}
		if a.Parameters != nil {
			o = append(o, field{"parameters", a.Parameters})
		}
		return o
	})
}

func createRepositoryRuleset(s *Service, req *request) response {
	r := req.repo
	if r.locked {
		return fail(http.StatusForbidden, lockedForMigration)
	}
	return s.createRuleset(req, repositorySource(r), &r.rulesets)
}

func createOrganizationRuleset(s *Service, req *request) response {
	org := req.org
	return s.createRuleset(req, organizationSource(org), &org.rulesets)
}

// createRuleset adds a ruleset to a repository or organization (Document A section 4.9). The response contains the
// summary and the other members of the body.
func (s *Service) createRuleset(req *request, source rulesetSource, sets *[]*ruleset) response {
	body := map[string]json.RawMessage{}
	if problem := s.decode(req.raw, "Ruleset", &body); problem != nil {
		return *problem
	}
	set, fieldErr := readRuleset(encode(body))
	if fieldErr == nil {
		fieldErr = set.validate(source, *sets)
	}
	if fieldErr != nil {
		return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{"Ruleset", fieldErr.field, fieldErr.code})
	}
	s.world.lastRuleset++
	set.id, set.created = s.world.lastRuleset, time.Now()
	*sets = append(*sets, set)
	made := sourcedRuleset{set, source}
	return response{status: http.StatusCreated, location: made.url(req), body: rulesetDetails(req, made)}
}

// rulesetDetails returns the summary and the other members of the body that created a ruleset.
func rulesetDetails(req *request, set sourcedRuleset) object {
	return append(rulesetObject(req, set), object{
		{"target", set.Target}, {"bypass_actors", set.BypassActors}, {"conditions", set.Conditions}, {"rules", set.Rules},
	}...)
}

// oneRuleset handles GET, PUT and DELETE of a ruleset of a repository or an organization. Members that the body of a PUT
// lacks keep their values.
func oneRuleset(s *Service, req *request) response {
	source, sets := organizationSource(req.org), &req.org.rulesets
	if req.repo != nil {
		source, sets = repositorySource(req.repo), &req.repo.rulesets
	}
	at := slices.IndexFunc(*sets, func(set *ruleset) bool { return itoa(set.id) == keyOf(req.path) })
	if at < 0 {
		return notFound()
	}
	old := (*sets)[at]
	others := slices.Delete(slices.Clone(*sets), at, at+1)
	switch req.Method {
	case http.MethodDelete:
		*sets = others
		return response{status: http.StatusNoContent}
	case http.MethodPut:
		members, given := map[string]json.RawMessage{}, map[string]json.RawMessage{}
		_ = json.Unmarshal(encode(old), &members) // encode wrote it
		if problem := s.decode(req.raw, "Ruleset", &given); problem != nil {
			return *problem
		}
		maps.Copy(members, given)
		set, fieldErr := readRuleset(encode(members))
		if fieldErr == nil {
			fieldErr = set.validate(source, others)
		}
		if fieldErr != nil {
			return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{"Ruleset", fieldErr.field, fieldErr.code})
		}
		set.id, set.created = old.id, old.created
		(*sets)[at] = set
	}
	return response{status: http.StatusOK, body: rulesetDetails(req, sourcedRuleset{(*sets)[at], source})}
}

// readRuleset reads the body of a request that creates a ruleset.
func readRuleset(text []byte) (*ruleset, *fieldError) {
	body, fieldErr := rulesetSchema.read(text, "")
	if fieldErr != nil {
		return nil, fieldErr
	}
	var set ruleset
	if err := json.Unmarshal(encode(body), &set); err != nil {
		panic(err) // the schema matches the type
	}
	return &set, nil
}

// validate returns the first error that depends on several members, the source, or the other rulesets.
func (set *ruleset) validate(source rulesetSource, others []*ruleset) *fieldError {
	switch {
	case slices.ContainsFunc(others, func(other *ruleset) bool { return other.Name == set.Name }):
		return &fieldError{"name", "already_exists"}
	case set.Enforcement == "evaluate" && !source.owner.canEvaluate:
		return invalidAt("enforcement")
	}
	for i, actor := range set.BypassActors {
		if fieldErr := actor.validate("bypass_actors["+itoa(i)+"]", source); fieldErr != nil {
			return fieldErr
		}
	}
	if fieldErr := set.Conditions.validate(source); fieldErr != nil {
		return fieldErr
	}
	for i, rule := range set.Rules {
		if !rule.hasValidPattern() {
			return invalidAt("rules[" + itoa(i) + "].parameters.pattern")
		}
	}
	return nil
}

// validate returns the error of an actor, or nil if the actor is valid (Document A section 4.9). It does not check that
// the team, app or role exists.
func (a bypassActor) validate(path string, source rulesetSource) *fieldError {
	personal := source.owner.members == nil
	switch {
	case a.ActorType == "OrganizationAdmin" && personal:
		return invalidAt(path + ".actor_type")
	case a.ActorType == "DeployKey" && a.BypassMode == "pull_request":
		return invalidAt(path + ".bypass_mode")
	case a.ActorType == "DeployKey" && a.ActorID != nil:
		return invalidAt(path + ".actor_id")
	case a.ActorType != "DeployKey" && a.ActorID == nil:
		return missingAt(path + ".actor_id")
	case a.ActorType == "OrganizationAdmin" && *a.ActorID != 1:
		return invalidAt(path + ".actor_id")
	}
	return nil
}

// hasValidPattern reports whether the regular expression of a rule compiles. It returns true for rules without a
// pattern.
func (r rule) hasValidPattern() bool {
	if !strings.HasSuffix(r.Type, "_pattern") {
		return true
	}
	var p struct{ Operator, Pattern string }
	if err := json.Unmarshal(r.Parameters, &p); err != nil {
		panic(err) // readRule has validated the parameters
	}
	_, err := regexp.Compile(p.Pattern)
	return p.Operator != "regex" || err == nil
}
