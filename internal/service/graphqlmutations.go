package service

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/weirgate/weir/policy"
)

// mutation is a field of Mutation.
type mutation struct {
	subject string   // the member of the input with the node ID of the subject
	types   []string // of the subject
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
	"addComment":         {"subjectId", []string{"Issue", "PullRequest"}, (*execution).addComment},
	"closeIssue":         {"issueId", []string{"Issue"}, (*execution).closeIssue},
	"createIssue":        {"repositoryId", []string{"Repository"}, (*execution).createIssue},
	"updatePullRequest":  {"pullRequestId", []string{"PullRequest"}, (*execution).updatePullRequest},
	"updateSubscription": {"subscribableId", []string{"Repository"}, (*execution).updateSubscription},
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

// refused records an error and returns true if the caller may not write to a repository. Only the author and members may
// change an issue or a pull request. author is nil for changes that each user may make.
func (e *execution) refused(f *ast.Field, r *repository, author *account) bool {
	c, u := e.req.caller, e.s.world.user(e.req.caller)
	reason := ""
	switch {
	case u == nil || !c.hasPermission("Contents (repository): write") || !c.hasScope("repo"):
		reason = "Resource not accessible by this kind of token"
	case author != nil && author != u && association(r.owner, u) == "NONE":
		reason = u.login + " does not have the correct permissions to execute `" + f.Name + "`"
	case r.locked:
		reason = lockedForMigration
	default:
		return false
	}
	e.addError(f, "FORBIDDEN", reason)
	return true
}

func (e *execution) addComment(f *ast.Field, on subject, input map[string]any) values {
	r, number := on.r, str(on.issue["number"])
	if input["body"] == "" {
		e.addError(f, "UNPROCESSABLE", "Body can't be blank")
		return nil
	}
	if e.refused(f, r, nil) {
		return nil
	}
	e.req.repo = r
	fields := doc{"issue": number, "body": input["body"]}
	c := e.s.world.add(r, r.path()+"/issues/comments", inRepo+"issues/comments", fields, e.req.caller.login, e.req.now)
	on.issue["updated_at"] = stamp(e.req.now)
	touchComment(e.s, e.req, c)
	e.s.emit(e.req, "issue_comment", doc{"issue": doc{"number": on.issue["number"]}})
	return values{"commentEdge": newEdge("IssueCommentConnection", e.comment(r, c, on.values["url"].(string))), "subject": on.node}
}

func (e *execution) closeIssue(f *ast.Field, on subject, input map[string]any) values {
	if e.refused(f, on.r, e.s.world.authorOf(on.issue)) {
		return nil
	}
	reason := strings.ToLower(textOf(input["stateReason"]))
	e.change(on.r, on.issue, doc{"state": "closed", "state_reason": reason}, "issues", "closed")
	return values{"issue": e.issue(on.r, on.issue)}
}

func (e *execution) createIssue(f *ast.Field, on subject, input map[string]any) values {
	if input["title"] == "" {
		e.addError(f, "UNPROCESSABLE", "Title can't be blank")
		return nil
	}
	if e.refused(f, on.r, nil) {
		return nil
	}
	fields := doc{"title": input["title"], "body": input["body"]}
	issue := e.s.world.addIssue(on.r, fields, e.req.caller.login, e.req.now)
	e.change(on.r, issue, doc{}, "issues", "opened")
	return values{"issue": e.issue(on.r, issue)}
}

// updatePullRequest changes the title, the body and the state of a pull request. A merged pull request keeps its state.
func (e *execution) updatePullRequest(f *ast.Field, on subject, input map[string]any) values {
	if e.refused(f, on.r, e.s.world.authorOf(on.issue)) {
		return nil
	}
	if on.pull["merged"] == true && input["state"] != nil {
		e.addError(f, "UNPROCESSABLE", "The pull request is merged")
		return nil
	}
	body := doc{
		"title": cmp.Or(textOf(input["title"]), str(on.issue["title"])), "body": cmp.Or(input["body"], on.issue["body"]),
		"state": strings.ToLower(textOf(input["state"])),
	}
	e.change(on.r, on.issue, body, "pull_request", "edited")
	return values{"pullRequest": e.issue(on.r, on.issue)}
}

// change changes an issue or a pull request, and announces the change.
func (e *execution) change(r *repository, issue, body doc, event, action string) {
	e.req.repo = r
	touchIssue(e.s, e.req, issue)
	e.s.touchCounts(e.req, issue)
	changeIssue(issue, body, e.req.now)
	e.s.note(e.req, issue, action)
	e.s.emit(e.req, event, doc{"action": action, "number": issue["number"]})
}

func (e *execution) updateSubscription(f *ast.Field, on subject, input map[string]any) values {
	r, u := on.r, e.s.world.user(e.req.caller)
	if u == nil || slices.Contains(policy.Embedded().Operation("watching/set-subscription").Refuses, e.req.caller.token) {
		e.addError(f, "FORBIDDEN", "Resource not accessible by this kind of token")
		return nil
	}
	if state := input["state"]; state == "UNSUBSCRIBED" {
		r.subscriptions.remove(u)
	} else {
		r.subscriptions.set(&subscription{user: u, subscribed: state == "SUBSCRIBED", ignored: state == "IGNORED", created: time.Now()})
	}
	e.req.touch(r.path()+"/subscribers", "/@"+u.login+r.path()+"/subscription", "/@"+u.login+"/user/subscriptions", "/users/"+u.login+"/subscriptions")
	return values{"subscribable": e.repository(r)}
}
