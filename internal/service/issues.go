package service

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeOf returns the time of a stamp, or the zero time.
func timeOf(value any) time.Time {
	text, _ := value.(string)
	t, _ := time.Parse(time.RFC3339, text) // other values are no time
	return t
}

func textOf(value any) string {
	text, _ := value.(string)
	return text
}

// authorOf returns the user of a stored object.
func (w *world) authorOf(fields doc) *account {
	if a := w.accounts[textOf(fields["user"].(doc)["login"])]; a != nil {
		return a
	}
	return w.accounts["acme"] // an installation has no user
}

// addIssue creates an issue from the body of a request.
func (w *world) addIssue(repo *repository, body doc, login string, now time.Time) doc {
	repo.lastNumber++
	issue := w.add(repo, repo.path()+"/issues", inRepo+"issues", doc{
		"number": repo.lastNumber, "title": "", "body": nil, "state": "open", "locked": false, "labels": []string{}, "assignees": []string{},
		"milestone": 0, "parent": 0, "children": []int{}, "closed_at": nil, "state_reason": nil, "repo": repo.id,
	}, login, now)
	changeIssue(issue, body, now)
	return issue
}

// changeIssue applies the members of a body that an issue has.
func changeIssue(issue, body doc, now time.Time) {
	for _, name := range []string{"title", "body"} {
		if value, ok := body[name]; ok {
			issue[name] = value
		}
	}
	for _, name := range []string{"labels", "assignees"} {
		if list, ok := body[name].([]any); ok {
			issue[name] = namesIn(list)
		}
	}
	if value, given := body["milestone"]; given {
		number, _ := value.(float64)
		issue["milestone"] = int(number)
	}
	if state := body["state"]; state == "open" {
		issue["state"], issue["closed_at"], issue["state_reason"] = "open", nil, nil
	} else if state == "closed" {
		issue["state"], issue["closed_at"], issue["state_reason"] = "closed", timestamp(now), cmp.Or(textOf(body["state_reason"]), "completed")
	}
	issue["updated_at"] = timestamp(now)
}

// namesIn returns the distinct strings of a list, and the names of its objects. Other values have none.
func namesIn(value any) []string {
	list, _ := value.([]any)
	names := []string{}
	for _, element := range list {
		if o, ok := element.(doc); ok {
			element = o["name"]
		}
		if name, ok := element.(string); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// addPull creates a pull request, which is an issue, too.
func (w *world) addPull(repo *repository, body doc, login string, now time.Time) doc {
	issue := w.addIssue(repo, body, login, now)
	branch, base := str(body["head"]), str(body["base"])
	if _, rest, ok := strings.Cut(branch, ":"); ok { // owner:branch
		branch = rest
	}
	return w.add(repo, repo.path()+"/pulls", inRepo+"pulls", doc{
		"number": issue["number"], "head": branch, "base": base, "base_sha": repo.git.resolve(base), "sha": repo.git.resolve(branch), "merged": false, "merged_at": nil,
		"draft": body["draft"] == true, "requested_reviewers": namesIn(body["requested_reviewers"]),
	}, login, now)
}

// touchIssue touches all that shows an issue or a pull request: itself, its lists, the routes of its parent and its
// sub-issues, and the lists of its users.
func touchIssue(s *Service, r *request, fields doc) {
	root, number := r.repo.path(), str(fields["number"])
	own, issue := root+"/issues/"+number, s.world.find(root+"/issues/"+number)
	r.touch(own, root+"/issues")
	if pull := s.world.find(root + "/pulls/" + number); pull != nil {
		r.touch(root+"/pulls/"+number, root+"/pulls")
		s.touchCommit(r, r.repo.git.resolve(str(pull["head"])), "/pulls")
	}
	if issue["parent"] != 0 {
		r.touch(root + "/issues/" + str(issue["parent"]) + "/sub_issues")
	}
	for _, child := range issue["children"].([]int) {
		r.touch(root + "/issues/" + strconv.Itoa(child) + "/parent")
	}
	for _, list := range []string{"/issues", "/user/issues", "/orgs/" + r.repo.owner.login + "/issues"} {
		r.touch(list+" all", "/@"+str(issue["user"].(doc)["login"])+list+" created")
		for _, login := range issue["assignees"].([]string) {
			r.touch("/@" + login + list + " assigned")
		}
	}
}

// touchCounts touches what counts an issue by its state: the repository, the milestone and the parent.
func (s *Service) touchCounts(r *request, issue doc) {
	root := r.repo.path()
	r.touch(root)
	if issue["milestone"] != 0 {
		r.touch(root+"/milestones", root+"/milestones/"+str(issue["milestone"]))
	}
	if parent := s.world.find(root + "/issues/" + str(issue["parent"])); parent != nil {
		touchIssue(s, r, parent)
	}
}

// concerns reports whether a list of a user's issues with a filter shows an issue.
func concerns(issue doc, filter, login string) bool {
	switch filter {
	case "assigned":
		return slices.Contains(issue["assignees"].([]string), login)
	case "created":
		return issue["user"].(doc)["login"] == login
	}
	return true
}

// issueFilter returns assigned, created or all.
func (r *request) issueFilter() string {
	filter := cmp.Or(r.query.Get("filter"), "assigned")
	if filter != "assigned" && filter != "created" {
		return "all"
	}
	return filter
}

func renderIssue(s *Service, r *request, issue doc) doc {
	repo := s.world.repoOf(issue)
	root, number := repo.path(), str(issue["number"])
	body := maps.Clone(issue)
	labels, done := []any{}, 0
	for _, name := range issue["labels"].([]string) {
		if label := s.world.find(root + "/labels/" + escape(name)); label != nil {
			labels = append(labels, label)
		}
	}
	children := issue["children"].([]int)
	for _, child := range children {
		if s.world.find(root + "/issues/" + strconv.Itoa(child))["state"] == "closed" {
			done++
		}
	}
	for _, internal := range []string{"parent", "children", "repo"} {
		delete(body, internal)
	}
	body["labels"], body["assignees"], body["milestone"] = labels, usersNamed(issue["assignees"]), nil
	body["url"], body["repository_url"] = r.base+root+"/issues/"+number, r.base+root
	body["html_url"], body["user"] = r.base+"/"+repo.fullName()+"/issues/"+number, userObject(r, s.world.authorOf(issue))
	body["comments"] = len(s.world.where(repo, "issues/comments", "issue", number))
	body["reactions"] = doc{"total_count": len(s.keysOf(root+"/issues/"+number+"/reactions", inRepo+"issues/{}/reactions/{}"))}
	body["sub_issues_summary"] = doc{"total": len(children), "completed": done}
	if milestone := s.world.find(root + "/milestones/" + str(issue["milestone"])); milestone != nil {
		body["milestone"] = doc{"number": milestone["number"], "title": milestone["title"]}
	}
	if pull := s.world.find(root + "/pulls/" + number); pull != nil {
		body["pull_request"] = doc{"url": r.base + root + "/pulls/" + number, "merged_at": pull["merged_at"]}
	}
	return body
}

// usersNamed returns objects of users with a list of logins.
func usersNamed(logins any) []any {
	return renderAll(logins.([]string), func(login string) doc { return doc{"login": login} })
}

// listIssues lists the issues of a repository, or those of the caller in all repositories, newest first.
func listIssues(s *Service, r *request) response {
	q, list := r.query, []doc(nil)
	for _, repo := range s.world.visible(r.caller) {
		if r.repo != nil && repo != r.repo || r.org != nil && repo.owner != r.org {
			continue
		}
		for _, issue := range slices.Backward(s.world.where(repo, "issues", "", "")) {
			labels := issue["labels"].([]string)
			lacks := func(name string) bool { return !slices.Contains(labels, name) }
			if hasState(issue, q.Get("state")) && (r.repo != nil || concerns(issue, r.issueFilter(), r.caller.name())) &&
				(q.Get("creator") == "" || concerns(issue, "created", q.Get("creator"))) &&
				(q.Get("assignee") == "" || concerns(issue, "assigned", q.Get("assignee"))) &&
				(q.Get("milestone") == "" || str(issue["milestone"]) == q.Get("milestone")) && issue["updated_at"].(string) >= q.Get("since") &&
				(q.Get("labels") == "" || !slices.ContainsFunc(strings.Split(q.Get("labels"), ","), lacks)) {
				list = append(list, issue)
			}
		}
	}
	if q.Get("direction") == "asc" { // the other order is that of the creation, newest first
		slices.Reverse(list)
	}
	return listOf(list, func(issue doc) doc { return renderIssue(s, r, issue) })
}

// hasState reports whether the query parameter state selects an issue. The default is open.
func hasState(issue doc, state string) bool {
	return state == "all" || issue["state"] == state || state != "closed" && issue["state"] == "open"
}

func createIssue(s *Service, r *request) response {
	issue := s.world.addIssue(r.repo, r.body, r.caller.name(), r.now)
	path := r.path + "/" + str(issue["number"])
	r.touch(path)
	s.createLabels(r, issue)
	touchIssue(s, r, issue)
	s.touchCounts(r, issue)
	s.note(r, issue, "opened")
	return response{status: http.StatusCreated, body: renderIssue(s, r, issue), location: r.base + path}
}

// updateIssue handles PATCH of an issue or a pull request.
func updateIssue(s *Service, r *request) response {
	old := maps.Clone(r.issue)
	changeIssue(r.issue, r.body, r.now)
	if r.issue["state"] != old["state"] || r.issue["milestone"] != old["milestone"] {
		s.touchCounts(r, old)
		s.touchCounts(r, r.issue)
	}
	if r.issue["state"] != old["state"] {
		s.note(r, r.issue, map[any]string{"closed": "closed", "open": "reopened"}[r.issue["state"]])
	}
	s.createLabels(r, r.issue)
	if lastOf(parentOf(r.path)) == "pulls" {
		return respond(renderPull(s, r, r.pull))
	}
	return respond(renderIssue(s, r, r.issue))
}

// note adds an event to the history of an issue. It is the action of the webhook event, too.
func (s *Service) note(r *request, issue doc, event string) {
	r.issue, r.action, issue["updated_at"] = issue, event, timestamp(r.now)
	path := r.repo.path() + "/issues/events"
	added := s.world.add(r.repo, path, inRepo+"issues/events", doc{"event": event, "issue": str(issue["number"])}, r.caller.name(), r.now)
	own := r.repo.path() + "/issues/" + str(issue["number"])
	r.touch(path, path+"/"+str(added["id"]), own+"/events", own+"/timeline")
}

// changeNames returns a handler that changes the labels or the assignees of an issue.
func changeNames(member, event string) handler {
	return func(s *Service, r *request) response {
		given := r.body[member]
		if given == nil {
			_ = json.Unmarshal(r.raw, &given) // a body may be the list itself
		}
		names, old := namesIn(given), slices.Clone(r.issue[member].([]string))
		isOld := func(name string) bool { return slices.Contains(old, name) }
		isGiven := func(name string) bool { return slices.Contains(names, name) }
		name, isOne := r.params["name"]
		switch {
		case isOne && !isOld(name):
			return fail(http.StatusNotFound, "Label does not exist")
		case isOne:
			names = slices.DeleteFunc(old, func(label string) bool { return label == name })
		case r.Method == http.MethodPost:
			names = slices.Concat(old, slices.DeleteFunc(names, isOld))
		case r.Method == http.MethodDelete && member == "labels": // all
			names = []string{}
		case r.Method == http.MethodDelete:
			names = slices.DeleteFunc(old, isGiven)
		}
		r.issue[member] = names
		s.note(r, r.issue, event)
		s.createLabels(r, r.issue)
		r.touch(r.repo.path() + "/issues/" + str(r.issue["number"]) + "/labels")
		body := any(renderIssue(s, r, r.issue))
		if member == "labels" {
			body = body.(doc)["labels"]
		}
		return response{status: r.op.created(), body: body}
	}
}

// updateLabel handles PATCH of a label, which may rename it.
func updateLabel(s *Service, r *request) response {
	name, renamed := r.params["name"], cmp.Or(r.text("new_name"), r.params["name"])
	label := s.world.find(r.path)
	if label == nil {
		return notFound()
	}
	maps.Copy(label, r.body)
	if delete(label, "new_name"); renamed != name {
		s.world.stored[r.path] = nil
		label["name"] = renamed
		s.world.create(parentOf(r.path), renamed, label)
		r.touch(parentOf(r.path) + "/" + escape(renamed))
		s.renameLabel(r.repo, name, renamed)
	}
	return respond(label)
}

// renameLabel renames a label of all issues, or removes it if the new name is empty.
func (s *Service) renameLabel(repo *repository, from, to string) {
	for _, issue := range s.world.where(repo, "issues", "", "") {
		labels := []string{}
		for _, name := range issue["labels"].([]string) {
			if name == from {
				name = to
			}
			if name != "" {
				labels = append(labels, name)
			}
		}
		issue["labels"] = labels
	}
}

// createLabels creates the labels of an issue that the repository lacks.
func (s *Service) createLabels(r *request, issue doc) {
	path := r.repo.path() + "/labels"
	for _, name := range issue["labels"].([]string) {
		if s.world.find(path+"/"+escape(name)) == nil {
			s.world.add(r.repo, path, inRepo+"labels", doc{"name": name}, r.caller.name(), r.now)
			r.touch(path, path+"/"+escape(name))
		}
	}
}

func lockIssue(s *Service, r *request) response {
	r.issue["locked"] = r.Method == http.MethodPut
	s.note(r, r.issue, map[bool]string{true: "locked", false: "unlocked"}[r.Method == http.MethodPut])
	return response{status: http.StatusNoContent}
}

func subIssues(s *Service, r *request) response {
	return listOf(r.issue["children"].([]int), func(number int) doc {
		return renderIssue(s, r, s.world.find(r.repo.path()+"/issues/"+strconv.Itoa(number)))
	})
}

func parentIssue(s *Service, r *request) response {
	parent := s.world.find(r.repo.path() + "/issues/" + str(r.issue["parent"]))
	if parent == nil {
		return notFound()
	}
	return respond(renderIssue(s, r, parent))
}

// changeSubIssue adds a sub-issue to an issue or removes it.
func changeSubIssue(s *Service, r *request) response {
	id, _ := r.body["sub_issue_id"].(float64)
	found := s.world.where(r.repo, "issues", "id", strconv.Itoa(int(id)))
	number, parent := r.issue["number"].(int), 0
	if r.Method == http.MethodDelete {
		parent = number
	}
	if len(found) == 0 || found[0]["parent"] != parent || found[0]["number"] == number {
		return fail(http.StatusUnprocessableEntity, "The sub-issue does not exist or has another parent")
	}
	child, own := found[0], found[0]["number"].(int)
	children := slices.DeleteFunc(slices.Clone(r.issue["children"].([]int)), func(n int) bool { return n == own })
	if child["parent"] = 0; r.Method == http.MethodPost {
		child["parent"], children = number, append(children, own)
	}
	r.issue["children"] = children
	list := r.repo.path() + "/issues/"
	r.touch(list+strconv.Itoa(own)+"/parent", list+strconv.Itoa(number)+"/sub_issues")
	touchIssue(s, r, child)
	return response{status: r.op.created(), body: renderIssue(s, r, r.issue)}
}

func renderPull(s *Service, r *request, pull doc) doc {
	path := r.repo.path() + "/pulls/" + str(pull["number"])
	body := renderIssue(s, r, s.world.find(r.repo.path()+"/issues/"+str(pull["number"])))
	for _, name := range []string{"id", "merged", "merged_at", "draft"} {
		body[name] = pull[name]
	}
	delete(body, "pull_request")
	body["requested_reviewers"] = usersNamed(pull["requested_reviewers"])
	body["url"], body["html_url"] = r.base+path, r.base+"/"+r.repo.fullName()+"/pull/"+str(pull["number"])
	body["head"] = doc{
		"ref": pull["head"], "sha": r.repo.git.refs["heads/"+str(pull["head"])], "repo": doc{"full_name": r.repo.owner.login + "/" + r.repo.name},
	}
	body["base"] = doc{"ref": pull["base"], "sha": pull["base_sha"]}
	return body
}

func listPulls(s *Service, r *request) response {
	root, state := r.repo.path(), r.query.Get("state")
	pulls := slices.DeleteFunc(s.world.where(r.repo, "pulls", "", ""), func(pull doc) bool {
		return !hasState(s.world.find(root+"/issues/"+str(pull["number"])), state)
	})
	slices.Reverse(pulls)
	return listOf(pulls, func(pull doc) doc { return renderPull(s, r, pull) })
}

func createPull(s *Service, r *request) response {
	if r.repo.git.resolve(r.text("base")) == "" || r.text("head") == "" {
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	pull := s.world.addPull(r.repo, r.body, r.caller.name(), r.now)
	path := r.path + "/" + str(pull["number"])
	r.touch(path)
	touchIssue(s, r, pull)
	r.issue, r.pull = s.world.numbered(r.repo, pull["number"].(int))
	s.touchCounts(r, r.issue)
	return response{status: http.StatusCreated, body: renderPull(s, r, pull), location: r.base + path}
}

func pullFiles(_ *Service, r *request) response {
	var files []string
	if head := r.repo.git.refs["heads/"+str(r.pull["head"])]; head != "" {
		files = r.repo.git.changed(str(r.pull["base_sha"]), head)
	}
	return listOf(files, func(path string) doc { return doc{"filename": path, "status": "modified"} })
}

func mergePull(s *Service, r *request) response {
	g, base := r.repo.git, str(r.pull["base"])
	head := g.refs["heads/"+str(r.pull["head"])]
	if r.issue["state"] != "open" || g.refs["heads/"+base] == "" || head == "" {
		return fail(http.StatusMethodNotAllowed, "Pull Request is not mergeable")
	}
	if sha := g.merge(base, head, s.commitBy(r, "Merge pull request #"+str(r.pull["number"]))); sha != "" {
		s.move(r, "heads/"+base, sha)
	}
	r.pull["merged"], r.pull["merged_at"] = true, timestamp(r.now)
	changeIssue(r.issue, doc{"state": "closed"}, r.now)
	s.note(r, r.issue, "merged")
	s.note(r, r.issue, "closed")
	s.touchCounts(r, r.issue)
	r.touch(parentOf(r.path) + "/merge")
	return respond(doc{"sha": g.refs["heads/"+base], "merged": true, "message": "Pull Request successfully merged"})
}
