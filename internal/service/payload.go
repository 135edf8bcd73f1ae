package service

import (
	"cmp"
	"slices"
	"strings"
)

// appID and installationID identify the app that is installed on every organization.
const (
	appID          = 9001
	installationID = 9101
)

// payload returns the body of a delivery to a kind of webhook (Document B section 6.3). No payload has an enterprise.
// Only payloads for apps have an installation.
func (s *Service) payload(e *event, to string) object {
	var o object
	for name := range strings.FieldsSeq(eventKinds[e.name].Payload) {
		name, optional := strings.CutSuffix(name, "?")
		if !optional || e.hasMember(name, to) {
			o = append(o, field{name, payloadMembers[name](s, e)})
		}
	}
	return o
}

// hasMember reports whether the payload has an optional member.
func (e *event) hasMember(member, to string) bool {
	switch member {
	case "action":
		return e.action != ""
	case "enterprise":
		return false
	case "installation":
		return to == onApp
	case "organization":
		return e.organization != nil
	case "repository":
		return e.repository != nil
	}
	return true
}

// payloadMembers maps the name of a payload member to a function that computes the member. The documents do not define
// the content of members that are specific to one event. The service gives those members a small content from the
// state.
var payloadMembers = map[string]func(*Service, *event) any{
	"action": func(_ *Service, e *event) any { return e.action },
	"installation": func(*Service, *event) any {
		return object{{"id", installationID}, {"node_id", nodeID("Installation", installationID)}}
	},
	"organization": func(_ *Service, e *event) any { return organizationSummary(e.req, e.organization) },
	"repository":   func(s *Service, e *event) any { return repositoryObject(s, e.req, e.repository) },
	"sender":       func(_ *Service, e *event) any { return userObject(e.req, e.sender) },

	"after":    func(_ *Service, e *event) any { return e.push.after },
	"base_ref": func(_ *Service, e *event) any { return e.push.baseRef },
	"before":   func(_ *Service, e *event) any { return e.push.before },
	"commits":  payloadCommits,
	"compare": func(_ *Service, e *event) any {
		return e.htmlURL() + "/compare/" + e.push.before[:12] + "..." + e.push.after[:12]
	},
	"created":     func(_ *Service, e *event) any { return e.push.created },
	"deleted":     func(_ *Service, e *event) any { return e.push.deleted },
	"forced":      func(_ *Service, e *event) any { return e.push.forced },
	"head_commit": payloadHeadCommit,
	"pusher":      func(_ *Service, e *event) any { return object{{"name", e.sender.login}, {"email", e.sender.email}} },
	"ref":         payloadRef,

	"commit_oid":    func(_ *Service, e *event) any { return e.headSHA() },
	"description":   payloadDescription,
	"master_branch": func(_ *Service, e *event) any { return e.repository.defaultBranch },
	"pusher_type":   func(*Service, *event) any { return "user" },
	"ref_type":      func(_ *Service, e *event) any { return map[bool]string{true: "tag", false: "branch"}[e.isTag()] },

	"alert": func(_ *Service, e *event) any {
		return append(object{{"number", e.serial}}, e.newObject("/code-scanning/alerts", field{"state", "open"},
			field{"rule", object{{"id", "unused-lever"}, {"severity", "warning"}, {"description", "A lever that is never pulled"}}},
			field{"tool", object{{"name", "Inspector"}}}, field{"most_recent_instance", object{{"ref", e.ref}, {"commit_sha", e.headSHA()}, {"state", "open"}}})...)
	},
	"assignee": payloadAssignee,
	"changes": func(_ *Service, e *event) any {
		return object{{"field_value", object{{"field_name", "Status"}, {"field_type", "single_select"}, {"from", "Todo"}, {"to", "Done"}}}}
	},
	"check_run": func(_ *Service, e *event) any { return e.checkObject("/check-runs", field{"name", "build"}) },
	"check_suite": func(_ *Service, e *event) any {
		return e.checkObject("/check-suites", field{"head_branch", e.repository.defaultBranch})
	},
	"comment": func(_ *Service, e *event) any {
		return e.newObjectBySender("user", "/comments", field{"body", "Does it still fit?"}, field{"commit_id", e.headSHA()}, field{"path", "gear/gear.go"}, field{"line", 1})
	},
	"definition": func(*Service, *event) any {
		return object{
			{"property_name", "team"}, {"value_type", "single_select"}, {"required", false}, {"default_value", nil},
			{"description", "Team that maintains the repository"}, {"allowed_values", []string{"gears", "levers"}},
		}
	},
	"exemption_request": func(_ *Service, e *event) any {
		return append(e.newObject("/bypass-requests", field{"status", "pending"}),
			field{"number", e.serial}, field{"requester_id", e.sender.id}, field{"requester_login", e.sender.login}, field{"request_type", strings.TrimPrefix(e.name, "bypass_request_")})
	},
	"number": func(_ *Service, e *event) any { return e.number() },
	"project": func(_ *Service, e *event) any {
		return e.newObjectBySender("creator", "/projects", field{"name", "Widgets"}, field{"body", "All about widgets"}, field{"number", e.serial}, field{"state", "open"})
	},
	"project_column": func(_ *Service, e *event) any { return e.newObject("/projects/columns", field{"name", "In progress"}) },
	"projects_v2": func(_ *Service, e *event) any {
		return e.newObjectBySender("creator", "/projects", field{"title", "Widgets"}, field{"number", e.serial}, field{"public", false}, field{"closed_at", nil})
	},
	"projects_v2_item": func(_ *Service, e *event) any {
		return e.newObjectBySender("creator", "/projects/items", field{"project_node_id", nodeID("/projects", e.serial)}, field{"content_type", "Issue"}, field{"archived_at", nil})
	},
	"projects_v2_status_update": func(_ *Service, e *event) any {
		return e.newObjectBySender("creator", "/projects/updates", field{"project_node_id", nodeID("/projects", e.serial)}, field{"status", "ON_TRACK"}, field{"body", "All gears turn"})
	},
	"pull_request": payloadPullRequest,
	"registry_package": func(_ *Service, e *event) any {
		return e.newObjectBySender("owner", "/packages", field{"name", "widget"}, field{"package_type", "container"})
	},
	"release": payloadRelease,
	"review": func(_ *Service, e *event) any {
		return e.newObjectBySender("user", "/reviews", field{"state", "approved"}, field{"body", "It fits"}, field{"commit_id", e.headSHA()}, field{"submitted_at", timestamp(e.at)})
	},
	"rule": func(_ *Service, e *event) any {
		return e.newObject("/protection/rules", field{"name", e.repository.defaultBranch}, field{"repository_id", e.repository.id}, field{"admin_enforced", true})
	},
	"thread": func(_ *Service, e *event) any {
		return object{{"node_id", nodeID("Thread", e.serial)}, {"comments", []object{e.newObjectBySender("user", "/comments", field{"body", "Does it still fit?"})}}}
	},
}

// paths returns the path of the event's repository or organization in the API, and its path on the web site.
func (e *event) paths() (api, html string) {
	if e.repository != nil {
		return "/repos/" + e.repository.fullName(), "/" + e.repository.fullName()
	}
	return "/orgs/" + e.organization.login, "/orgs/" + e.organization.login
}

// htmlURL returns the web page of the event's repository or organization.
func (e *event) htmlURL() string {
	_, html := e.paths()
	return e.req.base + html
}

// newObject returns an object that is not in the state. The object is created at the time of the event, below a path.
func (e *event) newObject(below string, more ...field) object {
	api, html := e.paths()
	self := below + "/" + itoa(e.serial)
	return append(object{
		{"id", e.serial}, {"node_id", nodeID(below, e.serial)},
		{"url", e.req.base + api + self}, {"html_url", e.req.base + html + self},
		{"created_at", timestamp(e.at)}, {"updated_at", timestamp(e.at)},
	}, more...)
}

// newObjectBySender returns a new object that names the sender as its author, in the member called name.
func (e *event) newObjectBySender(name, below string, more ...field) object {
	return append(e.newObject(below, more...), field{name, userObject(e.req, e.sender)})
}

// checkObject returns a check run or a check suite of the default branch.
func (e *event) checkObject(below string, more ...field) object {
	status, conclusion := "queued", any(nil)
	if e.action == "completed" {
		status, conclusion = "completed", "success"
	}
	return e.newObject(below, append(more, field{"head_sha", e.headSHA()}, field{"status", status}, field{"conclusion", conclusion})...)
}

// headSHA returns the SHA of the default branch's head.
func (e *event) headSHA() string { return cmp.Or(e.repository.head(), zeroSHA) }

// isTag reports whether the ref is a tag.
func (e *event) isTag() bool { return strings.HasPrefix(e.ref, "refs/tags/") }

// number returns the number of a pull request. Pull requests are numbered after the issues.
func (e *event) number() int { return e.repository.lastNumber + e.serial }

// payloadRef returns the full ref, or only the name of the ref for the event create.
func payloadRef(_ *Service, e *event) any {
	if e.name == "create" {
		return strings.TrimPrefix(strings.TrimPrefix(e.ref, "refs/heads/"), "refs/tags/")
	}
	return e.ref
}

func payloadDescription(_ *Service, e *event) any {
	if e.repository.description == "" {
		return nil
	}
	return e.repository.description
}

func payloadAssignee(_ *Service, e *event) any {
	if e.action == "assigned" || e.action == "unassigned" {
		return userObject(e.req, e.sender)
	}
	return nil
}

func payloadCommits(_ *Service, e *event) any {
	all := make([]object, 0, len(e.push.commits))
	for _, c := range e.push.commits {
		all = append(all, commitObject(e, c))
	}
	return all
}

func payloadHeadCommit(_ *Service, e *event) any {
	if e.push.head == nil {
		return nil
	}
	return commitObject(e, e.push.head)
}

func payloadPullRequest(_ *Service, e *event) any {
	state := "open"
	if e.action == "closed" {
		state = "closed"
	}
	return append(object{{"number", e.number()}}, e.newObjectBySender("user", "/pulls", field{"state", state}, field{"title", "Polish the widget"}, field{"body", nil}, field{"draft", false},
		field{"head", object{{"ref", "polish"}, {"sha", e.headSHA()}}}, field{"base", object{{"ref", e.repository.defaultBranch}, {"sha", e.headSHA()}}})...)
}

func payloadRelease(_ *Service, e *event) any {
	draft := !slices.Contains([]string{"published", "released", "prereleased"}, e.action)
	return e.newObjectBySender("author", "/releases", field{"tag_name", "v" + itoa(e.serial) + ".0.0"}, field{"target_commitish", e.repository.defaultBranch},
		field{"name", nil}, field{"body", nil}, field{"draft", draft}, field{"prerelease", e.action == "prereleased"}, field{"assets", []object{}})
}
