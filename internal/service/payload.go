package service

import (
	"cmp"
	"slices"
	"strings"
)

// appID and installationID are those of the app that is installed on every
// organization.
const (
	appID          = 9001
	installationID = 9101
)

// payload is the body of a delivery to a kind of webhook (Document B section 6.3).
// There is no enterprise, and only apps are told of their installation.
func (s *Service) payload(h *happening, to string) object {
	var o object
	for name := range strings.FieldsSeq(events[h.name].members) {
		name, optional := strings.CutSuffix(name, "?")
		if !optional || h.has(name, to) {
			o = append(o, field{name, grown[name](s, h)})
		}
	}
	return o
}

// has reports whether an optional member is there.
func (h *happening) has(member, to string) bool {
	switch member {
	case "action":
		return h.action != ""
	case "enterprise":
		return false
	case "installation":
		return to == onApp
	case "organization":
		return h.organization != nil
	case "repository":
		return h.repository != nil
	}
	return true
}

// grown grows the members of payloads from what has happened. What is inside those
// that an event has for itself is not shown in the documents; they are small, and
// say what the state knows.
var grown = map[string]func(*Service, *happening) any{
	"action": func(_ *Service, h *happening) any { return h.action },
	"installation": func(*Service, *happening) any {
		return object{{"id", installationID}, {"node_id", nodeID("Installation", installationID)}}
	},
	"organization": func(_ *Service, h *happening) any { return organizationSummary(h.req, h.organization) },
	"repository":   func(s *Service, h *happening) any { return repositoryObject(s, h.req, h.repository) },
	"sender":       func(_ *Service, h *happening) any { return userObject(h.req, h.sender) },

	"after":    func(_ *Service, h *happening) any { return h.push.after },
	"base_ref": func(_ *Service, h *happening) any { return h.push.baseRef },
	"before":   func(_ *Service, h *happening) any { return h.push.before },
	"commits":  pushedCommits,
	"compare": func(_ *Service, h *happening) any {
		return h.html() + "/compare/" + h.push.before[:12] + "..." + h.push.after[:12]
	},
	"created":     func(_ *Service, h *happening) any { return h.push.created },
	"deleted":     func(_ *Service, h *happening) any { return h.push.deleted },
	"forced":      func(_ *Service, h *happening) any { return h.push.forced },
	"head_commit": headCommit,
	"pusher":      func(_ *Service, h *happening) any { return object{{"name", h.sender.login}, {"email", h.sender.email}} },
	"ref":         toldRef,

	"commit_oid":    func(_ *Service, h *happening) any { return h.sha() },
	"description":   toldDescription,
	"master_branch": func(_ *Service, h *happening) any { return h.repository.defaultBranch },
	"pusher_type":   func(*Service, *happening) any { return "user" },
	"ref_type":      func(_ *Service, h *happening) any { return map[bool]string{true: "tag", false: "branch"}[h.ofTag()] },

	"alert": func(_ *Service, h *happening) any {
		return append(object{{"number", h.serial}}, h.thing("/code-scanning/alerts", field{"state", "open"},
			field{"rule", object{{"id", "unused-lever"}, {"severity", "warning"}, {"description", "A lever that nobody pulls"}}},
			field{"tool", object{{"name", "Inspector"}}}, field{"most_recent_instance", object{{"ref", h.ref}, {"commit_sha", h.sha()}, {"state", "open"}}})...)
	},
	"assignee": toldAssignee,
	"changes": func(_ *Service, h *happening) any {
		return object{{"field_value", object{{"field_name", "Status"}, {"field_type", "single_select"}, {"from", "Todo"}, {"to", "Done"}}}}
	},
	"check_run": func(_ *Service, h *happening) any { return h.check("/check-runs", field{"name", "build"}) },
	"check_suite": func(_ *Service, h *happening) any {
		return h.check("/check-suites", field{"head_branch", h.repository.defaultBranch})
	},
	"comment": func(_ *Service, h *happening) any {
		return h.by("user", "/comments", field{"body", "Does it still fit?"}, field{"commit_id", h.sha()}, field{"path", "gear/gear.go"}, field{"line", 1})
	},
	"definition": func(*Service, *happening) any {
		return object{
			{"property_name", "team"}, {"value_type", "single_select"}, {"required", false}, {"default_value", nil},
			{"description", "Who looks after it"}, {"allowed_values", []string{"gears", "levers"}},
		}
	},
	"exemption_request": func(_ *Service, h *happening) any {
		return append(h.thing("/bypass-requests", field{"status", "pending"}),
			field{"number", h.serial}, field{"requester_id", h.sender.id}, field{"requester_login", h.sender.login}, field{"request_type", strings.TrimPrefix(h.name, "bypass_request_")})
	},
	"number": func(_ *Service, h *happening) any { return h.number() },
	"project": func(_ *Service, h *happening) any {
		return h.by("creator", "/projects", field{"name", "Widgets"}, field{"body", "All about widgets"}, field{"number", h.serial}, field{"state", "open"})
	},
	"project_column": func(_ *Service, h *happening) any { return h.thing("/projects/columns", field{"name", "In progress"}) },
	"projects_v2": func(_ *Service, h *happening) any {
		return h.by("creator", "/projects", field{"title", "Widgets"}, field{"number", h.serial}, field{"public", false}, field{"closed_at", nil})
	},
	"projects_v2_item": func(_ *Service, h *happening) any {
		return h.by("creator", "/projects/items", field{"project_node_id", nodeID("/projects", h.serial)}, field{"content_type", "Issue"}, field{"archived_at", nil})
	},
	"projects_v2_status_update": func(_ *Service, h *happening) any {
		return h.by("creator", "/projects/updates", field{"project_node_id", nodeID("/projects", h.serial)}, field{"status", "ON_TRACK"}, field{"body", "All gears turn"})
	},
	"pull_request": toldPullRequest,
	"registry_package": func(_ *Service, h *happening) any {
		return h.by("owner", "/packages", field{"name", "widget"}, field{"package_type", "container"})
	},
	"release": toldRelease,
	"review": func(_ *Service, h *happening) any {
		return h.by("user", "/reviews", field{"state", "approved"}, field{"body", "It fits"}, field{"commit_id", h.sha()}, field{"submitted_at", timestamp(h.at)})
	},
	"rule": func(_ *Service, h *happening) any {
		return h.thing("/protection/rules", field{"name", h.repository.defaultBranch}, field{"repository_id", h.repository.id}, field{"admin_enforced", true})
	},
	"thread": func(_ *Service, h *happening) any {
		return object{{"node_id", nodeID("Thread", h.serial)}, {"comments", []object{h.by("user", "/comments", field{"body", "Does it still fit?"})}}}
	},
}

// path is that of what the event is about, below the API's root and below the
// site's.
func (h *happening) path() (api, html string) {
	if h.repository != nil {
		return "/repos/" + h.repository.fullName(), "/" + h.repository.fullName()
	}
	return "/orgs/" + h.organization.login, "/orgs/" + h.organization.login
}

// html is the page of what the event is about.
func (h *happening) html() string {
	_, html := h.path()
	return h.req.base + html
}

// thing is an object that the state does not hold: made just now, below a path.
func (h *happening) thing(below string, more ...field) object {
	api, html := h.path()
	self := below + "/" + itoa(h.serial)
	return append(object{
		{"id", h.serial}, {"node_id", nodeID(below, h.serial)},
		{"url", h.req.base + api + self}, {"html_url", h.req.base + html + self},
		{"created_at", timestamp(h.at)}, {"updated_at", timestamp(h.at)},
	}, more...)
}

// by is a thing that the sender made; it says so under a name.
func (h *happening) by(name, below string, more ...field) object {
	return append(h.thing(below, more...), field{name, userObject(h.req, h.sender)})
}

// check is a run or a suite of checks of the head.
func (h *happening) check(below string, more ...field) object {
	status, conclusion := "queued", any(nil)
	if h.action == "completed" {
		status, conclusion = "completed", "success"
	}
	return h.thing(below, append(more, field{"head_sha", h.sha()}, field{"status", status}, field{"conclusion", conclusion})...)
}

// sha is the head of the default branch.
func (h *happening) sha() string { return cmp.Or(h.repository.head(), noObject) }

// ofTag reports whether the ref is a tag's.
func (h *happening) ofTag() bool { return strings.HasPrefix(h.ref, "refs/tags/") }

// number is that of a pull request: they come after the issues.
func (h *happening) number() int { return len(h.repository.issues) + h.serial }

// toldRef is the ref in full, but for the event create, which tells its name and,
// elsewhere, its type.
func toldRef(_ *Service, h *happening) any {
	if h.name == "create" {
		return strings.TrimPrefix(strings.TrimPrefix(h.ref, "refs/heads/"), "refs/tags/")
	}
	return h.ref
}

func toldDescription(_ *Service, h *happening) any {
	if h.repository.description == "" {
		return nil
	}
	return h.repository.description
}

func toldAssignee(_ *Service, h *happening) any {
	if h.action == "assigned" || h.action == "unassigned" {
		return userObject(h.req, h.sender)
	}
	return nil
}

func pushedCommits(_ *Service, h *happening) any {
	all := make([]object, 0, len(h.push.commits))
	for _, c := range h.push.commits {
		all = append(all, commitObject(h, c))
	}
	return all
}

func headCommit(_ *Service, h *happening) any {
	if h.push.head == nil {
		return nil
	}
	return commitObject(h, *h.push.head)
}

func toldPullRequest(_ *Service, h *happening) any {
	state := "open"
	if h.action == "closed" {
		state = "closed"
	}
	return append(object{{"number", h.number()}}, h.by("user", "/pulls", field{"state", state}, field{"title", "Polish the widget"}, field{"body", nil}, field{"draft", false},
		field{"head", object{{"ref", "polish"}, {"sha", h.sha()}}}, field{"base", object{{"ref", h.repository.defaultBranch}, {"sha", h.sha()}}})...)
}

func toldRelease(_ *Service, h *happening) any {
	draft := !slices.Contains([]string{"published", "released", "prereleased"}, h.action)
	return h.by("author", "/releases", field{"tag_name", "v" + itoa(h.serial) + ".0.0"}, field{"target_commitish", h.repository.defaultBranch},
		field{"name", nil}, field{"body", nil}, field{"draft", draft}, field{"prerelease", h.action == "prereleased"}, field{"assets", []object{}})
}
