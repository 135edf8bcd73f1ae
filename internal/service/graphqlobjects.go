package service

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/weirgate/weir/policy"
)

func (e *execution) query() node {
	var viewer any
	if u := e.s.world.user(e.req.caller); u != nil {
		viewer = e.account(u)
	}
	return node{typeName: "Query", values: values{
		"viewer": viewer,
		"repository": resolver(func(f *ast.Field, arguments map[string]any) any {
			owner, ok := e.stringArgument(f, arguments, "owner")
			name, also := e.stringArgument(f, arguments, "name")
			if !ok || !also {
				return nil
			}
			if r := e.s.world.repositoryNamed(owner + "/" + name); r != nil && e.s.world.isVisible(r, e.req.caller) {
				return e.repository(r)
			}
			return e.addError(f, "NOT_FOUND", "Could not resolve to a Repository with the name '"+owner+"/"+name+"'.")
		}),
		"node": resolver(func(f *ast.Field, arguments map[string]any) any {
			id, ok := e.stringArgument(f, arguments, "id")
			if !ok {
				return nil
			}
			if n := e.nodeWithID(id); n.typeName != "" {
				return n
			}
			return e.unresolved(f, id)
		}),
		"nodes": resolver(func(f *ast.Field, arguments map[string]any) any {
			ids, _ := arguments["ids"].([]any)
			if len(ids) > 100 {
				return e.addError(f, "ARGUMENT_LIMIT", "You may not provide more than 100 node ids.")
			}
			return renderAll(ids, func(id any) node {
				n := e.nodeWithID(fmt.Sprint(id))
				if n.typeName == "" {
					e.unresolved(f, id)
				}
				return n
			})
		}),
		"search":    resolver(e.search),
		"rateLimit": e.rateLimit(),
		"__type": resolver(func(_ *ast.Field, arguments map[string]any) any {
			if name, _ := arguments["name"].(string); schema().Types[name] != nil {
				return introspected(schema().Types[name])
			}
			return nil
		}),
		"__schema": resolver(func(f *ast.Field, _ map[string]any) any {
			return e.addError(f, "UNPROCESSABLE", "The service does not support introspection of the whole schema; query __type(name:) instead")
		}),
	}}
}

// introspected returns the names in a type of the schema. Other introspection fields are null.
func introspected(d *ast.Definition) node {
	var fields, inputs, constants []any
	for _, f := range d.Fields {
		named := node{typeName: "__Field", values: values{"name": f.Name, "description": f.Description, "isDeprecated": false}}
		if d.Kind == ast.InputObject {
			inputs = append(inputs, named)
		} else if !strings.HasPrefix(f.Name, "__") {
			fields = append(fields, named)
		}
	}
	for _, v := range d.EnumValues {
		constants = append(constants, node{typeName: "__EnumValue", values: values{"name": v.Name, "description": v.Description, "isDeprecated": false}})
	}
	return node{typeName: "__Type", values: values{
		"kind": d.Kind, "name": d.Name, "description": d.Description, "fields": fields, "inputFields": inputs, "enumValues": constants,
	}}
}

// nodeWithID returns the object with a node ID, or a node without a type if the caller cannot see such an object.
func (e *execution) nodeWithID(id string) node {
	switch r, issue, _ := e.find(id); {
	case issue != nil:
		return e.issue(r, issue)
	case r != nil:
		return e.repository(r)
	}
	for _, a := range e.s.world.accounts {
		if id == nodeID(accountType(a), a.id) {
			return e.account(a)
		}
	}
	return node{}
}

// maxNumber is greater than the number of each issue and pull request.
const maxNumber = 1_000_000

// issueID returns the number in the node ID of an issue or a pull request.
func issueID(r *repository, issue doc) int { return r.id*maxNumber + issue["number"].(int) }

// find returns the visible object with a node ID: a repository, or an issue with its repository. A pull request is an
// issue, too.
func (e *execution) find(id string) (r *repository, issue, pull doc) {
	_, digits, _ := strings.Cut(id, "_")
	n, _ := strconv.Atoi(digits)
	r = first(e.s.world.repositories, func(r *repository) bool { return r.id == n || r.id == n/maxNumber })
	switch {
	case r == nil || !e.s.world.isVisible(r, e.req.caller):
		return nil, nil, nil
	case id == nodeID("Repository", r.id):
		return r, nil, nil
	}
	issue, pull = e.s.world.numbered(r, n%maxNumber)
	if issue == nil || id != nodeID(map[bool]string{true: "/pulls", false: "Issue"}[pull != nil], n) {
		return nil, nil, nil
	}
	return r, issue, pull
}

// numbered returns the issue with a number, and the pull request if it is one. Without an issue, both are nil.
func (w *world) numbered(r *repository, number int) (issue, pull doc) {
	root := r.filled().path()
	return w.find(root + "/issues/" + itoa(number)), w.find(root + "/pulls/" + itoa(number))
}

func accountType(a *account) string {
	return map[bool]string{true: "Organization", false: "User"}[a.members != nil]
}

func (e *execution) account(a *account) node {
	return node{typeName: accountType(a), values: values{
		"id": nodeID(accountType(a), a.id), "databaseId": a.id, "login": a.login, "name": a.name, "url": e.req.base + "/" + a.login,
	}}
}

func (e *execution) repository(r *repository) node {
	var branch any
	if r.head() != "" {
		branch = e.ref(r, r.defaultBranch)
	}
	u := e.s.world.user(e.req.caller)
	return node{typeName: "Repository", values: values{
		"id": nodeID("Repository", r.id), "databaseId": r.id, "name": r.name, "nameWithOwner": r.fullName(), "owner": e.account(r.owner),
		"description": r.description, "url": e.req.base + "/" + r.fullName(), "isPrivate": r.private,
		"createdAt": timestamp(r.created), "pushedAt": timestamp(r.pushed), "hasIssuesEnabled": true, "hasWikiEnabled": true,
		"mergeCommitAllowed": true, "rebaseMergeAllowed": true, "squashMergeAllowed": true,
		"viewerPermission": e.permission(r), "viewerSubscription": subscriptionState(r, u), "defaultBranchRef": branch,
		"issue":              e.numbered(r, "an Issue", true, false),
		"pullRequest":        e.numbered(r, "a PullRequest", false, true),
		"issueOrPullRequest": e.numbered(r, "an issue or pull request", true, true),
		"issues":             e.paged(func(arguments map[string]any) []item { return e.issues(r, false, arguments) }),
		"pullRequests":       e.paged(func(arguments map[string]any) []item { return e.issues(r, true, arguments) }),
		"watchers": e.paged(func(map[string]any) (items []item) {
			for _, u := range watchersOf(r) {
				items = append(items, item{id: u.id, node: func() node { return e.account(u) }})
			}
			return items
		}),
	}}
}

// numbered returns the resolver of the issue, or the pull request, with a number.
func (e *execution) numbered(r *repository, kind string, issues, pulls bool) resolver {
	return func(f *ast.Field, arguments map[string]any) any {
		n, _ := arguments["number"].(int64)
		issue, pull := e.s.world.numbered(r, int(n))
		if issue != nil && (pulls && pull != nil || issues && pull == nil) {
			return e.issue(r, issue)
		}
		return e.addError(f, "NOT_FOUND", "Could not resolve to "+kind+" with the number of "+itoa(int(n))+".")
	}
}

func (e *execution) ref(r *repository, name string) node {
	return node{typeName: "Ref", values: values{"id": "REF_" + name, "name": name, "repository": e.repositoryOf(r)}}
}

// repositoryOf returns the resolver of the repository of an object.
func (e *execution) repositoryOf(r *repository) resolver {
	return func(*ast.Field, map[string]any) any { return e.repository(r) }
}

// permission returns the permission of the viewer in a repository, or nil without a user.
func (e *execution) permission(r *repository) any {
	permissions := e.s.permissions(e.req.caller, r)
	switch {
	case e.req.caller.login == "":
		return nil
	case permissions.member("admin") == true:
		return "ADMIN"
	case permissions.member("push") == true:
		return "WRITE"
	}
	return "READ"
}

func subscriptionState(r *repository, u *account) any {
	if u == nil {
		return nil
	}
	switch sub := r.subscriptions[u]; {
	case sub == nil:
		return "UNSUBSCRIBED"
	case sub.ignored:
		return "IGNORED"
	}
	return "SUBSCRIBED"
}

// issues returns the selected issues or pull requests of a repository.
func (e *execution) issues(r *repository, pulls bool, arguments map[string]any) (items []item) {
	filter, _ := arguments["filterBy"].(map[string]any)
	order, _ := arguments["orderBy"].(map[string]any)
	for _, issue := range e.s.world.where(r, "issues", "", "") {
		number, state, labels := issue["number"].(int), strings.ToUpper(str(issue["state"])), issue["labels"].([]string)
		_, pull := e.s.world.numbered(r, number)
		if pull["merged"] == true {
			state = "MERGED"
		}
		if (pull != nil) == pulls && hasOneOf(arguments["states"], state) && hasOneOf(filter["states"], state) &&
			hasOneOf(arguments["labels"], labels...) && hasOneOf(filter["labels"], labels...) &&
			hasOneOf(filter["createdBy"], e.s.world.authorOf(issue).login) && hasOneOf(filter["mentioned"]) &&
			hasOneOf(filter["assignee"], issue["assignees"].([]string)...) &&
			hasOneOf(arguments["headRefName"], textOf(pull["head"])) && hasOneOf(arguments["baseRefName"], textOf(pull["base"])) {
			key := issue["created_at"]
			if order["field"] == "UPDATED_AT" {
				key = issue["updated_at"]
			}
			items = append(items, item{key.(string), number, func() node { return e.issue(r, issue) }})
		}
	}
	return items
}

// hasOneOf reports whether a filter has one of the values. A filter is null, a text or a list of texts. Null has every
// value.
func hasOneOf(filter any, values ...string) bool {
	list, ok := filter.([]any)
	if !ok {
		list = []any{filter}
	}
	return filter == nil || slices.ContainsFunc(values, func(v string) bool { return slices.Contains(list, any(v)) })
}

// issue returns an issue or a pull request.
func (e *execution) issue(r *repository, issue doc) node {
	number := issue["number"].(int)
	_, pull := e.s.world.numbered(r, number)
	typeName, kind, page := "Issue", "Issue", "/issues/"
	if pull != nil {
		typeName, kind, page = "PullRequest", "/pulls", "/pull/"
	}
	url := e.req.base + "/" + r.fullName() + page + itoa(number)
	n := node{typeName, issue, values{
		"id": nodeID(kind, issueID(r, issue)), "url": url, "closed": issue["state"] == "closed", "author": e.account(e.s.world.authorOf(issue)),
		"repository": e.repositoryOf(r),
		"labels": e.paged(func(map[string]any) (items []item) {
			for _, name := range issue["labels"].([]string) {
				if l := e.s.world.find(r.path() + "/labels/" + escape(name)); l != nil {
					items = append(items, e.record("Label", "Label", l, values{"repository": e.repositoryOf(r)}))
				}
			}
			return items
		}),
		"comments": e.paged(func(map[string]any) (items []item) {
			for _, c := range e.s.world.where(r, "issues/comments", "issue", itoa(number)) {
				items = append(items, e.comment(r, c, url))
			}
			return items
		}),
	}}
	if pull != nil {
		maps.Copy(n.values, e.pullValues(r, issue, pull))
	}
	return n
}

// record returns the item of a stored object.
func (e *execution) record(typeName, kind string, fields doc, computed values) item {
	id := fields["id"].(int)
	return item{id: id, node: func() node {
		n := node{typeName, fields, values{"id": nodeID(kind, id)}}
		maps.Copy(n.values, computed)
		return n
	}}
}

// comment returns a comment on the issue with a URL.
func (e *execution) comment(r *repository, c doc, url string) item {
	return e.record("IssueComment", "Comment", c, e.authored(r, c, values{"url": url + "#issuecomment-" + str(c["id"])}))
}

// authored adds the author of a stored object to its values.
func (e *execution) authored(r *repository, fields doc, to values) values {
	author := e.s.world.authorOf(fields)
	to["author"], to["authorAssociation"] = e.account(author), association(r.owner, author)
	return to
}

func association(owner, u *account) string {
	switch {
	case isOwner(owner, u):
		return "OWNER"
	case isMember(owner, u):
		return "MEMBER"
	}
	return "NONE"
}

// pullValues returns the values that a pull request adds to its issue.
func (e *execution) pullValues(r *repository, issue, pull doc) values {
	branch, base := str(pull["head"]), str(pull["base"])
	sha := cmp.Or(r.git.refs["heads/"+branch], str(pull["sha"]))
	checks, checkState := e.checks(r, sha)
	decision, reviews := "REVIEW_REQUIRED", []item(nil)
	for _, v := range e.s.world.all(r.path() + "/pulls/" + str(pull["number"]) + "/reviews") {
		if state := str(v["state"]); state == "APPROVED" || state == "CHANGES_REQUESTED" {
			decision = state
			reviews = []item{e.record("PullRequestReview", "/reviews", v, e.authored(r, v, values{"submittedAt": v["created_at"]}))}
		}
	}
	mergeState := "CLEAN"
	switch { // the review decides, then the checks
	case pull["draft"] == true:
		mergeState = "DRAFT"
	case decision != "APPROVED":
		mergeState = "BLOCKED"
	case checkState != "SUCCESS":
		mergeState = "UNSTABLE"
	}
	commit := node{typeName: "Commit", values: values{
		"id": "C_" + sha, "oid": sha, "messageHeadline": issue["title"], "committedDate": pull["created_at"], "repository": e.repositoryOf(r),
		"statusCheckRollup": node{typeName: "StatusCheckRollup", values: values{
			"state": checkState, "contexts": e.paged(func(map[string]any) []item { return checks }),
		}},
	}}
	computed := values{
		"merged": pull["merged"], "mergedAt": pull["merged_at"], "isDraft": pull["draft"], "isCrossRepository": false,
		"headRefName": branch, "headRefOid": sha, "headRepositoryOwner": e.account(r.owner), "baseRefName": base, "baseRef": e.ref(r, base),
		"mergeable": "MERGEABLE", "mergeStateStatus": mergeState, "reviewDecision": decision,
		"latestReviews": e.paged(func(map[string]any) []item { return reviews }),
		"commits": e.paged(func(map[string]any) []item {
			return []item{e.record("PullRequestCommit", "Pull commit", pull, values{"commit": commit})}
		}),
	}
	if pull["merged"] == true {
		computed["state"] = "MERGED"
	}
	return computed
}

// checks returns the check runs and the statuses of a commit, and the state of all.
func (e *execution) checks(r *repository, sha string) (items []item, state string) {
	var results []string
	for _, run := range e.s.world.where(r, "check-runs", "head_sha", sha) {
		results = append(results, textOf(run["conclusion"]))
		workflow := node{typeName: "WorkflowRun", values: values{
			"event": "pull_request", "workflow": node{typeName: "Workflow", values: values{"name": "CI"}},
		}}
		computed := values{
			"startedAt": run["created_at"], "isRequired": false, "detailsUrl": e.req.base + "/runs/" + str(run["id"]),
			"checkSuite": node{typeName: "CheckSuite", values: values{"workflowRun": workflow}},
		}
		if run["status"] == "completed" {
			computed["completedAt"] = timestamp(timeOf(run["created_at"]).Add(time.Minute))
		}
		items = append(items, e.record("CheckRun", "Check run", run, computed))
	}
	for _, status := range e.s.world.where(r, "statuses", "sha", sha) {
		results = append(results, textOf(status["state"]))
		items = append(items, e.record("StatusContext", "Commit status", status, values{"isRequired": false}))
	}
	switch {
	case slices.Contains(results, "failure"):
		return items, "FAILURE"
	case slices.Contains(results, ""), slices.Contains(results, "pending"):
		return items, "PENDING"
	}
	return items, "SUCCESS"
}

// search returns the issues and pull requests that match a query. @me is the viewer.
func (e *execution) search(f *ast.Field, arguments map[string]any) any {
	text, _ := arguments["query"].(string)
	query := parseQuery(strings.ReplaceAll(text, "@me", e.req.caller.login))
	terms := alternatives(query)
	var items []item
	for _, r := range e.s.world.visible(e.req.caller) {
		for _, issue := range e.s.world.where(r, "issues", "", "") {
			if in := searchedProperties(query, e.s.issueDocument(e.req, r, issue)); bestScore(terms, in) > 0 {
				items = append(items, item{issue["created_at"].(string), issueID(r, issue), func() node { return e.issue(r, issue) }})
			}
		}
	}
	return e.connection(f, arguments, items, true)
}

func (e *execution) rateLimit() node {
	m := e.s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.window(e.req.caller, graphQLResource, time.Now())
	return node{typeName: "RateLimit", values: values{
		"limit": w.Max, "used": w.used, "remaining": w.Max - w.used, "resetAt": timestamp(w.reset.Add(time.Duration(e.req.quirks.ClockOffset))),
		"cost": e.call.price.cost, "nodeCount": e.call.price.nodes,
	}}
}

// mutation is a field of Mutation.
type mutation struct {
	subject string   // the member of the input with the node ID of the subject
	types   []string // of the subject
	text    string   // the member of the input that must not be blank, or ""
	owned   bool     // only the author of the subject and members may change it
	// change changes the state and returns the values of the payload. It returns nil after it recorded an error.
	change func(*execution, *ast.Field, subject, map[string]any) values
}

// subject is the object that a mutation names: a repository, or an issue or a pull request of a repository.
type subject struct {
	node
	r           *repository
	issue, pull doc
}

var mutations = map[string]mutation{
	"addComment":         {"subjectId", []string{"Issue", "PullRequest"}, "body", false, (*execution).addComment},
	"closeIssue":         {"issueId", []string{"Issue"}, "", true, (*execution).closeIssue},
	"createIssue":        {"repositoryId", []string{"Repository"}, "title", false, (*execution).createIssue},
	"updatePullRequest":  {"pullRequestId", []string{"PullRequest"}, "", true, (*execution).updatePullRequest},
	"updateSubscription": {"subscribableId", []string{"Repository"}, "", false, (*execution).updateSubscription},
}

func (e *execution) mutation() node {
	root := node{typeName: "Mutation", values: values{}}
	for name, m := range mutations {
		root.values[name] = resolver(func(f *ast.Field, arguments map[string]any) any {
			input, ok := arguments["input"].(map[string]any)
			if !ok {
				return e.addError(f, "INVALID", "Argument 'input' must be an object.")
			}
			id := textOf(input[m.subject])
			on := subject{node: e.nodeWithID(id)}
			if on.r, on.issue, on.pull = e.find(id); !slices.Contains(m.types, on.typeName) {
				return e.unresolved(f, id)
			}
			if m.text != "" && input[m.text] == "" {
				return e.addError(f, "UNPROCESSABLE", strings.ToUpper(m.text[:1])+m.text[1:]+" can't be blank")
			}
			if reason := e.refusal(f, on, m); reason != "" {
				return e.addError(f, "FORBIDDEN", reason)
			}
			payload := m.change(e, f, on, input)
			if payload == nil {
				return nil
			}
			payload["clientMutationId"] = input["clientMutationId"]
			return node{typeName: f.Definition.Type.Name(), values: payload}
		})
	}
	return root
}

// refusal returns the reason why the caller may not make a change, or "".
func (e *execution) refusal(f *ast.Field, on subject, m mutation) string {
	c, u := e.req.caller, e.s.world.user(e.req.caller)
	isSubscription := m.subject == "subscribableId"
	switch {
	case u == nil, isSubscription && slices.Contains(policy.Embedded().Operation("watching/set-subscription").Refuses, c.token),
		!isSubscription && (!c.hasPermission("Contents (repository): write") || !c.hasScope("repo")):
		return "Resource not accessible by this kind of token"
	case m.owned && e.s.world.authorOf(on.issue) != u && association(on.r.owner, u) == "NONE":
		return u.login + " does not have the correct permissions to execute `" + f.Name + "`"
	case on.r.locked && !isSubscription:
		return lockedForMigration
	}
	return ""
}

func (e *execution) addComment(_ *ast.Field, on subject, input map[string]any) values {
	r, number := on.r, str(on.issue["number"])
	e.req.repo, e.req.issue, e.req.pull = r, on.issue, on.pull
	fields := doc{"issue": number, "body": input["body"]}
	c := e.s.world.add(r, r.path()+"/issues/comments", inRepo+"issues/comments", fields, e.req.caller.login, e.req.now)
	on.issue["updated_at"] = timestamp(e.req.now)
	touchComment(e.s, e.req, c)
	e.s.emit(e.req, &event{name: "issue_comment", action: "created", members: doc{"comment": c}, shown: []string{"issue", "comment"}})
	return values{"commentEdge": newEdge("IssueCommentConnection", e.comment(r, c, on.values["url"].(string))), "subject": on.node}
}

func (e *execution) closeIssue(_ *ast.Field, on subject, input map[string]any) values {
	reason := strings.ToLower(textOf(input["stateReason"]))
	e.change(on, doc{"state": "closed", "state_reason": reason}, "closed")
	return values{"issue": e.issue(on.r, on.issue)}
}

func (e *execution) createIssue(_ *ast.Field, on subject, input map[string]any) values {
	fields := doc{"title": input["title"], "body": input["body"]}
	on.issue = e.s.world.addIssue(on.r, fields, e.req.caller.login, e.req.now)
	e.change(on, doc{}, "opened")
	return values{"issue": e.issue(on.r, on.issue)}
}

// updatePullRequest changes the title, the body and the state of a pull request. A merged pull request keeps its state.
func (e *execution) updatePullRequest(f *ast.Field, on subject, input map[string]any) values {
	if on.pull["merged"] == true && input["state"] != nil {
		e.addError(f, "UNPROCESSABLE", "The pull request is merged")
		return nil
	}
	body := doc{
		"title": cmp.Or(textOf(input["title"]), str(on.issue["title"])), "body": cmp.Or(input["body"], on.issue["body"]),
		"state": strings.ToLower(textOf(input["state"])),
	}
	e.change(on, body, "edited")
	return values{"pullRequest": e.issue(on.r, on.issue)}
}

// change changes an issue or a pull request, and announces the change.
func (e *execution) change(on subject, body doc, action string) {
	e.req.repo, e.req.pull = on.r, on.pull
	touchIssue(e.s, e.req, on.issue)
	e.s.touchCounts(e.req, on.issue)
	changeIssue(on.issue, body, e.req.now)
	e.s.note(e.req, on.issue, action)
	e.s.emit(e.req, &event{name: "issues", action: action, shown: []string{"issue"}})
}

func (e *execution) updateSubscription(_ *ast.Field, on subject, input map[string]any) values {
	r, u := on.r, e.s.world.user(e.req.caller)
	if state := input["state"]; state == "UNSUBSCRIBED" {
		delete(r.subscriptions, u)
	} else {
		r.subscriptions[u] = &subscription{subscribed: state == "SUBSCRIBED", ignored: state == "IGNORED", created: time.Now()}
	}
	e.req.touch(r.path()+"/subscribers", "/@"+u.login+r.path()+"/subscription", "/@"+u.login+"/user/subscriptions", "/users/"+u.login+"/subscriptions")
	return values{"subscribable": e.repository(r)}
}
