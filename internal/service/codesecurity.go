package service

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// configuration is a code security configuration (Document A section 2.3).
type configuration struct {
	id int
	// organization is whose it is; nil for a global one, which every organization has.
	organization *account
	// values holds every one of configurationFields by name.
	values  map[string]any
	created time.Time
}

// newRepositories are the repositories that get a configuration when they are
// made: public, or private_and_internal.
type newRepositoryDefault struct {
	kind          string
	configuration *configuration
}

// configurationField is a member of a configuration that its create body gives.
type configurationField struct {
	name string
	// initial is its value where the body gives none; nil where the body must.
	initial any
	// read returns what the body gave as it is kept, or the path of what is wrong.
	parse func(name string, given any) (value any, wrong string)
}

// configurationFields are the create body of Document A section 4.2, in the order
// of the record in section 2.3.
var configurationFields = []configurationField{
	{"name", nil, readText},
	{"description", nil, readText},
	{"advanced_security", "disabled", readChoice("enabled", "disabled")},
	{"dependency_graph", "enabled", readChoice("enabled", "disabled", "not_set")},
	{"dependency_graph_autosubmit_action", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"dependency_graph_autosubmit_action_options", object{{"labeled_runners", false}}, readAutosubmitOptions},
	{"depbot_alerts", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"depbot_security_updates", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"code_scanning_default_setup", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"secret_scanning", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"secret_scanning_push_protection", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"secret_scanning_validity_checks", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"private_vulnerability_reporting", "disabled", readChoice("enabled", "disabled", "not_set")},
	{"enforcement", "enforced", readChoice("enforced", "unenforced")},
}

func readText(name string, given any) (value any, invalidPath string) {
	if _, ok := given.(string); !ok {
		return nil, name
	}
	return given, ""
}

func readChoice(allowed ...string) func(name string, given any) (value any, wrong string) {
	return func(name string, given any) (any, string) {
		if s, ok := given.(string); !ok || !slices.Contains(allowed, s) {
			return nil, name
		}
		return given, ""
	}
}

// autosubmitOptions reads {"labeled_runners": boolean}, false unless given.
func readAutosubmitOptions(name string, given any) (value any, invalidPath string) {
	options, ok := given.(map[string]any)
	if !ok {
		return nil, name
	}
	labeled, ok := options["labeled_runners"].(bool)
	if !ok && options["labeled_runners"] != nil {
		return nil, name + ".labeled_runners"
	}
	return object{{"labeled_runners", labeled}}, ""
}

// documentsBot is what the dependency bot is called in the names above; a dialect
// may call it otherwise.
const documentedBot = "depbot"

// spelled is a field's name where the dependency bot has another name.
func configurationFieldName(name, bot string) string {
	if rest, bots := strings.CutPrefix(name, documentedBot+"_"); bots {
		return bot + "_" + rest
	}
	return name
}

// configurationResource names configurations in errors.
const configurationResource = "CodeSecurityConfiguration"

// configured are the values of a configuration with that create body, or the first
// field that is wrong. A field that is null counts as not given.
func parseConfiguration(body map[string]any, bot string) (map[string]any, *problemField) {
	values := map[string]any{}
	for _, f := range configurationFields {
		name := configurationFieldName(f.name, bot)
		given := body[name]
		switch {
		case f.initial == nil && (given == nil || given == ""):
			return nil, &problemField{configurationResource, name, "missing_field"}
		case given == nil:
			values[f.name] = f.initial
			continue
		}
		value, invalidPath := f.parse(name, given)
		if invalidPath != "" {
			return nil, &problemField{configurationResource, invalidPath, "invalid"}
		}
		values[f.name] = value
	}
	return values, nil
}

// configurationsOf are the global configurations and the organization's own, by
// ascending id.
func (w *world) configurationsOf(org *account) []*configuration {
	return slices.DeleteFunc(slices.Clone(w.configurations), func(c *configuration) bool {
		return c.organization != nil && c.organization != org
	})
}

func (s *Service) configurationObject(req *request, org *account, c *configuration) object {
	kind, page := "organization", "/edit/"+itoa(c.id)
	if c.organization == nil {
		kind, page = "global", "/view"
	}
	o := object{{"id", c.id}, {"target_type", kind}}
	for _, f := range configurationFields {
		o = append(o, field{configurationFieldName(f.name, s.config.Dialect.SecurityBot), c.values[f.name]})
	}
	return append(o, object{
		{"url", configurationURL(req, org, c)},
		{"html_url", req.base + "/organizations/" + org.login + "/settings/security_products/configurations" + page},
		{"created_at", timestamp(c.created)}, {"updated_at", timestamp(c.created)},
	}...)
}

func configurationURL(req *request, org *account, c *configuration) string {
	return req.base + "/orgs/" + org.login + "/code-security/configurations/" + itoa(c.id)
}

// listConfigurations has pages by cursor, the only list that has (Document A
// section 1).
func listConfigurations(s *Service, req *request) response {
	org := req.target.organization
	target := req.query.Get("target_type")
	if !slices.Contains([]string{"", "all", "global"}, target) {
		return s.invalid(configurationResource, "target_type")
	}
	shown := slices.DeleteFunc(s.world.configurationsOf(org), func(c *configuration) bool {
		return target == "global" && c.organization != nil
	})
	path := "/organizations/" + itoa(org.id) + "/code-security/configurations"
	return listByCursor(s, req, configurationResource, path, shown,
		func(c *configuration) int { return c.id },
		func(c *configuration) object { return s.configurationObject(req, org, c) })
}

// createConfiguration adds one to the organization's own, among which its name must
// be unique, whatever the case of its letters.
func createConfiguration(s *Service, req *request) response {
	org := req.target.organization
	var body map[string]any
	if problem := s.decode(req.body, configurationResource, &body); problem != nil {
		return *problem
	}
	values, fieldErr := parseConfiguration(body, s.config.Dialect.SecurityBot)
	if fieldErr != nil {
		return s.problem(http.StatusUnprocessableEntity, "Validation Failed", *fieldErr)
	}
	all := s.world.configurations
	if slices.ContainsFunc(all, func(other *configuration) bool {
		return other.organization == org && strings.EqualFold(other.values["name"].(string), values["name"].(string))
	}) {
		return s.problem(http.StatusUnprocessableEntity, "Validation Failed", problemField{configurationResource, "name", "already_exists"})
	}
	c := &configuration{id: all[len(all)-1].id + 1, organization: org, values: values, created: time.Now()}
	s.world.configurations = append(s.world.configurations, c)
	return response{status: http.StatusCreated, body: s.configurationObject(req, org, c), location: configurationURL(req, org, c)}
}

func getConfiguration(s *Service, req *request) response {
	org := req.target.organization
	for _, c := range s.world.configurationsOf(org) {
		if itoa(c.id) == req.match.Params.Get("configuration_id") {
			return response{status: http.StatusOK, modified: c.created, body: s.configurationObject(req, org, c)}
		}
	}
	return s.notFound()
}

func listDefaultConfigurations(s *Service, req *request) response {
	org := req.target.organization
	return response{status: http.StatusOK, body: renderAll(org.defaults, func(d newRepositoryDefault) object {
		return object{{"default_for_new_repos", d.kind}, {"configuration", s.configurationObject(req, org, d.configuration)}}
	})}
}

// detachConfigurations takes repositories of the organization from whatever
// configuration they have, all of them or, where one cannot be, none. One that has
// none stays as it is; one that is locked for a migration is a conflict. The
// operation has no 422: a body that does not name repositories is a bad request.
func detachConfigurations(s *Service, req *request) response {
	org := req.target.organization
	var body struct {
		Selected []int `json:"selected_repository_ids"`
	}
	problem := s.decode(req.body, configurationResource, &body)
	if problem == nil && len(body.Selected) == 0 {
		missing := s.missing(configurationResource, "selected_repository_ids")
		problem = &missing
	}
	if problem != nil {
		problem.status = http.StatusBadRequest
		return *problem
	}
	var detached []*repository
	for _, id := range body.Selected {
		at := slices.IndexFunc(s.world.repositories, func(r *repository) bool { return r.id == id && r.owner == org })
		if at < 0 {
			return s.notFound()
		}
		detached = append(detached, s.world.repositories[at])
	}
	if slices.ContainsFunc(detached, func(r *repository) bool { return r.locked }) {
		return s.problem(http.StatusConflict, lockedForMigration)
	}
	for _, r := range detached {
		r.configuration = nil
	}
	return response{status: http.StatusNoContent}
}
