package service

import (
	"slices"
	"strings"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/weirgate/weir/policy"
)

// mutations maps the fields of Mutation to functions that change the state and return the values of the payload.
var mutations = map[string]func(*execution, *ast.Field, map[string]any) map[string]any{
	"addComment":         (*execution).addComment,
	"closeIssue":         (*execution).closeIssue,
	"createIssue":        (*execution).createIssue,
	"updatePullRequest":  (*execution).updatePullRequest,
	"updateSubscription": (*execution).updateSubscription,
}

func (e *execution) mutation() node {
	root := node{"Mutation", map[string]any{}}
	for name, mutate := range mutations {
		root.values[name] = resolver(func(f *ast.Field, arguments map[string]any) any {
			input, ok := arguments["input"].(map[string]any)
			if !ok {
				return e.addError(f, "INVALID", "Argument 'input' must be an object.")
			}
			values := mutate(e, f, input)
			if values == nil {
				return nil
			}
			values["clientMutationId"] = input["clientMutationId"]
			return node{f.Definition.Type.Name(), values}
		})
	}
	return root
}

// writer returns the user of a token that may write to a repository. Otherwise it records an error and returns nil.
// Only the author and members may change an issue or a pull request. author is nil for changes that each user may make.
func (e *execution) writer(f *ast.Field, r *repository, author *account) *account {
	c, u := e.req.caller, e.s.world.user(e.req.caller)
	switch {
	case u == nil || !c.hasPermission("Contents (repository): write") || !c.hasScope("repo"):
		e.addError(f, "FORBIDDEN", "Resource not accessible by this kind of token")
	case author != nil && author != u && association(r, u) == "NONE":
		e.addError(f, "FORBIDDEN", u.login+" does not have the correct permissions to execute `"+f.Name+"`")
	case r.locked:
		e.addError(f, "FORBIDDEN", lockedForMigration)
	default:
		return u
	}
	return nil
}

func (e *execution) addComment(f *ast.Field, input map[string]any) map[string]any {
	id, _ := input["subjectId"].(string)
	body, _ := input["body"].(string)
	r, i, p := e.find(id)
	page := "/issues/"
	if p != nil {
		i, page = &p.issue, "/pull/"
	}
	switch {
	case i == nil:
		e.unresolved(f, id)
	case body == "":
		e.addError(f, "UNPROCESSABLE", "Body can't be blank")
	default:
		if u := e.writer(f, r, nil); u != nil {
			e.req.repo = r
			c := e.s.world.add(r, r.path()+"/issues/comments", inRepo+"issues/comments", doc{"issue": itoa(i.number), "body": body}, u.login, e.req.now)
			i.fields["updated_at"] = stamp(e.req.now)
			touchComment(e.s, e.req, c)
			e.s.emit(e.req, "issue_comment", doc{"issue": doc{"number": i.number}})
			added := e.commentItem(r, c, e.req.base+"/"+r.fullName()+page+itoa(i.number))
			return map[string]any{"commentEdge": newEdge("IssueCommentConnection", added), "subject": e.nodeWithID(id)}
		}
	}
	return nil
}

func (e *execution) closeIssue(f *ast.Field, input map[string]any) map[string]any {
	id, _ := input["issueId"].(string)
	r, i, _ := e.find(id)
	if i == nil {
		e.unresolved(f, id)
		return nil
	}
	if e.writer(f, r, i.author) == nil {
		return nil
	}
	e.change(r, i.fields, doc{"state": "closed", "state_reason": strings.ToLower(textOf(input["stateReason"]))}, "issues", "closed")
	return map[string]any{"issue": e.nodeWithID(id)}
}

func (e *execution) createIssue(f *ast.Field, input map[string]any) map[string]any {
	id, _ := input["repositoryId"].(string)
	title, _ := input["title"].(string)
	body, _ := input["body"].(string)
	r, i, p := e.find(id)
	switch {
	case r == nil || i != nil || p != nil:
		e.unresolved(f, id)
	case title == "":
		e.addError(f, "UNPROCESSABLE", "Title can't be blank")
	default:
		if u := e.writer(f, r, nil); u != nil {
			fields := e.s.world.addIssue(r, doc{"title": title, "body": body}, u.login, e.req.now)
			e.change(r, fields, doc{}, "issues", "opened")
			created := e.s.world.issueOf(fields)
			return map[string]any{"issue": e.issue(r, &created)}
		}
	}
	return nil
}

// updatePullRequest changes the title, the body and the state of a pull request. A merged pull request keeps its state.
func (e *execution) updatePullRequest(f *ast.Field, input map[string]any) map[string]any {
	id, _ := input["pullRequestId"].(string)
	r, _, p := e.find(id)
	if p == nil {
		e.unresolved(f, id)
		return nil
	}
	if e.writer(f, r, p.author) == nil {
		return nil
	}
	if p.merged && input["state"] != nil {
		e.addError(f, "UNPROCESSABLE", "The pull request is merged")
		return nil
	}
	body := doc{"body": input["body"], "state": strings.ToLower(textOf(input["state"]))}
	if title := textOf(input["title"]); title != "" {
		body["title"] = title
	}
	if body["body"] == nil {
		delete(body, "body")
	}
	e.change(r, p.fields, body, "pull_request", "edited")
	return map[string]any{"pullRequest": e.nodeWithID(id)}
}

// change changes an issue or a pull request, and announces the change.
func (e *execution) change(r *repository, fields, body doc, event, action string) {
	e.req.repo = r
	touchIssue(e.s, e.req, fields)
	e.s.touchCounts(e.req, fields)
	changeIssue(fields, body, e.req.now)
	e.s.note(e.req, fields, action)
	e.s.emit(e.req, event, doc{"action": action, "number": fields["number"]})
}

func (e *execution) updateSubscription(f *ast.Field, input map[string]any) map[string]any {
	if slices.Contains(policy.Embedded().Operation("watching/set-subscription").Refuses, e.req.caller.token) {
		e.addError(f, "FORBIDDEN", "Resource not accessible by this kind of token")
		return nil
	}
	id, _ := input["subscribableId"].(string)
	r, i, p := e.find(id)
	u := e.s.world.user(e.req.caller)
	if r == nil || i != nil || p != nil || u == nil {
		e.unresolved(f, id)
		return nil
	}
	if state := input["state"]; state == "UNSUBSCRIBED" {
		r.subscriptions.remove(u)
	} else {
		r.subscriptions.set(&subscription{user: u, subscribed: state == "SUBSCRIBED", ignored: state == "IGNORED", created: time.Now()})
	}
	e.req.touch(r.path()+"/subscribers", "/@"+u.login+r.path()+"/subscription", "/@"+u.login+"/user/subscriptions", "/users/"+u.login+"/subscriptions")
	return map[string]any{"subscribable": e.repository(r)}
}
