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
	values       object // the members of the body that created the configuration, with defaults
	created      time.Time
}

// newRepositoryDefault assigns a configuration to new repositories of a kind, which is public or private_and_internal.
type newRepositoryDefault struct {
	kind          string
	configuration *configuration
}

// documentedBot is the name of the dependency bot in the schema of configurations. A dialect may use another name.
const documentedBot = "depbot"

// configurationResource is the resource name of configurations in error responses.
const configurationResource = "CodeSecurityConfiguration"

// configurationSchema returns the schema of the body that creates a configuration (Document A section 4.2).
func configurationSchema(bot string) *valueSchema {
	schema := valueSchema{kind: "record"}
	for _, m := range bodySchemas()[configurationResource].members {
		if rest, ok := strings.CutPrefix(m.name, documentedBot+"_"); ok {
			m.name = bot + "_" + rest
		}
		schema.members = append(schema.members, m)
	}
	return &schema
}

// configurationsOf returns the global configurations and the organization's own configurations, by ascending id.
func (w *world) configurationsOf(org *account) []*configuration {
	return slices.DeleteFunc(slices.Clone(w.configurations), func(c *configuration) bool {
		return c.organization != nil && c.organization != org
	})
}

func configurationObject(req *request, c *configuration) object {
	kind, page := "organization", "/edit/"+itoa(c.id)
	if c.organization == nil {
		kind, page = "global", "/view"
	}
	return slices.Concat(object{{"id", c.id}, {"target_type", kind}}, c.values, object{
		{"url", configurationURL(req, c)},
		{"html_url", req.base + "/organizations/" + req.org.login + "/settings/security_products/configurations" + page},
		{"created_at", timestamp(c.created)}, {"updated_at", timestamp(c.created)},
	})
}

func configurationURL(req *request, c *configuration) string {
	return req.base + "/orgs/" + req.org.login + "/code-security/configurations/" + itoa(c.id)
}

// listConfigurations lists configurations. Only this list is paged by cursors (Document A section 1).
func listConfigurations(s *Service, req *request) response {
	target := req.query.Get("target_type")
	if !isFilter(target, "global") {
		return invalid(configurationResource, "target_type")
	}
	shown := slices.DeleteFunc(s.world.configurationsOf(req.org), func(c *configuration) bool {
		return target == "global" && c.organization != nil
	})
	return listOf(shown, func(c *configuration) object { return configurationObject(req, c) })
}

// createConfiguration adds a configuration to an organization. Names are unique per organization, ignoring case.
func createConfiguration(s *Service, req *request) response {
	values, problem := configurationSchema(s.config.Dialect.SecurityBot).body(configurationResource, nil, req.raw)
	if problem != nil {
		return *problem
	}
	all := s.world.configurations
	c := &configuration{id: all[len(all)-1].id + 1, organization: req.org, values: values, created: time.Now()}
	if slices.ContainsFunc(all, func(other *configuration) bool {
		return other.organization == req.org && strings.EqualFold(other.name(), c.name())
	}) {
		return *(&fieldError{"name", "already_exists"}).of(configurationResource)
	}
	s.world.configurations = append(s.world.configurations, c)
	return response{status: http.StatusCreated, body: configurationObject(req, c), location: configurationURL(req, c)}
}

func (c *configuration) name() string { return c.values.member("name").(string) }

func getConfiguration(s *Service, req *request) response {
	c := first(s.world.configurationsOf(req.org), func(c *configuration) bool { return itoa(c.id) == req.params["configuration_id"] })
	if c == nil {
		return notFound()
	}
	return response{status: http.StatusOK, modified: c.created, body: configurationObject(req, c)}
}

// detachConfigurations removes the configuration from the named repositories of the organization. If it returns an
// error, no repository is changed. Repositories without a configuration are ignored. A repository that is locked for a
// migration is a conflict. The operation has no 422: an invalid body is a 400.
func detachConfigurations(s *Service, req *request) response {
	var body struct {
		Selected []int `json:"selected_repository_ids"`
	}
	problem := readBody(req.raw, configurationResource+"/detach", &body)
	if problem == nil && len(body.Selected) == 0 {
		problem = missingAt("selected_repository_ids").of(configurationResource)
	}
	if problem != nil {
		problem.status = http.StatusBadRequest
		return *problem
	}
	var detached []*repository
	for _, id := range body.Selected {
		r := first(s.world.repositories, func(r *repository) bool { return r.id == id && r.owner == req.org })
		if r == nil {
			return notFound()
		}
		detached = append(detached, r)
	}
	if slices.ContainsFunc(detached, func(r *repository) bool { return r.locked }) {
		return fail(http.StatusConflict, lockedForMigration)
	}
	for _, r := range detached {
		r.configuration = nil
	}
	return response{status: http.StatusNoContent}
}
