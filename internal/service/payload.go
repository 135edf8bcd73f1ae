package service

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"regexp"
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
			o = append(o, field{name, s.member(e, name)})
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

// payloadMembers maps the name of a payload member to a function that computes the member. reference/payloads.tsv has the
// other members.
var payloadMembers = map[string]func(*Service, *event) any{
	"action": func(_ *Service, e *event) any { return e.action },
	"installation": func(*Service, *event) any {
		return object{{"id", installationID}, {"node_id", nodeID("Installation", installationID)}}
	},
	"organization": func(_ *Service, e *event) any { return organizationSummary(e.req, e.organization) },
	"repository":   func(s *Service, e *event) any { return repositoryObject(s, e.req, e.repository) },

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
	"description": payloadDescription,
}

//go:embed reference/payloads.tsv
var payloadsText string

var payloadTemplates = func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(payloadsText) {
		name, template, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all[name] = template
	}
	return all
}()

var placeholder = regexp.MustCompile(`\$[a-z_]+(:[a-z/-]+)?`)

// member returns a member of the payload.
func (s *Service) member(e *event, name string) any {
	if compute := payloadMembers[name]; compute != nil {
		return compute(s, e)
	}
	values := e.values()
	return json.RawMessage(placeholder.ReplaceAllStringFunc(payloadTemplates[name], func(name string) string {
		if _, below, isNew := strings.Cut(name, ":"); isNew {
			return strings.Trim(string(encode(e.newObject(below))), "{}")
		}
		return string(encode(values[name[1:]]))
	}))
}

// values returns the values that templates of payload members use.
func (e *event) values() map[string]any {
	values := map[string]any{
		"serial": e.serial, "at": timestamp(e.at), "sender": userObject(e.req, e.sender), "sender_id": e.sender.id, "sender_login": e.sender.login,
		"ref": e.ref, "ref_type": map[bool]string{true: "tag", false: "branch"}[e.isTag()], "tag": "v" + itoa(e.serial) + ".0.0",
		"project": nodeID("/projects", e.serial), "thread": nodeID("Thread", e.serial), "request_type": strings.TrimPrefix(e.name, "bypass_request_"),
		"status": "queued", "conclusion": nil, "assignee": nil, "state": "open", "prerelease": e.action == "prereleased",
		"draft": !slices.Contains([]string{"published", "released", "prereleased"}, e.action),
	}
	if r := e.repository; r != nil {
		values["sha"], values["branch"], values["repository_id"], values["number"] = cmp.Or(r.head(), zeroSHA), r.defaultBranch, r.id, r.lastNumber+e.serial
	}
	switch e.action {
	case "completed":
		values["status"], values["conclusion"] = "completed", "success"
	case "closed":
		values["state"] = "closed"
	case "assigned", "unassigned":
		values["assignee"] = values["sender"]
	}
	return values
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
func (e *event) newObject(below string) object {
	api, html := e.paths()
	self := below + "/" + itoa(e.serial)
	return object{
		{"id", e.serial}, {"node_id", nodeID(below, e.serial)},
		{"url", e.req.base + api + self}, {"html_url", e.req.base + html + self},
		{"created_at", timestamp(e.at)}, {"updated_at", timestamp(e.at)},
	}
}

// isTag reports whether the ref is a tag.
func (e *event) isTag() bool { return strings.HasPrefix(e.ref, "refs/tags/") }

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
