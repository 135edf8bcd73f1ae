package service

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"maps"
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
	values := s.payloadValues(e)
	isAbsent := map[string]bool{
		"action": e.action == "", "enterprise": true, "installation": to != onApp, "organization": e.organization == nil, "repository": e.repository == nil,
	}
	var o object
	for name := range strings.FieldsSeq(eventKinds[e.name].Payload) {
		name, optional := strings.CutSuffix(name, "?")
		if !optional || !isAbsent[name] {
			o = append(o, field{name, e.member(name, values)})
		}
	}
	return o
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

// member returns a member of the payload: an expanded template, or the value with the name.
func (e *event) member(name string, values map[string]any) any {
	template, ok := payloadTemplates[name]
	if !ok {
		return values[name]
	}
	return json.RawMessage(placeholder.ReplaceAllStringFunc(template, func(name string) string {
		if _, below, isNew := strings.Cut(name, ":"); isNew {
			return strings.Trim(string(encode(e.newObject(below))), "{}")
		}
		return string(encode(values[name[1:]]))
	}))
}

// payloadValues returns the values of payloads and their templates.
func (s *Service) payloadValues(e *event) map[string]any {
	values := map[string]any{
		"serial": e.serial, "at": timestamp(e.at), "action": e.action, "sender": userObject(e.req, e.sender), "sender_id": e.sender.id, "sender_login": e.sender.login,
		"sender_email": e.sender.email, "ref": e.ref, "ref_type": map[bool]string{true: "tag", false: "branch"}[e.isTag()], "tag": "v" + itoa(e.serial) + ".0.0",
		"installation": object{{"id", installationID}, {"node_id", nodeID("Installation", installationID)}},
		"project":      nodeID("/projects", e.serial), "thread": nodeID("Thread", e.serial), "request_type": strings.TrimPrefix(e.name, "bypass_request_"),
		"status": "queued", "conclusion": nil, "assignee": nil, "state": "open", "prerelease": e.action == "prereleased",
		"draft": !slices.Contains([]string{"published", "released", "prereleased"}, e.action), "description": nil,
	}
	if e.organization != nil {
		values["organization"] = organizationSummary(e.req, e.organization)
	}
	if r := e.repository; r != nil {
		values["repository"], values["repository_id"], values["number"] = repositoryObject(s, e.req, r), r.id, r.lastNumber+e.serial
		values["commit_oid"], values["branch"] = cmp.Or(r.head(), zeroSHA), r.defaultBranch
		if r.description != "" {
			values["description"] = r.description
		}
	}
	if e.name == "create" { // the name of the ref
		values["ref"] = strings.TrimPrefix(strings.TrimPrefix(e.ref, "refs/heads/"), "refs/tags/")
	}
	if p := e.push; p != nil {
		maps.Copy(values, map[string]any{
			"before": p.before, "after": p.after, "base_ref": p.baseRef, "created": p.created, "deleted": p.deleted, "forced": p.forced,
			"compare": e.htmlURL() + "/compare/" + p.before[:12] + "..." + p.after[:12],
			"commits": renderAll(p.commits, func(c *commit) object { return commitObject(e, c) }), "head_commit": nil,
		})
		if p.head != nil {
			values["head_commit"] = commitObject(e, p.head)
		}
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
