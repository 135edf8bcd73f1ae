package service

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A write changes its own path, and what touchTree, touchKinds, touchEffects and its handler add.

// touchTree touches the path of a write, the list that shows the object, and the objects above that show it, too. A
// DELETE also touches all paths below.
func (s *Service) touchTree(r *request) {
	r.touch(r.qualify(r.path, r.op.view))
	if r.Method == http.MethodDelete {
		r.touch(r.qualify(r.path, r.op.view) + "/**")
	}
	for path, view := r.path, r.op.view; view != "" && !slices.Contains(roots, view); path, view = parentOf(path), parentOf(view) {
		r.touch(r.qualify(path, view))
		_, isItem := s.router.items[view]
		if isItem {
			r.touch(r.qualify(parentOf(path), parentOf(view)))
		}
		if (isItem || s.router.reads[view] != nil) && !isEmbedded(view) {
			return
		}
	}
}

// roots are the views of objects that show nothing of the paths below them.
var roots = []string{"/repos/{}/{}", "/orgs/{}", "/users/{}", "/enterprises/{}", "/user"}

// embedded are the beginnings of views whose content the object above shows.
var embedded = []string{"/repos/{}/{}/branches/{}/protection", "/repos/{}/{}/hooks/{}/config", "/orgs/{}/hooks/{}/config", "/app/hook/config"}

func isEmbedded(view string) bool {
	return slices.ContainsFunc(embedded, func(start string) bool { return strings.HasPrefix(view, start) })
}

// isDelayed reports whether the real API computes a response later, so that it need not show the last write.
func isDelayed(op *Operation) bool {
	return op.category == "search" || op.category == "activity" && strings.Contains(op.Path, "events") || strings.HasPrefix(op.Path, "/feeds") || op.ID == rateLimitID || strings.Contains(op.Path, "/migrations") ||
		op.category == "metrics" && !strings.Contains(op.Path, "/community/") || strings.Contains(op.Path, "/insights/") || strings.Contains(op.Path, "/settings/billing/")
}

// topicsOf returns the topics that a read shows.
func (s *Service) topicsOf(r *request) []string {
	path := r.qualify(r.path, r.op.view)
	switch {
	case isDelayed(r.op):
		return nil
	case r.repo == nil && strings.HasSuffix(r.op.view, "/issues"):
		if filter := r.issueFilter(); filter != "all" {
			return []string{path + " " + filter}
		}
		return []string{r.path + " all"}
	case r.repo != nil:
		if topics := gitTopics(r); topics != nil {
			return topics
		}
	}
	return []string{path}
}

// effect is what writes to a path change elsewhere. The path may begin with a method. ~ is /repos/{owner}/{repo}, ^ is /orgs/{org} and @ is the caller. In
// a topic, * is any segment, and a last ** all further ones.
type effect struct {
	path   string
	event  string // the webhook event
	topics string
}

var effects = []effect{
	{"/user", "", "/users/@"},
	{"/user/starred/{owner}/{repo}", "star", "~ ~/stargazers ~/stargazers/count /user/starred /users/@/starred"},
	{"~/subscription", "", "~/subscribers /user/subscriptions /users/@/subscriptions"},
	{"/user/following/{username}", "", "/user/following /users/@/following /users/@/following/{username} /users/{username}/followers /users/{username} /users/@ /user"},
	{"/user/keys", "", "/users/@/keys"},
	{"/user/keys/{id}", "", "/users/@/keys"},
	{"/user/gpg_keys", "", "/users/@/gpg_keys"},
	{"/user/gpg_keys/{id}", "", "/users/@/gpg_keys"},
	{"/user/ssh_signing_keys", "", "/users/@/ssh_signing_keys"},
	{"/user/ssh_signing_keys/{id}", "", "/users/@/ssh_signing_keys"},
	{"/user/social_accounts", "", "/users/@/social_accounts"},
	{"/user/emails", "", "/user/public_emails"},
	{"/user/email/visibility", "", "/user/emails /user/public_emails"},
	{"/user/codespaces", "", "/repos/*/*/codespaces"},
	{"/user/codespaces/{name}", "", "/repos/*/*/codespaces"},
	{"/user/codespaces/{name}/start", "", "/repos/*/*/codespaces"},
	{"/user/codespaces/{name}/stop", "", "/repos/*/*/codespaces"},
	{"~/codespaces", "", "/user/codespaces"},
	{"/notifications", "", "/*/repos/*/*/notifications /*/notifications/threads/*"},
	{"~/notifications", "", "/notifications"},

	{"/gists", "", "/gists/public /users/@/gists"},
	{"/gists/{id}", "", "/gists /gists/public /users/@/gists /gists/{id}/commits"},
	{"/gists/{id}/star", "", "/gists/starred"},
	{"/gists/{id}/forks", "", "/gists /users/@/gists /gists/{id}"},
	{"/gists/{id}/comments", "", "/gists/{id}"},
	{"/gists/{id}/comments/{comment}", "", "/gists/{id}"},

	{"^", "organization", "/user/orgs /user/memberships/orgs"},
	{"^/memberships/{username}", "organization", "^/members ^/members/{username} ^/invitations /user/orgs"},
	{"DELETE ^/memberships/{username}", "", "^/public_members ^/public_members/{username} ^/teams/*/members ^/teams/*/memberships/{username}"},
	{"^/members/{username}", "organization", "^/memberships/{username} ^/public_members ^/public_members/{username} ^/teams/*/members ^/teams/*/memberships/{username}"},
	{"/user/memberships/orgs/{org}", "", "^/members ^/members/@ ^/memberships/@ /user/orgs"},
	{"^/outside_collaborators/{username}", "", "^/members ^/members/{username} ^/memberships/{username}"},
	{"^/repos", "repository", ""},
	{"/user/repos", "repository", ""},
	{"^/teams", "team", "/user/teams"},
	{"^/teams/{team}", "team", "/user/teams"},
	{"^/teams/{team}/memberships/{username}", "membership", "^/teams/{team}/members ^/teams/{team}/members/{username} ^/teams/{team}/invitations ^/teams/{team} /user/teams"},
	{"^/teams/{team}/members/{username}", "membership", "^/teams/{team}/memberships/{username} ^/teams/{team} /user/teams"},
	{"^/teams/{team}/repos/{owner}/{repo}", "team", "^/teams/{team}/repos ^/teams/{team} ~/teams"},
	{"^/organization-roles/users/{username}", "", "^/organization-roles/*/users"},
	{"^/organization-roles/users/{username}/{role}", "", "^/organization-roles/{role}/users"},
	{"^/organization-roles/teams/{team}", "", "^/organization-roles/*/teams"},
	{"^/organization-roles/teams/{team}/{role}", "", "^/organization-roles/{role}/teams"},
	{"^/security-managers/teams/{team}", "", "^/security-managers"},
	{"^/actions/secrets/{name}", "", "/repos/{org}/*/actions/organization-secrets"},
	{"^/actions/secrets/{name}/repositories", "", "/repos/{org}/*/actions/organization-secrets"},
	{"^/actions/secrets/{name}/repositories/{id}", "", "/repos/{org}/*/actions/organization-secrets"},
	{"^/actions/variables", "", "/repos/{org}/*/actions/organization-variables"},
	{"^/actions/variables/{name}", "", "/repos/{org}/*/actions/organization-variables"},
	{"^/actions/variables/{name}/repositories", "", "/repos/{org}/*/actions/organization-variables"},
	{"^/actions/variables/{name}/repositories/{id}", "", "/repos/{org}/*/actions/organization-variables"},
	{"^/agents/secrets/{name}", "", "/repos/{org}/*/agents/organization-secrets"},
	{"^/agents/variables", "", "/repos/{org}/*/agents/organization-variables"},
	{"^/agents/variables/{name}", "", "/repos/{org}/*/agents/organization-variables"},
	{"^/properties/schema", "custom_property", "^/properties/schema/* ^/properties/values /repos/{org}/*/properties/values"},
	{"^/properties/schema/{name}", "custom_property", "^/properties/values /repos/{org}/*/properties/values"},
	{"^/properties/values", "custom_property_values", "/repos/{org}/*/properties/values"},
	{"~/properties/values", "custom_property_values", "/orgs/{owner}/properties/values"},
	{"^/rulesets", "repository_ruleset", "/repos/{org}/*/rulesets /repos/{org}/*/rules/branches/**"},
	{"^/rulesets/{id}", "repository_ruleset", "^/rulesets/{id}/history /repos/{org}/*/rulesets /repos/{org}/*/rules/branches/**"},
	{"~/rulesets", "repository_ruleset", "~/rules/branches/**"},
	{"~/rulesets/{id}", "repository_ruleset", "~/rulesets/{id}/history ~/rules/branches/**"},
	{"^/code-security/configurations/{id}", "", "/repos/{org}/*/code-security-configuration ^/code-security/configurations/defaults"},
	{"^/code-security/configurations/{id}/attach", "", "^/code-security/configurations/*/repositories /repos/{org}/*/code-security-configuration"},
	{"^/code-security/configurations/{id}/defaults", "", "^/code-security/configurations/defaults"},
	{"^/code-security/configurations/detach", "", "^/code-security/configurations/*/repositories /repos/{org}/*/code-security-configuration"},
	{"^/issue-types", "", "/repos/{org}/*/issue-types"},
	{"^/issue-types/{id}", "", "/repos/{org}/*/issue-types"},
	{"^/projectsV2/{number}/drafts", "projects_v2_item", "^/projectsV2/{number}/items"},
	{"/users/{username}/projectsV2/{number}/drafts", "projects_v2_item", "/users/{username}/projectsV2/{number}/items"},
	{"^/packages/{type}/{name}", "package", "^/packages"},
	{"^/packages/{type}/{name}/restore", "package", "^/packages"},
	{"/user/packages/{type}/{name}", "package", "/user/packages"},
	{"/user/packages/{type}/{name}/restore", "package", "/user/packages"},
	{"^/copilot/billing/selected_users", "", "^/copilot/billing ^/copilot/billing/seats ^/members/*/copilot"},
	{"^/copilot/billing/selected_teams", "", "^/copilot/billing ^/copilot/billing/seats ^/members/*/copilot"},

	{"~", "repository", "/user/repos"},
	{"~/forks", "fork", "~"},
	{"~/topics", "repository", "~"},
	{"~/pages", "", "~ ~/pages/builds ~/pages/builds/latest"},
	{"~/pages/builds", "page_build", "~/pages/builds/latest ~/pages"},
	{"~/collaborators/{username}", "member", "~/collaborators/{username}/permission ~/invitations"},
	{"~/invitations/{id}", "", "/user/repository_invitations"},
	{"~/deployments", "deployment", "~/environments"},
	{"~/deployments/{id}/statuses", "deployment_status", ""},
	{"~/actions/runs/{id}", "workflow_run", "~/actions/workflows/*/runs"},
	{"~/actions/runs/{id}/rerun", "workflow_run", "~/actions/workflows/*/runs ~/actions/runs/{id}/jobs"},
	{"~/actions/runs/{id}/rerun-failed-jobs", "workflow_run", "~/actions/workflows/*/runs ~/actions/runs/{id}/jobs"},
	{"~/actions/runs/{id}/cancel", "workflow_run", "~/actions/workflows/*/runs ~/actions/runs/{id}/jobs"},
	{"~/code-scanning/alerts/{number}", "code_scanning_alert", "/orgs/{owner}/code-scanning/alerts"},
	{"~/secret-scanning/alerts/{number}", "secret_scanning_alert", "/orgs/{owner}/secret-scanning/alerts"},
	{"~/dependabot/alerts/{number}", "dependabot_alert", "/orgs/{owner}/dependabot/alerts"},
	{"~/security-advisories", "repository_advisory", "/orgs/{owner}/security-advisories"},
	{"~/security-advisories/reports", "repository_advisory", "~/security-advisories /orgs/{owner}/security-advisories"},
	{"~/security-advisories/{id}", "repository_advisory", "/orgs/{owner}/security-advisories"},
	{"~/branches/{branch}/protection", "branch_protection_rule", "~/branches ~/commits/*/branches-where-head"},
	{"~/issues", "issues", ""},
	{"~/issues/{number}/labels", "issues", ""},
	{"~/issues/{number}/labels/{name}", "issues", "~/issues/{number}/labels"},
	{"~/issues/{number}/assignees", "issues", ""},
	{"~/issues/{number}", "issues", ""},
	{"~/issues/{number}/comments", "issue_comment", "~/issues/{number}/timeline"},
	{"~/issues/comments/{id}", "issue_comment", ""},
	{"~/issues/{number}/dependencies/blocked_by", "issue_dependencies", "~/issues/*/dependencies/blocking"},
	{"~/issues/{number}/dependencies/blocked_by/{id}", "issue_dependencies", "~/issues/*/dependencies/blocking"},
	{"~/issues/{number}/sub_issue", "sub_issues", "~/issues/{number}/sub_issues"},
	{"~/issues/{number}/sub_issues/priority", "sub_issues", "~/issues/{number}/sub_issues"},
	{"~/statuses/{sha}", "status", ""},
	{"~/check-runs", "check_run", ""},
	{"~/check-runs/{id}", "check_run", ""},
	{"~/releases", "release", ""},
	{"~/releases/{id}", "release", ""},
	{"~/labels", "label", ""},
	{"~/labels/{name}", "label", "~/milestones/*/labels"},
	{"~/milestones", "milestone", ""},
	{"~/milestones/{number}", "milestone", ""},
	{"~/pulls", "pull_request", ""},
	{"~/pulls/{number}", "pull_request", ""},
	{"~/pulls/{number}/merge", "pull_request", ""},
	{"~/pulls/{number}/reviews", "pull_request_review", ""},
	{"~/pulls/{number}/comments", "pull_request_review_comment", ""},
	{"~/pulls/{number}/merge-async", "", "~/pulls/{number}/merge-async/*"},
	{"~/pulls/{number}/comments/{comment}/replies", "pull_request_review_comment", "~/pulls/{number}/comments"},
	{"~/comments/{id}", "commit_comment", ""},
	{"~/commits/{sha}/comments", "commit_comment", ""},
}

// touchEffects touches what the table of effects adds to a write, and records its events.
func (s *Service) touchEffects(r *request) {
	path, _ := decodePath(r.path)
	for _, e := range compiledEffects {
		values := map[string]string{"@": r.caller.name()}
		if e.method != "" && e.method != r.Method || !bind(e.pattern, path, values) {
			continue
		}
		for _, topic := range e.topics {
			topic = strings.ReplaceAll(expand(topic, values), "/@/", "/"+r.caller.name()+"/")
			if owner, ok := strings.CutSuffix(topic, "/@"); ok {
				topic = owner + "/" + r.caller.name()
			}
			r.touch(r.qualify(topic, viewOfTopic(topic)))
		}
		if e.event != "" {
			s.emit(r, e.event, doc{})
		}
	}
}

// viewOfTopic returns the view of a topic for isMine. Only the first and the last segment matter.
func viewOfTopic(topic string) string {
	if path := strings.Split(topic, "/"); len(path) > 3 && path[1] == "orgs" {
		return "/orgs/{}/" + strings.Join(path[3:], "/")
	}
	return topic
}

type compiledEffect struct {
	method  string // or ""
	pattern []segment
	event   string
	topics  []string
}

var compiledEffects = compileEffects()

func compileEffects() []compiledEffect {
	short := strings.NewReplacer("~", "/repos/{owner}/{repo}", "^", "/orgs/{org}")
	list := make([]compiledEffect, 0, len(effects))
	for _, e := range effects {
		method, path, hasMethod := strings.Cut(short.Replace(e.path), " ")
		if !hasMethod {
			method, path = "", method
		}
		list = append(list, compiledEffect{method, parseTemplate(path), e.event, strings.Fields(short.Replace(e.topics))})
	}
	return list
}

// Event is a webhook event of a write.
type Event struct {
	Name         string // the value of the event header
	Repository   string // full name, or ""
	Organization string // or ""
	Payload      map[string]any
}

// maxEvents is the number of events that [Service.Events] returns at most.
const maxEvents = 10_000

// emit records an event and sends it to the webhooks that receive it. The action depends on the method unless the payload
// has one.
func (s *Service) emit(r *request, name string, payload doc) {
	e := &event{name: name, repository: r.repo, organization: r.org, at: r.now, payloads: map[string]any{}}
	all := doc{"sender": doc{"login": r.caller.name()}}
	if name != "push" {
		all["action"] = map[string]string{http.MethodPost: "created", http.MethodPatch: "edited", http.MethodPut: "edited", http.MethodDelete: "deleted"}[r.Method]
	}
	event := Event{Name: name, Payload: all}
	if r.repo != nil {
		e.organization, event.Repository = r.repo.owner, r.repo.fullName()
		all["repository"] = repositoryObject(s, r, r.repo)
	}
	if org := e.organization; org != nil && org.members != nil {
		event.Organization, all["organization"] = org.login, organizationSummary(r, org)
	}
	for param, member := range map[string]string{"issue_number": "issue", "pull_number": "pull_request"} {
		if number, err := strconv.Atoi(r.params[param]); err == nil {
			all[member] = doc{"number": number}
		}
	}
	maps.Copy(all, payload)
	s.events = append(s.events, event)
	s.events = s.events[max(0, len(s.events)-maxEvents):]
	e.action, _ = all["action"].(string)
	s.subscribe(e, func(string) any { return all })
	s.deliver(e)
}

// Events returns the webhook events of the writes since the last call.
func (s *Service) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}
