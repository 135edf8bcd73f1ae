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
	// organization is the owner. It is nil for a global configuration, which every organization has.
	organization *account
	// values holds the value of each of configurationFields by name.
	values  map[string]any
	created time.Time
}

// newRepositoryDefault assigns a configuration to new repositories of a kind, which is public or private_and_internal.
type newRepositoryDefault struct {
	kind          string
	configuration *configuration
}

// configurationField describes one member of the body that creates a configuration.
type configurationField struct {
	name string
	// initial is the default value. It is nil for required members.
	initial any
	// parse returns the value to store, or the path of the invalid member.
	parse func(name string, given any) (value any, invalidPath string)
}

// configurationFields lists the members of the create body (Document A section 4.2), in the order of the record in
// section 2.3.
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

func readChoice(allowed ...string) func(name string, given any) (value any, invalidPath string) {
	return func(name string, given any) (any, string) {
		if s, ok := given.(string); !ok || !slices.Contains(allowed, s) {
			return nil, name
		}
		return given, ""
	}
}

// readAutosubmitOptions reads {"labeled_runners": boolean}. The default is false.
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

// documentedBot is the name of the dependency bot in configurationFields. A dialect may use another name.
const documentedBot = "depbot"

// configurationFieldName returns the name of a field for a dialect's dependency bot.
func configurationFieldName(name, bot string) string {
	if rest, bots := strings.CutPrefix(name, documentedBot+"_"); bots {
		return bot + "_" + rest
	}
	return name
}

// configurationResource is the resource name of configurations in error responses.
const configurationResource = "CodeSecurityConfiguration"

// parseConfiguration returns the values that a create body gives to a configuration, or the first invalid field. A null
// member counts as absent.
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

// configurationsOf returns the global configurations and the organization's own configurations, by ascending id.
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

// listConfigurations lists configurations. Only this list is paged by cursors (Document A section 1).
func listConfigurations(s *Service, req *request) response {
	org := req.org
	target := req.query.Get("target_type")
	if !slices.Contains([]string{"", "all", "global"}, target) {
		return invalid(configurationResource, "target_type")
	}
	shown := slices.DeleteFunc(s.world.configurationsOf(org), func(c *configuration) bool {
		return target == "global" && c.organization != nil
	})
	path := "/organizations/" + itoa(org.id) + "/code-security/configurations"
	return listByCursor(req, configurationResource, path, shown,
		func(c *configuration) int { return c.id },
		func(c *configuration) object { return s.configurationObject(req, org, c) })
}

// createConfiguration adds a configuration to an organization. Names are unique per organization, ignoring case.
func createConfiguration(s *Service, req *request) response {
	org := req.org
	var body map[string]any
	if problem := s.decode(req.raw, configurationResource, &body); problem != nil {
		return *problem
	}
	values, fieldErr := parseConfiguration(body, s.config.Dialect.SecurityBot)
	if fieldErr != nil {
		return fail(http.StatusUnprocessableEntity, "Validation Failed", *fieldErr)
	}
	all := s.world.configurations
	if slices.ContainsFunc(all, func(other *configuration) bool {
		return other.organization == org && strings.EqualFold(other.values["name"].(string), values["name"].(string))
	}) {
		return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{configurationResource, "name", "already_exists"})
	}
	c := &configuration{id: all[len(all)-1].id + 1, organization: org, values: values, created: time.Now()}
	s.world.configurations = append(s.world.configurations, c)
	return response{status: http.StatusCreated, body: s.configurationObject(req, org, c), location: configurationURL(req, org, c)}
}

func getConfiguration(s *Service, req *request) response {
	org := req.org
	for _, c := range s.world.configurationsOf(org) {
		if itoa(c.id) == req.params["configuration_id"] {
			return response{status: http.StatusOK, modified: c.created, body: s.configurationObject(req, org, c)}
		}
	}
	return notFound()
}

func listDefaultConfigurations(s *Service, req *request) response {
	org := req.org
	return response{status: http.StatusOK, body: renderAll(org.defaults, func(d newRepositoryDefault) object {
		return object{{"default_for_new_repos", d.kind}, {"configuration", s.configurationObject(req, org, d.configuration)}}
	})}
}

// detachConfigurations removes the configuration from the named repositories of the organization. If it returns an
// error, no repository is changed. Repositories without a configuration are ignored. A repository that is locked for a
// migration is a conflict. The operation has no 422: an invalid body is a 400.
func detachConfigurations(s *Service, req *request) response {
	org := req.org
	var body struct {
		Selected []int `json:"selected_repository_ids"`
	}
	problem := s.decode(req.raw, configurationResource, &body)
	if problem == nil && len(body.Selected) == 0 {
		missing := missing(configurationResource, "selected_repository_ids")
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
			return notFound()
		}
		detached = append(detached, s.world.repositories[at])
	}
	if slices.ContainsFunc(detached, func(r *repository) bool { return r.locked }) {
		return fail(http.StatusConflict, lockedForMigration)
	}
	for _, r := range detached {
		r.configuration = nil
	}
	return response{status: http.StatusNoContent}
}
