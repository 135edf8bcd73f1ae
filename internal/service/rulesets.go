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

// ruleset is what the body that made it says (Document A section 4.9), with what
// was left out filled in, and what the service knows of it.
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

// rule is an element of rules (Document A section 4.8); it has parameters where
// its type has.
type rule struct {
	Type       string          `json:"type"`
	Parameters json.RawMessage `json:"parameters,omitempty"`
}

// bypassActor is who need not keep the rules.
type bypassActor struct {
	ActorID    *int   `json:"actor_id"`
	ActorType  string `json:"actor_type"`
	BypassMode string `json:"bypass_mode"` // always, pull_request
}

// level is where rulesets stand: a repository, or an organization.
type rulesetSource struct {
	kind  string // Repository or Organization
	name  string
	path  string // of its own URL
	owner *account
}

// sourcedRuleset is a ruleset with where it stands.
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

// above are the organization's rulesets that concern the repository.
func inheritedRulesets(r *repository) []sourcedRuleset {
	return slices.DeleteFunc(organizationSource(r.owner).attach(r.owner.rulesets), func(set sourcedRuleset) bool { return !set.Conditions.selects(r) })
}

// rulesetObject is the summary (Document A section 2.10).
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
	r := req.in.repository
	sets := repositorySource(r).attach(r.rulesets)
	parents := cmp.Or(req.query.Get("includes_parents"), "true")
	if parents != "true" && parents != "false" {
		return s.invalid("Ruleset", "includes_parents")
	}
	if parents == "true" {
		sets = append(sets, inheritedRulesets(r)...)
	}
	return list(req, "/repositories/"+itoa(r.id)+"/rulesets", sets, func(set sourcedRuleset) object { return rulesetObject(req, set) })
}

func listOrganizationRulesets(s *Service, req *request) response {
	org := req.in.organization
	sets := organizationSource(org).attach(org.rulesets)
	return list(req, "/organizations/"+itoa(org.id)+"/rulesets", sets, func(set sourcedRuleset) object { return rulesetObject(req, set) })
}

// applied is a rule that holds for a branch.
type branchRule struct {
	rule
	from sourcedRuleset
}

// wildcards are what no branch has in its name, and a pattern may.
const wildcards = "*?["

// listBranchRules lists the active rules of both levels for a branch, which
// need not exist; a pattern is none (Document A section 4.7).
func listBranchRules(s *Service, req *request) response {
	r := req.in.repository
	branch := req.match.Params.Get("branch")
	if strings.ContainsAny(branch, wildcards) {
		return s.invalid("Ruleset", "branch")
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
	r := req.in.repository
	if r.locked {
		return s.problem(http.StatusForbidden, lockedForMigration)
	}
	return s.createRuleset(req, repositorySource(r), &r.rulesets)
}

func createOrganizationRuleset(s *Service, req *request) response {
	org := req.in.organization
	return s.createRuleset(req, organizationSource(org), &org.rulesets)
}

// createRuleset adds a ruleset to those of a level (Document A section 4.9), and
// answers its record: the summary, and what the body says beside.
func (s *Service) createRuleset(req *request, source rulesetSource, sets *[]*ruleset) response {
	body := map[string]json.RawMessage{}
	if problem := s.decode(req.body, "Ruleset", &body); problem != nil {
		return *problem
	}
	set, fieldErr := readRuleset(encode(body))
	if fieldErr == nil {
		fieldErr = set.validate(source, *sets)
	}
	if fieldErr != nil {
		return s.problem(http.StatusUnprocessableEntity, "Validation Failed", problemField{"Ruleset", fieldErr.field, fieldErr.code})
	}
	s.world.lastRuleset++
	set.id, set.created = s.world.lastRuleset, time.Now()
	*sets = append(*sets, set)
	made := sourcedRuleset{set, source}
	return response{status: http.StatusCreated, location: made.url(req), body: append(rulesetObject(req, made), object{
		{"target", set.Target}, {"bypass_actors", set.BypassActors}, {"conditions", set.Conditions}, {"rules", set.Rules},
	}...)}
}

// readRuleset reads a body that makes a ruleset.
func readRuleset(text []byte) (*ruleset, *fieldError) {
	body, fieldErr := rulesetSchema.read(text, "")
	if fieldErr != nil {
		return nil, fieldErr
	}
	var set ruleset
	if err := json.Unmarshal(encode(body), &set); err != nil {
		panic(err) // the shape is that of the type
	}
	return &set, nil
}

// check finds the first mistake that no member shows by itself.
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

// check finds the mistake of an actor at a path (Document A section 4.9). Whether
// there is such a team, app or role is not asked.
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

// compiles reports whether the pattern of the rule, if it has one, can be used.
func (r rule) hasValidPattern() bool {
	if !strings.HasSuffix(r.Type, "_pattern") {
		return true
	}
	var p struct{ Operator, Pattern string }
	if err := json.Unmarshal(r.Parameters, &p); err != nil {
		panic(err) // read by its shape
	}
	_, err := regexp.Compile(p.Pattern)
	return p.Operator != "regex" || err == nil
}
