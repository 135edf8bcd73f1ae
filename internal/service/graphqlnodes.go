package service

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vektah/gqlparser/v2/ast"
)

func (e *execution) query() node {
	return node{"Query", map[string]any{
		"viewer": e.userOrNil(e.s.world.user(e.req.caller)),
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
		"search":    resolver(e.search),
		"rateLimit": e.rateLimit(),
		"__type": resolver(func(_ *ast.Field, arguments map[string]any) any {
			if name, _ := arguments["name"].(string); schema.Types[name] != nil {
				return introspected(schema.Types[name])
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
	var fields, inputs, values []node
	for _, f := range d.Fields {
		named := node{"__Field", map[string]any{"name": f.Name, "description": f.Description, "isDeprecated": false}}
		if d.Kind == ast.InputObject {
			inputs = append(inputs, named)
		} else if !strings.HasPrefix(f.Name, "__") {
			fields = append(fields, named)
		}
	}
	for _, v := range d.EnumValues {
		values = append(values, node{"__EnumValue", map[string]any{"name": v.Name, "description": v.Description, "isDeprecated": false}})
	}
	return node{"__Type", map[string]any{
		"kind": d.Kind, "name": d.Name, "description": d.Description, "fields": fields, "inputFields": inputs, "enumValues": values,
	}}
}

// nodeWithID returns the object with a node ID, or a node without a type if the caller cannot see such an object.
func (e *execution) nodeWithID(id string) node {
	switch r, i, p := e.find(id); {
	case p != nil:
		return e.pullRequest(r, p)
	case i != nil:
		return e.issue(r, i)
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
func issueID(r *repository, number int) int { return r.id*maxNumber + number }

// find returns the visible object with a node ID: a repository, or an issue or a pull request with its repository.
func (e *execution) find(id string) (*repository, *issue, *pullRequest) {
	prefix, digits, _ := strings.Cut(id, "_")
	n, _ := strconv.Atoi(digits)
	for _, r := range e.s.world.repositories {
		if !e.s.world.isVisible(r, e.req.caller) {
			continue
		}
		switch {
		case id == nodeID("Repository", r.id):
			return r, nil, nil
		case n/maxNumber != r.id:
		case prefix == nodePrefixes["Issue"]:
			if i, _ := e.s.world.numbered(r, n%maxNumber); i != nil {
				return r, i, nil
			}
		case prefix == nodePrefixes["/pulls"]:
			if _, p := e.s.world.numbered(r, n%maxNumber); p != nil {
				return r, nil, p
			}
		}
	}
	return nil, nil, nil
}

func accountType(a *account) string {
	if a.members != nil {
		return "Organization"
	}
	return "User"
}

func (e *execution) account(a *account) node {
	return node{accountType(a), map[string]any{
		"id": nodeID(accountType(a), a.id), "databaseId": a.id, "login": a.login, "name": a.name, "url": e.req.base + "/" + a.login,
	}}
}

// userOrNil returns the node of a user, or nil without a user.
func (e *execution) userOrNil(u *account) any {
	if u == nil {
		return nil
	}
	return e.account(u)
}

func (e *execution) repository(r *repository) node {
	var branch any
	if r.head() != "" {
		branch = e.mainBranch(r)
	}
	u := e.s.world.user(e.req.caller)
	return node{"Repository", map[string]any{
		"id": nodeID("Repository", r.id), "databaseId": r.id, "name": r.name, "nameWithOwner": r.fullName(), "owner": e.account(r.owner),
		"description": r.description, "url": e.req.base + "/" + r.fullName(), "isPrivate": r.private,
		"createdAt": timestamp(r.created), "pushedAt": timestamp(r.pushed), "hasIssuesEnabled": true, "hasWikiEnabled": true,
		"mergeCommitAllowed": true, "rebaseMergeAllowed": true, "squashMergeAllowed": true,
		"viewerPermission": e.permission(r), "viewerSubscription": subscriptionState(r, u), "defaultBranchRef": branch,
		"issue":              e.numbered(r, "an Issue", true, false),
		"pullRequest":        e.numbered(r, "a PullRequest", false, true),
		"issueOrPullRequest": e.numbered(r, "an issue or pull request", true, true),
		"issues":             resolver(func(f *ast.Field, arguments map[string]any) any { return e.issues(r, f, arguments) }),
		"pullRequests": resolver(func(f *ast.Field, arguments map[string]any) any {
			return e.pullRequests(r, f, arguments)
		}),
		"watchers": resolver(func(f *ast.Field, arguments map[string]any) any {
			var items []item
			for _, u := range watchersOf(r) {
				items = append(items, item{id: u.id, node: func() node { return e.account(u) }})
			}
			return e.connection(f, arguments, items, false)
		}),
	}}
}

// numbered returns the resolver of the issue, or the pull request, with a number.
func (e *execution) numbered(r *repository, kind string, issues, pulls bool) resolver {
	return func(f *ast.Field, arguments map[string]any) any {
		n, _ := arguments["number"].(int64)
		switch i, p := e.s.world.numbered(r, int(n)); {
		case issues && i != nil:
			return e.issue(r, i)
		case pulls && p != nil:
			return e.pullRequest(r, p)
		}
		return e.addError(f, "NOT_FOUND", "Could not resolve to "+kind+" with the number of "+itoa(int(n))+".")
	}
}

func (e *execution) mainBranch(r *repository) node {
	return node{"Ref", map[string]any{"name": r.defaultBranch}}
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
	switch sub := r.subscriptions.forUser(u); {
	case sub == nil:
		return "UNSUBSCRIBED"
	case sub.ignored:
		return "IGNORED"
	}
	return "SUBSCRIBED"
}

func (e *execution) issues(r *repository, f *ast.Field, arguments map[string]any) any {
	filter, _ := arguments["filterBy"].(map[string]any)
	var items []item
	for _, i := range e.s.world.issuesOf(r) {
		if filter["assignee"] != nil || filter["mentioned"] != nil { // no issue has one
			continue
		}
		if hasOneOf(arguments["states"], i.state()) && hasOneOf(filter["states"], i.state()) && hasOneOf(filter["createdBy"], i.author.login) &&
			hasOneOf(arguments["labels"], i.labels...) && hasOneOf(filter["labels"], i.labels...) {
			items = append(items, item{i.orderKey(arguments), i.number, func() node { return e.issue(r, i) }})
		}
	}
	return e.connection(f, arguments, items, isDescending(arguments))
}

func (e *execution) pullRequests(r *repository, f *ast.Field, arguments map[string]any) any {
	var items []item
	for _, p := range e.s.world.pullsOf(r) {
		if hasOneOf(arguments["states"], p.state()) && hasOneOf(arguments["labels"], p.labels...) &&
			hasOneOf(arguments["headRefName"], p.branch) && hasOneOf(arguments["baseRefName"], r.defaultBranch) {
			items = append(items, item{p.orderKey(arguments), p.number, func() node { return e.pullRequest(r, p) }})
		}
	}
	return e.connection(f, arguments, items, isDescending(arguments))
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

// orderKey returns the key of an issue for the argument orderBy. The default is the time of creation.
func (i *issue) orderKey(arguments map[string]any) int64 {
	if by, _ := arguments["orderBy"].(map[string]any); by["field"] == "UPDATED_AT" {
		return i.updated.UnixNano()
	}
	return i.created.UnixNano()
}

func isDescending(arguments map[string]any) bool {
	by, _ := arguments["orderBy"].(map[string]any)
	return by["direction"] == "DESC"
}

func (i *issue) state() string {
	if i.open {
		return "OPEN"
	}
	return "CLOSED"
}

func (p *pullRequest) state() string {
	if p.merged {
		return "MERGED"
	}
	return p.issue.state()
}

// issueValues returns the fields that issues and pull requests share. kind is the kind of the node ID.
func (e *execution) issueValues(r *repository, i *issue, kind, page string) map[string]any {
	url := e.req.base + "/" + r.fullName() + page + itoa(i.number)
	return map[string]any{
		"id": nodeID(kind, issueID(r, i.number)), "number": i.number, "title": i.title, "body": i.body, "state": i.state(), "closed": !i.open,
		"url": url, "author": e.account(i.author), "createdAt": timestamp(i.created), "updatedAt": timestamp(i.updated), "closedAt": optionalTime(i.closed),
		"repository": resolver(func(*ast.Field, map[string]any) any { return e.repository(r) }),
		"labels": resolver(func(f *ast.Field, arguments map[string]any) any {
			var items []item
			for n, name := range i.labels {
				items = append(items, item{id: n, node: func() node { return label(r, name) }})
			}
			return e.connection(f, arguments, items, false)
		}),
		"comments": resolver(func(f *ast.Field, arguments map[string]any) any {
			var items []item
			for _, c := range e.s.world.where(r, "issues/comments", "issue", itoa(i.number)) {
				items = append(items, e.commentItem(r, c, url))
			}
			return e.connection(f, arguments, items, false)
		}),
	}
}

// optionalTime returns a timestamp, or nil for the zero time.
func optionalTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return timestamp(t)
}

func label(r *repository, name string) node {
	return node{"Label", map[string]any{"id": nodePrefixes["Label"] + "_" + itoa(r.id) + "_" + name, "name": name, "color": "d73a4a"}}
}

// commentItem returns a comment on an issue with a URL.
func (e *execution) commentItem(r *repository, c doc, url string) item {
	id, author := c["id"].(int), e.s.world.authorOf(c)
	return item{id: id, node: func() node {
		return node{"IssueComment", map[string]any{
			"id": nodeID("Comment", id), "author": e.account(author), "authorAssociation": association(r, author), "body": c["body"],
			"createdAt": c["created_at"], "url": url + "#issuecomment-" + itoa(id),
		}}
	}}
}

func association(r *repository, u *account) string {
	target := pathTarget{repository: r, organization: r.owner}
	switch {
	case isOwner(target, u):
		return "OWNER"
	case isMember(target, u):
		return "MEMBER"
	}
	return "NONE"
}

func (e *execution) issue(r *repository, i *issue) node {
	n := node{"Issue", e.issueValues(r, i, "Issue", "/issues/")}
	if i.reason != "" {
		n.values["stateReason"] = i.reason
	}
	return n
}

func (e *execution) pullRequest(r *repository, p *pullRequest) node {
	e.s.world.complete(r, p)
	n := node{"PullRequest", e.issueValues(r, &p.issue, "/pulls", "/pull/")}
	id := issueID(r, p.number)
	for name, value := range map[string]any{
		"state": p.state(), "merged": p.merged, "isDraft": p.draft, "isCrossRepository": false, "headRefName": p.branch, "headRefOid": p.sha,
		"headRepositoryOwner": e.account(r.owner), "baseRefName": r.defaultBranch, "baseRef": e.mainBranch(r),
		"mergeable": "MERGEABLE", "mergeStateStatus": p.mergeStatus(), "reviewDecision": "REVIEW_REQUIRED",
		"latestReviews": resolver(func(f *ast.Field, arguments map[string]any) any {
			var items []item
			if p.review != nil {
				items = []item{{id: 1, node: func() node { return e.review(r, id, p.review) }}}
			}
			return e.connection(f, arguments, items, false)
		}),
		"commits": resolver(func(f *ast.Field, arguments map[string]any) any {
			return e.connection(f, arguments, []item{{id: 1, node: func() node { return e.pullCommit(p, id) }}}, false)
		}),
	} {
		n.values[name] = value
	}
	if p.merged {
		n.values["mergedAt"] = timestamp(p.closed)
	}
	if p.review != nil {
		n.values["reviewDecision"] = p.review.state()
	}
	return n
}

// mergeStatus returns whether the pull request can be merged: its review decides, then its checks.
func (p *pullRequest) mergeStatus() string {
	switch {
	case p.draft:
		return "DRAFT"
	case p.review == nil || !p.review.approved:
		return "BLOCKED"
	case p.checkState() != "SUCCESS":
		return "UNSTABLE"
	}
	return "CLEAN"
}

// checkState returns the state of all checks.
func (p *pullRequest) checkState() string {
	state := "SUCCESS"
	for _, c := range p.checks {
		switch c.result {
		case "FAILURE":
			return "FAILURE"
		case "":
			state = "PENDING"
		}
	}
	return state
}

func (v *review) state() string {
	if v.approved {
		return "APPROVED"
	}
	return "CHANGES_REQUESTED"
}

func (e *execution) review(r *repository, id int, v *review) node {
	return node{"PullRequestReview", map[string]any{
		"id": nodeID("/reviews", id), "author": e.account(v.author), "authorAssociation": association(r, v.author), "body": "",
		"state": v.state(), "submittedAt": timestamp(v.at),
	}}
}

func (e *execution) pullCommit(p *pullRequest, id int) node {
	rollup := node{"StatusCheckRollup", map[string]any{
		"state": p.checkState(),
		"contexts": resolver(func(f *ast.Field, arguments map[string]any) any {
			var items []item
			for n, c := range p.checks {
				items = append(items, item{id: n, node: func() node { return e.check(c, id*10+n) }})
			}
			return e.connection(f, arguments, items, false)
		}),
	}}
	commit := node{"Commit", map[string]any{
		"id": "C_" + p.sha[:12], "oid": p.sha, "messageHeadline": p.title, "committedDate": timestamp(p.created), "statusCheckRollup": rollup,
	}}
	return node{"PullRequestCommit", map[string]any{"id": nodeID("Pull commit", id), "commit": commit}}
}

func (e *execution) check(c check, id int) node {
	if c.isStatus {
		return node{"StatusContext", map[string]any{
			"id": nodeID("Commit status", id), "context": c.name, "state": c.result, "createdAt": timestamp(c.started), "isRequired": false,
		}}
	}
	run := node{"WorkflowRun", map[string]any{"event": "pull_request", "workflow": node{"Workflow", map[string]any{"name": "CI"}}}}
	values := map[string]any{
		"id": nodeID("Check run", id), "name": c.name, "status": "IN_PROGRESS", "startedAt": timestamp(c.started), "isRequired": false,
		"detailsUrl": e.req.base + "/runs/" + itoa(id), "checkSuite": node{"CheckSuite", map[string]any{"workflowRun": run}},
	}
	if c.result != "" {
		values["status"], values["conclusion"], values["completedAt"] = "COMPLETED", c.result, timestamp(c.started.Add(time.Minute))
	}
	return node{"CheckRun", values}
}

// search returns the issues and pull requests that match a query. @me is the viewer.
func (e *execution) search(f *ast.Field, arguments map[string]any) any {
	text, _ := arguments["query"].(string)
	query := parseQuery(strings.ReplaceAll(text, "@me", e.req.caller.login))
	terms := alternatives(query)
	var items []item
	add := func(d document, i *issue, build func() node) {
		d.properties = searchedProperties(query, d)
		if bestScore(terms, d.properties) > 0 {
			items = append(items, item{i.created.UnixNano(), issueID(d.repository, i.number), build})
		}
	}
	for _, r := range e.s.world.repositories {
		if !e.s.world.isVisible(r, e.req.caller) {
			continue
		}
		for _, i := range e.s.world.issuesOf(r) {
			add(issueDocument(e.req, r, i), i, func() node { return e.issue(r, i) })
		}
		for _, p := range e.s.world.pullsOf(r) {
			d := issueDocument(e.req, r, &p.issue)
			d.kind = "pr"
			d.reviewer = p.requested
			add(d, &p.issue, func() node { return e.pullRequest(r, p) })
		}
	}
	return e.connection(f, arguments, items, true)
}

func (e *execution) rateLimit() node {
	m := e.s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.window(e.req.caller, graphQLResource, time.Now())
	return node{"RateLimit", map[string]any{
		"limit": w.Max, "used": w.used, "remaining": w.Max - w.used, "resetAt": timestamp(w.reset.Add(time.Duration(e.req.faults.ClockOffset))),
		"cost": e.call.price.cost, "nodeCount": e.call.price.nodes,
	}}
}
