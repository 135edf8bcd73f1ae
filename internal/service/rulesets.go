package service

import (
	"regexp"
	"strings"
)

// leveled is a ruleset with where it stands.
type leveled struct {
	*ruleset
	kind   string // Repository or Organization
	source string
	path   string // of its own URL
}

func (s *Service) ofRepository(r *repository) []leveled {
	var all []leveled
	for _, set := range r.rulesets {
		all = append(all, leveled{set, "Repository", r.fullName(), "/repos/" + r.fullName()})
	}
	return all
}

func (s *Service) ofOrganization(org *account) []leveled {
	var all []leveled
	for _, set := range org.rulesets {
		all = append(all, leveled{set, "Organization", org.login, "/orgs/" + org.login})
	}
	return all
}

// rulesetObject is the summary (Document A section 2.10).
func rulesetObject(req *request, set leveled) object {
	self := req.base + set.path + "/rulesets/" + itoa(set.id)
	html := req.base + strings.TrimPrefix(strings.TrimPrefix(set.path, "/repos"), "/orgs") + "/rules/" + itoa(set.id)
	return object{
		{"id", set.id}, {"name", set.name}, {"source_type", set.kind}, {"source", set.source},
		{"enforcement", set.enforcement}, {"node_id", nodeID("Ruleset", set.id)},
		{"_links", object{{"self", object{{"href", self}}}, {"html", object{{"href", html}}}}},
		{"created_at", stamp(set.created)}, {"updated_at", stamp(set.created)},
	}
}

func listRepositoryRulesets(s *Service, req *request) response {
	r := s.repository(req)
	if r == nil {
		return s.notFound()
	}
	sets := s.ofRepository(r)
	if req.query.Get("includes_parents") != "false" {
		sets = append(sets, s.ofOrganization(r.owner)...)
	}
	return list(req, "/repositories/"+itoa(r.id)+"/rulesets", sets, func(set leveled) object { return rulesetObject(req, set) })
}

func listOrganizationRulesets(s *Service, req *request) response {
	org := s.organization(req)
	if org == nil {
		return s.notFound()
	}
	return list(req, "/organizations/"+itoa(org.id)+"/rulesets", s.ofOrganization(org), func(set leveled) object { return rulesetObject(req, set) })
}

// applied is a rule that holds for a branch.
type applied struct {
	rule
	from leveled
}

// listBranchRules lists the active rules of both levels for a branch, which
// need not exist (Document A section 4.7).
func listBranchRules(s *Service, req *request) response {
	r := s.repository(req)
	if r == nil {
		return s.notFound()
	}
	branch := req.match.Params["branch"]
	var rules []applied
	for _, set := range append(s.ofRepository(r), s.ofOrganization(r.owner)...) {
		if set.enforcement != "active" || !set.covers(branch, r.defaultBranch) {
			continue
		}
		for _, rule := range set.rules {
			rules = append(rules, applied{rule, set})
		}
	}
	path := "/repositories/" + itoa(r.id) + "/rules/branches/" + branch
	return list(req, path, rules, func(a applied) object {
		o := object{
			{"type", a.kind}, {"ruleset_source_type", a.from.kind}, {"ruleset_source", a.from.source}, {"ruleset_id", a.from.id},
		}
		if a.parameters != nil {
			o = append(o, field{"parameters", a.parameters})
		}
		return o
	})
}

// covers reports whether the set's ref_name condition holds for a branch
// (Document A section 4.9).
func (set *ruleset) covers(branch, defaultBranch string) bool {
	one := func(patterns []string) bool {
		for _, p := range patterns {
			if p == "~ALL" || p == "~DEFAULT_BRANCH" && branch == defaultBranch || matchRef(p, "refs/heads/"+branch) {
				return true
			}
		}
		return false
	}
	return one(set.include) && !one(set.exclude)
}

// matchRef matches a ref name against a pattern as fnmatch does: * and ? stop
// at slashes, ** does not.
func matchRef(pattern, ref string) bool {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.NewReplacer(`\*\*`, `.*`, `\*`, `[^/]*`, `\?`, `[^/]`).Replace(quoted)
	return regexp.MustCompile("^" + quoted + "$").MatchString(ref)
}
