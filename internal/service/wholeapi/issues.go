package wholeapi

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// addIssue creates an issue from the body of a request.
func (w *world) addIssue(repo *repository, body doc, login string, now time.Time) doc {
	repo.issues++
	issue := doc{
		"id": w.nextID(), "number": repo.issues, "title": "", "body": nil, "state": "open", "locked": false, "comments": 0, "user": login,
		"labels": []string{}, "assignees": []string{}, "milestone": 0, "parent": 0, "children": []int{}, "created_at": stamp(now), "updated_at": stamp(now), "closed_at": nil,
	}
	w.create(repo.path()+"/issues", strconv.Itoa(repo.issues), issue)
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
	if number, ok := body["milestone"].(float64); ok {
		issue["milestone"] = int(number)
	} else if value, given := body["milestone"]; given && value == nil {
		issue["milestone"] = 0
	}
	if state, ok := body["state"].(string); ok && (state == "open" || state == "closed") {
		issue["state"], issue["closed_at"] = state, nil
		if state == "closed" {
			issue["closed_at"] = stamp(now)
		}
	}
	issue["updated_at"] = stamp(now)
}

// namesIn returns the strings of a list, and the names of its objects.
func namesIn(list []any) []string {
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
	head, _ := body["head"].(string)
	base, _ := body["base"].(string)
	_, branch, _ := strings.Cut(":"+head, ":") // owner:branch or branch
	if _, rest, ok := strings.Cut(head, ":"); ok {
		branch = rest
	}
	pull := doc{"number": issue["number"], "id": w.nextID(), "head": branch, "base": base, "merged": false, "merged_at": nil, "draft": body["draft"] == true, "base_sha": repo.git.resolve(base)}
	w.create(repo.path()+"/pulls", str(issue["number"]), pull)
	return pull
}

// addComment creates a comment that belongs to an issue, a pull request or a commit.
func (w *world) addComment(repo *repository, collection, of, key string, body doc, login string, now time.Time) doc {
	id := w.nextID()
	comment := doc{"id": id, "user": doc{"login": login}, "created_at": stamp(now), "updated_at": stamp(now), of: key}
	for _, name := range []string{"body", "path", "line", "commit_id", "in_reply_to"} {
		if value, ok := body[name]; ok {
			comment[name] = value
		}
	}
	w.create(collection, strconv.Itoa(id), comment)
	switch of {
	case "issue":
		if issue := w.find(repo.path() + "/issues/" + key); issue != nil {
			issue["comments"] = issue["comments"].(int) + 1
		}
	case "commit":
		repo.git.comments[key]++
	}
	return comment
}

func (w *world) addReview(repo *repository, pull string, body doc, login string, now time.Time) doc {
	id := w.nextID()
	state := map[any]string{"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}[body["event"]]
	if state == "" {
		state = "PENDING"
	}
	review := doc{"id": id, "user": doc{"login": login}, "body": body["body"], "state": state, "submitted_at": stamp(now)}
	w.create(repo.path()+"/pulls/"+pull+"/reviews", strconv.Itoa(id), review)
	return review
}

func (w *world) addMilestone(repo *repository, body doc, login string, now time.Time) doc {
	collection := repo.path() + "/milestones"
	number := len(w.keys[collection]) + 1
	m := doc{"id": w.nextID(), "number": number, "state": "open", "creator": doc{"login": login}, "created_at": stamp(now), "updated_at": stamp(now)}
	maps.Copy(m, body)
	w.create(collection, strconv.Itoa(number), m)
	return m
}

// touchIssue touches all that shows an issue or a pull request: itself, its lists, its milestone, its parent, and the
// lists of its users.
func (s *Service) touchIssue(r *request, number string) {
	root := r.repo.path()
	issue := s.world.find(root + "/issues/" + number)
	if issue == nil {
		return
	}
	own := root + "/issues/" + number
	r.touch(own, root+"/issues", own+"/events", own+"/timeline", root+"/issues/events")
	if s.world.find(root+"/pulls/"+number) != nil {
		r.touch(root+"/pulls/"+number, root+"/pulls")
		s.touchPullCommits(r, number)
	}
	if m := issue["milestone"].(int); m != 0 {
		r.touch(root+"/milestones", root+"/milestones/"+strconv.Itoa(m), root+"/milestones/"+strconv.Itoa(m)+"/labels")
	}
	if parent := issue["parent"].(int); parent != 0 {
		r.touch(root+"/issues/"+strconv.Itoa(parent)+"/sub_issues", root+"/issues/"+strconv.Itoa(parent))
	}
	for _, child := range s.children(root, issue) {
		r.touch(root + "/issues/" + str(child["number"]) + "/parent")
	}
	lists := []string{"/issues", "/user/issues", "/orgs/" + r.repo.owner + "/issues"}
	for _, u := range s.world.users {
		for _, list := range lists {
			mine := "/@" + u.login + list
			r.touch(mine + " all")
			if slices.Contains(issue["assignees"].([]string), u.login) {
				r.touch(mine + " assigned")
			}
			if issue["user"] == u.login {
				r.touch(mine + " created")
			}
		}
	}
}

// touchPullCommits touches the pull requests of the commit at the head of a pull request.
func (s *Service) touchPullCommits(r *request, number string) {
	if pull := s.world.find(r.repo.path() + "/pulls/" + number); pull != nil {
		s.touchCommit(r, r.repo.git.resolve(str(pull["head"])), "/pulls")
	}
}

// children returns the sub-issues of an issue.
func (s *Service) children(root string, issue doc) []doc {
	var list []doc
	for _, number := range issue["children"].([]int) {
		list = append(list, s.world.find(root+"/issues/"+strconv.Itoa(number)))
	}
	return list
}

// myIssues are the lists of the caller's issues, with the default of their filter.
var myIssues = map[string]string{"issues/list": "assigned", "issues/list-for-authenticated-user": "assigned", "issues/list-for-org": "assigned"}

// issueFilter returns assigned, created or all.
func issueFilter(filter string) string {
	if filter == "assigned" || filter == "created" {
		return filter
	}
	return "all"
}

func (s *Service) renderIssue(r *request, repo *repository, issue doc) doc {
	root, number := repo.path(), str(issue["number"])
	body := maps.Clone(issue)
	labels, assignees := []any{}, []any{}
	for _, name := range issue["labels"].([]string) {
		label := s.world.find(root + "/labels/" + escape(name))
		if label == nil {
			label = doc{"name": name, "color": "ededed"}
		}
		labels = append(labels, label)
	}
	for _, login := range issue["assignees"].([]string) {
		assignees = append(assignees, doc{"login": login})
	}
	children := s.children(root, issue)
	done := 0
	for _, child := range children {
		if child["state"] == "closed" {
			done++
		}
	}
	reactions := root + "/issues/" + number + "/reactions"
	body["labels"], body["assignees"], body["milestone"] = labels, assignees, nil
	body["user"] = doc{"login": issue["user"]}
	body["url"], body["repository_url"] = r.base+root+"/issues/"+number, r.base+root
	body["reactions"] = doc{"total_count": len(s.keysOf(reactions, "/repos/{}/{}/issues/{}/reactions/{}"))}
	body["sub_issues_summary"] = doc{"total": len(children), "completed": done}
	delete(body, "parent")
	delete(body, "children")
	if m := issue["milestone"].(int); m != 0 {
		if milestone := s.world.find(root + "/milestones/" + strconv.Itoa(m)); milestone != nil {
			body["milestone"] = doc{"number": m, "title": milestone["title"]}
		}
	}
	if pull := s.world.find(root + "/pulls/" + number); pull != nil {
		body["pull_request"] = doc{"url": r.base + root + "/pulls/" + number, "merged_at": pull["merged_at"]}
	}
	return body
}

// selectIssues returns the rendered issues that the query of the request selects, newest first.
func (s *Service) selectIssues(r *request, repo *repository, more func(doc) bool) []any {
	q, list := r.query, []any{}
	for _, issue := range slices.Backward(s.world.all(repo.path() + "/issues")) {
		state, labels := q.Get("state"), issue["labels"].([]string)
		matches := more(issue)
		matches = matches && (state == "all" || issue["state"] == state || state != "closed" && issue["state"] == "open")
		matches = matches && (q.Get("creator") == "" || issue["user"] == q.Get("creator"))
		matches = matches && (q.Get("assignee") == "" || slices.Contains(issue["assignees"].([]string), q.Get("assignee")))
		matches = matches && (q.Get("milestone") == "" || str(issue["milestone"]) == q.Get("milestone"))
		matches = matches && issue["updated_at"].(string) >= q.Get("since")
		if names := q.Get("labels"); names != "" {
			for name := range strings.SplitSeq(names, ",") {
				matches = matches && slices.Contains(labels, name)
			}
		}
		if matches {
			list = append(list, s.renderIssue(r, repo, issue))
		}
	}
	return list
}

func always(doc) bool { return true }

func listIssues(s *Service, r *request) response {
	return response{status: http.StatusOK, list: s.selectIssues(r, r.repo, always)}
}

func listMyIssues(s *Service, r *request) response {
	filter := issueFilter(cmp.Or(r.query.Get("filter"), myIssues[r.op.ID]))
	list := []any{}
	for _, repo := range s.world.reposOf(r.params["org"]) {
		if repo.private && !s.isMember(r.caller) {
			continue
		}
		list = append(list, s.selectIssues(r, repo, func(issue doc) bool {
			return filter == "all" || filter == "created" && issue["user"] == r.caller.login || filter == "assigned" && slices.Contains(issue["assignees"].([]string), r.caller.login)
		})...)
	}
	return response{status: http.StatusOK, list: list}
}

// issue returns the issue that the path names, or nil.
func (s *Service) issue(r *request) doc {
	number := r.params["issue_number"]
	if number == "" {
		number = r.params["pull_number"]
	}
	return s.world.find(r.repo.path() + "/issues/" + number)
}

// withIssue returns a handler that responds with 404 if the issue does not exist.
func withIssue(handle func(*Service, *request, doc) response) handler {
	return func(s *Service, r *request) response {
		issue := s.issue(r)
		if issue == nil {
			return *problem(http.StatusNotFound, "Not Found")
		}
		return handle(s, r, issue)
	}
}

func getIssue(s *Service, r *request, issue doc) response {
	modified, _ := time.Parse(time.RFC3339, issue["updated_at"].(string))
	return response{status: http.StatusOK, body: s.renderIssue(r, r.repo, issue), modified: modified}
}

func createIssue(s *Service, r *request) response {
	issue := s.world.addIssue(r.repo, r.body, r.caller.login, r.now)
	s.touchRepo(r)
	number := str(issue["number"])
	s.touchIssue(r, number)
	s.note(r, issue, "opened")
	s.emit(r, "issues", doc{"issue": doc{"number": issue["number"]}})
	return response{status: http.StatusCreated, body: s.renderIssue(r, r.repo, issue), location: r.base + r.repo.path() + "/issues/" + number}
}

func updateIssue(s *Service, r *request, issue doc) response {
	before := issue["state"]
	changeIssue(issue, r.body, r.now)
	if issue["state"] != before {
		s.touchRepo(r)
		s.note(r, issue, map[any]string{"closed": "closed", "open": "reopened"}[issue["state"]])
	}
	return getIssue(s, r, issue)
}

// note adds an event to the history of an issue.
func (s *Service) note(r *request, issue doc, event string) {
	id := s.world.nextID()
	s.world.create(r.repo.path()+"/issues/events", strconv.Itoa(id), doc{
		"id": id, "event": event, "actor": doc{"login": r.caller.login}, "created_at": stamp(r.now), "issue": str(issue["number"]),
	})
	r.touch(r.repo.path() + "/issues/events/" + strconv.Itoa(id))
}

// changeNames returns a handler that changes the labels or assignees of an issue.
func changeNames(member, event string) handler {
	return withIssue(func(s *Service, r *request, issue doc) response {
		given, isList := r.body[member].([]any)
		if !isList {
			given, _ = anyList(r.raw)
		}
		names := namesIn(given)
		if name, ok := r.params["name"]; ok {
			names = []string{name}
		}
		old := issue[member].([]string)
		var now []string
		switch {
		case r.Method == http.MethodPut:
			now = names
		case r.Method == http.MethodPost:
			now = namesIn(slices.Concat(toAny(old), toAny(names)))
		case member == "labels" && r.params["name"] == "":
			now = []string{}
		default:
			now = slices.DeleteFunc(slices.Clone(old), func(name string) bool { return slices.Contains(names, name) })
			if len(now) == len(old) && member == "labels" {
				return *problem(http.StatusNotFound, "Label does not exist")
			}
		}
		issue[member], issue["updated_at"] = now, stamp(r.now)
		s.note(r, issue, event)
		status := r.op.success()[0]
		if member == "assignees" {
			return response{status: status, body: s.renderIssue(r, r.repo, issue)}
		}
		return response{status: status, body: s.renderIssue(r, r.repo, issue)["labels"]}.without204()
	})
}

func listLabels(s *Service, r *request, issue doc) response {
	labels, _ := s.renderIssue(r, r.repo, issue)["labels"].([]any)
	return response{status: http.StatusOK, list: labels}
}

func lockIssue(s *Service, r *request, issue doc) response {
	issue["locked"] = r.Method == http.MethodPut
	issue["updated_at"] = stamp(r.now)
	s.note(r, issue, map[bool]string{true: "locked", false: "unlocked"}[r.Method == http.MethodPut])
	return response{status: http.StatusNoContent}
}

func createComment(s *Service, r *request, issue doc) response {
	comment := s.world.addComment(r.repo, r.repo.path()+"/issues/comments", "issue", str(issue["number"]), r.body, r.caller.login, r.now)
	issue["updated_at"] = stamp(r.now)
	r.touch(r.repo.path()+"/issues/comments", r.repo.path()+"/issues/comments/"+str(comment["id"]))
	return response{status: http.StatusCreated, body: comment}
}

// createOn returns a handler that creates a review comment on a pull request or a comment on a commit.
func createOn(collection, of, param string) handler {
	return func(s *Service, r *request) response {
		key := r.params[param]
		if of == "commit" {
			if key = r.repo.git.resolve(key); key == "" {
				return *problem(http.StatusUnprocessableEntity, "No commit found for SHA")
			}
		} else if s.issue(r) == nil {
			return *problem(http.StatusNotFound, "Not Found")
		}
		root := r.repo.path()
		comment := s.world.addComment(r.repo, root+collection, of, key, r.body, r.caller.login, r.now)
		r.touch(root+collection, root+collection+"/"+str(comment["id"]), root+"/pulls/"+key+"/comments")
		if of == "commit" {
			s.touchCommit(r, key, "", "/comments")
			s.touchHistories(r, key)
		}
		return response{status: http.StatusCreated, body: comment}
	}
}

// touchHistories touches the lists of commits that show a commit.
func (s *Service) touchHistories(r *request, sha string) {
	g := r.repo.git
	for ref, head := range g.refs {
		if branch, isBranch := strings.CutPrefix(ref, "heads/"); isBranch && slices.Contains(g.history(head), g.commits[sha]) {
			r.touch(r.repo.path() + "/commits ref=" + branch)
		}
	}
}

// comments are the collections of comments: the member that names what a comment belongs to, and the list there.
var comments = map[string]struct{ of, list string }{
	"/issues/comments": {"issue", "/issues/"}, "/pulls/comments": {"pull", "/pulls/"}, "/comments": {"commit", "/commits/"},
}

// changeComment handles PATCH and DELETE of a comment, and its reactions and pins.
func changeComment(collection string) handler {
	return func(s *Service, r *request) response {
		path := r.repo.path() + collection + "/" + r.params["comment_id"]
		comment := s.world.find(path)
		if comment == nil {
			return *problem(http.StatusNotFound, "Not Found")
		}
		of := comments[collection]
		key := str(comment[of.of])
		r.touch(path, r.repo.path()+collection, r.repo.path()+of.list+key+"/comments")
		if of.of == "commit" {
			s.touchCommit(r, key, "", "/comments")
			s.touchHistories(r, key)
		} else {
			s.touchIssue(r, key)
		}
		resp := s.generic(r)
		if issue := s.world.find(r.repo.path() + "/issues/" + key); r.Method == http.MethodDelete && r.op.view == "/repos/{}/{}"+collection+"/{}" {
			if of.of == "commit" {
				r.repo.git.comments[key]--
			} else if of.of == "issue" && issue != nil {
				issue["comments"] = issue["comments"].(int) - 1
			}
		}
		return resp
	}
}

func subIssues(s *Service, r *request, issue doc) response {
	list := []any{}
	for _, child := range s.children(r.repo.path(), issue) {
		list = append(list, s.renderIssue(r, r.repo, child))
	}
	return response{status: http.StatusOK, list: list}
}

func parentIssue(s *Service, r *request, issue doc) response {
	parent := s.world.find(r.repo.path() + "/issues/" + str(issue["parent"]))
	if parent == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: s.renderIssue(r, r.repo, parent)}
}

// changeSubIssue adds a sub-issue to an issue or removes it.
func changeSubIssue(s *Service, r *request, issue doc) response {
	root, number := r.repo.path(), issue["number"].(int)
	id, _ := r.body["sub_issue_id"].(float64)
	for _, child := range s.world.all(root + "/issues") {
		adds, own := r.Method == http.MethodPost, child["number"].(int)
		if child["id"] != int(id) || own == number || adds != (child["parent"] == 0) {
			continue
		}
		children := issue["children"].([]int)
		if adds {
			child["parent"], issue["children"] = number, append(slices.Clone(children), own)
		} else {
			child["parent"], issue["children"] = 0, slices.DeleteFunc(slices.Clone(children), func(n int) bool { return n == own })
		}
		r.touch(root+"/issues/"+strconv.Itoa(own)+"/parent", root+"/issues/"+strconv.Itoa(number)+"/sub_issues")
		s.touchIssue(r, strconv.Itoa(own))
		return response{status: r.op.success()[0], body: s.renderIssue(r, r.repo, issue)}
	}
	return *problem(http.StatusUnprocessableEntity, "The sub-issue does not exist or has a parent")
}

func (s *Service) renderPull(r *request, pull doc) doc {
	g, root, number := r.repo.git, r.repo.path(), str(pull["number"])
	body := s.renderIssue(r, r.repo, s.world.find(root+"/issues/"+number))
	maps.Copy(body, pull)
	body["head"] = doc{"ref": pull["head"], "sha": g.refs["heads/"+str(pull["head"])]}
	body["base"] = doc{"ref": pull["base"], "sha": pull["base_sha"]}
	body["url"] = r.base + root + "/pulls/" + number
	delete(body, "pull_request")
	delete(body, "base_sha")
	return body
}

func listPulls(s *Service, r *request) response {
	list := []any{}
	for _, pull := range slices.Backward(s.world.all(r.repo.path() + "/pulls")) {
		body := s.renderPull(r, pull)
		state := r.query.Get("state")
		if state == "all" || body["state"] == state || state != "closed" && body["state"] == "open" {
			list = append(list, body)
		}
	}
	return response{status: http.StatusOK, list: list}
}

// pull returns the pull request that the path names, or nil.
func (s *Service) pull(r *request) doc {
	return s.world.find(r.repo.path() + "/pulls/" + r.params["pull_number"])
}

// withPull returns a handler that responds with 404 if the pull request does not exist.
func withPull(handle func(*Service, *request, doc) response) handler {
	return func(s *Service, r *request) response {
		pull := s.pull(r)
		if pull == nil {
			return *problem(http.StatusNotFound, "Not Found")
		}
		return handle(s, r, pull)
	}
}

func getPull(s *Service, r *request, pull doc) response {
	return response{status: http.StatusOK, body: s.renderPull(r, pull)}
}

func createPull(s *Service, r *request) response {
	if g := r.repo.git; g.resolve(r.text("base")) == "" || r.text("head") == "" {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	pull := s.world.addPull(r.repo, r.body, r.caller.login, r.now)
	number := str(pull["number"])
	r.touch(r.path + "/" + number)
	s.touchRepo(r)
	s.touchIssue(r, number)
	s.emit(r, "pull_request", doc{"number": pull["number"]})
	return response{status: http.StatusCreated, body: s.renderPull(r, pull), location: r.base + r.path + "/" + number}
}

func updatePull(s *Service, r *request, pull doc) response {
	issue := s.issue(r)
	before := issue["state"]
	changeIssue(issue, r.body, r.now)
	if base := r.text("base"); base != "" && r.repo.git.resolve(base) != "" {
		pull["base"], pull["base_sha"] = base, r.repo.git.resolve(base)
		r.touch(r.path+"/commits", r.path+"/files")
	}
	if issue["state"] != before {
		s.touchRepo(r)
	}
	return getPull(s, r, pull)
}

func pullCommits(s *Service, r *request, pull doc) response {
	g := r.repo.git
	base := g.commits[g.resolve(str(pull["base_sha"]))]
	list := []*commit{}
	for _, c := range g.history(g.refs["heads/"+str(pull["head"])]) {
		if base == nil || c.number > base.number {
			list = append(list, c)
		}
	}
	return response{status: http.StatusOK, list: s.renderCommits(r, list)}
}

func pullFiles(_ *Service, r *request, pull doc) response {
	g, list := r.repo.git, []any{}
	if head := g.refs["heads/"+str(pull["head"])]; head != "" {
		for _, path := range g.changed(str(pull["base_sha"]), head) {
			list = append(list, doc{"filename": path, "status": "modified"})
		}
	}
	return response{status: http.StatusOK, list: list}
}

func isMerged(_ *Service, _ *request, pull doc) response {
	if pull["merged"] != true {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusNoContent}
}

func mergePull(s *Service, r *request, pull doc) response {
	g, issue := r.repo.git, s.issue(r)
	base, head := str(pull["base"]), g.refs["heads/"+str(pull["head"])]
	if pull["merged"] == true || issue["state"] != "open" || g.refs["heads/"+base] == "" || head == "" {
		return *problem(http.StatusMethodNotAllowed, "Pull Request is not mergeable")
	}
	if sha := g.mergeInto(base, head, "Merge pull request #"+str(pull["number"]), r.caller.login, r.now); sha != "" {
		s.move(r, "heads/"+base, sha)
	}
	pull["merged"], pull["merged_at"] = true, stamp(r.now)
	changeIssue(issue, doc{"state": "closed"}, r.now)
	s.note(r, issue, "merged")
	s.touchRepo(r)
	r.touch(parentOf(r.path) + "/merge")
	s.emit(r, "pull_request", doc{"number": pull["number"], "action": "closed"})
	return response{status: r.op.success()[0], body: doc{"sha": g.refs["heads/"+base], "merged": true, "message": "Pull Request successfully merged"}}
}

func createReview(s *Service, r *request, pull doc) response {
	review := s.world.addReview(r.repo, str(pull["number"]), r.body, r.caller.login, r.now)
	r.touch(r.path + "/" + str(review["id"]))
	return response{status: http.StatusOK, body: review}
}

func createLabel(s *Service, r *request) response {
	name := r.text("name")
	if name == "" || s.world.find(r.path+"/"+escape(name)) != nil {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	label := doc{"id": s.world.nextID(), "name": name, "color": "ededed", "description": nil, "default": false}
	maps.Copy(label, r.body)
	s.world.create(r.path, name, label)
	r.touch(r.path + "/" + escape(name))
	s.touchLabelled(r, name)
	return response{status: http.StatusCreated, body: label}
}

// changeLabel handles PATCH and DELETE of a label. Issues show their labels.
func changeLabel(s *Service, r *request) response {
	name, list := r.params["name"], r.repo.path()+"/labels"
	label := s.world.find(r.path)
	if label == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	s.touchLabelled(r, name)
	renamed := r.text("new_name")
	for _, issue := range s.world.all(r.repo.path() + "/issues") {
		labels := slices.Clone(issue["labels"].([]string))
		if at := slices.Index(labels, name); at >= 0 && r.Method == http.MethodDelete {
			issue["labels"] = slices.Delete(labels, at, at+1)
		} else if at >= 0 && renamed != "" {
			labels[at] = renamed
			issue["labels"] = labels
		}
	}
	if r.Method == http.MethodDelete {
		s.world.remove(r.path)
		return response{status: http.StatusNoContent}
	}
	maps.Copy(label, r.body)
	delete(label, "new_name")
	if renamed != "" && renamed != name {
		s.world.remove(r.path)
		label["name"] = renamed
		s.world.create(list, renamed, label)
		r.touch(list + "/" + escape(renamed))
	}
	return response{status: http.StatusOK, body: label}
}

// touchLabelled touches the issues with a label.
func (s *Service) touchLabelled(r *request, name string) {
	for _, issue := range s.world.all(r.repo.path() + "/issues") {
		if slices.Contains(issue["labels"].([]string), name) {
			number := str(issue["number"])
			s.touchIssue(r, number)
			r.touch(r.repo.path() + "/issues/" + number + "/labels")
		}
	}
}

func createMilestone(s *Service, r *request) response {
	m := s.world.addMilestone(r.repo, r.body, r.caller.login, r.now)
	r.touch(r.path + "/" + str(m["number"]))
	return response{status: http.StatusCreated, body: s.renderMilestone(r, m)}
}

func (s *Service) renderMilestone(r *request, m doc) doc {
	open, closed := 0, 0
	for _, issue := range s.world.all(r.repo.path() + "/issues") {
		if issue["milestone"] == m["number"] {
			if issue["state"] == "open" {
				open++
			} else {
				closed++
			}
		}
	}
	body := maps.Clone(m)
	body["open_issues"], body["closed_issues"] = open, closed
	return body
}

func listMilestones(s *Service, r *request) response {
	list := []any{}
	for _, m := range s.world.all(r.path) {
		list = append(list, s.renderMilestone(r, m))
	}
	return response{status: http.StatusOK, list: list}
}

// oneMilestone handles GET, PATCH and DELETE of a milestone. Issues show their milestone.
func oneMilestone(s *Service, r *request) response {
	m := s.world.find(r.path)
	if m == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		for _, issue := range s.world.all(r.repo.path() + "/issues") {
			if issue["milestone"] == m["number"] {
				s.touchIssue(r, str(issue["number"]))
				if r.Method == http.MethodDelete {
					issue["milestone"] = 0
				}
			}
		}
	}
	switch r.Method {
	case http.MethodDelete:
		s.world.remove(r.path)
		return response{status: http.StatusNoContent}
	case http.MethodPatch:
		maps.Copy(m, r.body)
	}
	return response{status: http.StatusOK, body: s.renderMilestone(r, m)}
}
