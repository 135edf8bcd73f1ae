package wholeapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// handler answers one operation. It runs with Service.mu held.
type handler func(*Service, *request) response

// handlers are the operations with state of their own, by ID. The others are generic.
var handlers = map[string]handler{
	"repos/get": getRepo, "repos/update": updateRepo, "repos/delete": deleteRepo, "repos/list-for-org": listRepos, "repos/list-for-user": listRepos,
	"repos/list-for-authenticated-user": listMyRepos, "apps/list-repos-accessible-to-installation": listMyRepos, "repos/create-in-org": createRepo,
	"repos/create-for-authenticated-user": createRepo, "repos/create-using-template": createRepo, "repos/replace-all-topics": replaceTopics,
	"repos/get-all-topics": getTopics,
	"orgs/get":             getOwner, "users/get-by-username": getOwner, "users/get-by-id": getOwner, "users/get-authenticated": getOwner,
	"teams/create": createTeam, "orgs/delete": acceptLater,

	"issues/list-for-repo": listIssues, "issues/create": createIssue, "issues/get": withIssue(getIssue), "issues/update": withIssue(updateIssue),
	"issues/list": listMyIssues, "issues/list-for-org": listMyIssues, "issues/list-for-authenticated-user": listMyIssues,
	"issues/add-labels": changeNames("labels", "labeled"), "issues/set-labels": changeNames("labels", "labeled"),
	"issues/remove-label": changeNames("labels", "unlabeled"), "issues/remove-all-labels": changeNames("labels", "unlabeled"),
	"issues/list-labels-on-issue": withIssue(listLabels), "issues/add-assignees": changeNames("assignees", "assigned"),
	"issues/remove-assignees": changeNames("assignees", "unassigned"), "issues/lock": withIssue(lockIssue), "issues/unlock": withIssue(lockIssue),
	"issues/create-comment": withIssue(createComment), "issues/list-comments": listWhere("/issues/comments", "issue", "issue_number"),
	"issues/list-comments-for-repo": listWhere("/issues/comments", "", ""), "issues/update-comment": changeComment("/issues/comments"),
	"issues/delete-comment": changeComment("/issues/comments"), "issues/pin-comment": changeComment("/issues/comments"),
	"issues/unpin-comment": changeComment("/issues/comments"), "issues/list-events": listWhere("/issues/events", "issue", "issue_number"),
	"issues/list-events-for-timeline": listWhere("/issues/events", "issue", "issue_number"), "issues/list-events-for-repo": listWhere("/issues/events", "", ""),
	"issues/list-sub-issues": withIssue(subIssues), "issues/get-parent": withIssue(parentIssue), "issues/add-sub-issue": withIssue(changeSubIssue),
	"issues/remove-sub-issue": withIssue(changeSubIssue), "issues/create-label": createLabel, "issues/update-label": changeLabel,
	"issues/delete-label": changeLabel, "issues/create-milestone": createMilestone, "issues/list-milestones": listMilestones,
	"issues/get-milestone": oneMilestone, "issues/update-milestone": oneMilestone, "issues/delete-milestone": oneMilestone,
	"reactions/create-for-issue-comment": changeComment("/issues/comments"), "reactions/delete-for-issue-comment": changeComment("/issues/comments"),

	"pulls/list": listPulls, "pulls/create": createPull, "pulls/get": withPull(getPull), "pulls/update": withPull(updatePull),
	"pulls/list-commits": withPull(pullCommits), "pulls/list-files": withPull(pullFiles), "pulls/check-if-merged": withPull(isMerged),
	"pulls/merge": withPull(mergePull), "pulls/create-review": withPull(createReview),
	"pulls/create-review-comment":           createOn("/pulls/comments", "pull", "pull_number"),
	"pulls/list-review-comments":            listWhere("/pulls/comments", "pull", "pull_number"),
	"pulls/create-reply-for-review-comment": createOn("/pulls/comments", "pull", "pull_number"),
	"pulls/list-review-comments-for-repo":   listWhere("/pulls/comments", "", ""), "pulls/list-comments-for-review": listWhere("/pulls/comments", "review", "review_id"),
	"pulls/update-review-comment": changeComment("/pulls/comments"), "pulls/delete-review-comment": changeComment("/pulls/comments"),
	"reactions/create-for-pull-request-review-comment": changeComment("/pulls/comments"), "reactions/delete-for-pull-request-comment": changeComment("/pulls/comments"),

	"repos/list-commits": listCommits, "repos/get-commit": getCommit, "repos/compare-commits": compare, "repos/compare-commits-with-basehead": compare,
	"repos/list-branches": listBranches, "repos/get-branch": getBranch, "repos/rename-branch": renameBranch, "repos/list-tags": listTags,
	"repos/list-branches-for-head-commit": branchesOfHead, "repos/list-pull-requests-associated-with-commit": pullsOfCommit, "repos/merge": merge,
	"git/get-ref": getRef, "git/list-matching-refs": listRefs, "git/create-ref": createRef, "git/update-ref": updateRef, "git/delete-ref": deleteRef,
	"git/create-blob": createBlob, "git/get-blob": getBlob, "git/create-tree": createTree, "git/get-tree": getTree, "git/create-commit": createCommit,
	"git/get-commit": getGitCommit, "git/create-tag": createTag, "git/get-tag": getTag,
	"repos/get-content": getContent, "repos/get-readme": getReadme, "repos/get-readme-in-directory": getReadme,
	"repos/create-or-update-file-contents": changeContent, "repos/delete-file": changeContent,
	"repos/create-commit-comment": createOn("/comments", "commit", "commit_sha"), "repos/list-comments-for-commit": ofCommit("/comments", "commit", "commit_sha"),
	"repos/list-commit-comments-for-repo": listWhere("/comments", "", ""), "repos/update-commit-comment": changeComment("/comments"),
	"repos/delete-commit-comment": changeComment("/comments"), "reactions/create-for-commit-comment": changeComment("/comments"),
	"reactions/delete-for-commit-comment": changeComment("/comments"),

	"repos/create-commit-status": createStatus, "repos/list-commit-statuses-for-ref": ofCommit("/statuses", "sha", "ref"),
	"repos/get-combined-status-for-ref": combinedStatus, "checks/create": createCheck, "checks/update": changeCheck, "checks/rerequest-run": changeCheck,
	"checks/create-suite": createSuite, "checks/rerequest-suite": changeCheck, "checks/list-for-ref": ofCommit("/check-runs", "head_sha", "ref"),
	"checks/list-suites-for-ref": ofCommit("/check-suites", "head_sha", "ref"), "checks/list-for-suite": listWhere("/check-runs", "suite", "check_suite_id"),

	"repos/list-releases": listReleases, "repos/create-release": createRelease, "repos/get-release": getRelease, "repos/get-latest-release": getRelease,
	"repos/get-release-by-tag": getRelease, "repos/update-release": changeRelease, "repos/delete-release": changeRelease,
	"repos/upload-release-asset": uploadAsset, "repos/list-release-assets": listWhere("/releases/assets", "release", "release_id"),
	"repos/get-release-asset": getAsset, "repos/update-release-asset": changeAsset, "repos/delete-release-asset": changeAsset,
	"reactions/create-for-release": reactToRelease, "reactions/delete-for-release": reactToRelease,

	"repos/get-code-frequency-stats": statistics, "repos/get-commit-activity-stats": statistics, "repos/get-contributors-stats": statistics,
	"repos/get-participation-stats": statistics, "repos/get-punch-card-stats": statistics,
}

// listWhere returns a handler for the objects of a collection of the repository whose member equals a parameter of the
// path.
func listWhere(collection, member, param string) handler {
	return func(s *Service, r *request) response {
		if !s.exists(parentOf(r.path), parentOf(r.op.view)) {
			return *problem(http.StatusNotFound, "Not Found")
		}
		return response{status: http.StatusOK, list: s.where(r.repo.path()+collection, member, r.params[param])}
	}
}

func (s *Service) where(collection, member, value string) []any {
	list := []any{}
	for _, fields := range s.world.all(collection) {
		if member == "" || str(fields[member]) == value {
			list = append(list, fields)
		}
	}
	return list
}

// ofCommit returns a handler for the objects of a collection that belong to the commit with a name.
func ofCommit(collection, member, param string) handler {
	return func(s *Service, r *request) response {
		sha := r.repo.git.resolve(r.params[param])
		if sha == "" {
			return *problem(http.StatusNotFound, "Not Found")
		}
		return response{status: http.StatusOK, list: s.where(r.repo.path()+collection, member, sha)}
	}
}

func (s *Service) renderRepo(r *request, repo *repository) doc {
	root, open := repo.path(), 0
	for _, issue := range s.world.all(root + "/issues") {
		if issue["state"] == "open" {
			open++
		}
	}
	body := doc{
		"id": repo.id, "name": repo.name, "full_name": repo.owner + "/" + repo.name, "owner": doc{"login": repo.owner}, "private": repo.private,
		"url": r.base + root, "default_branch": mainBranch, "open_issues_count": open, "pushed_at": stamp(repo.pushed), "updated_at": stamp(repo.updated),
		"created_at": stamp(s.world.started), "stargazers_count": s.count("/user/starred/" + repo.owner + "/" + repo.name), "topics": []string{},
		"description": nil,
	}
	maps.Copy(body, repo.fields)
	return body
}

// count returns the number of users who have an object at a path of their own, such as a star.
func (s *Service) count(path string) int {
	n := 0
	for _, u := range s.world.users {
		if s.world.find("/@"+u.login+path) != nil {
			n++
		}
	}
	return n
}

// touchRepo touches the repository of the request and the lists of repositories.
func (s *Service) touchRepo(r *request) {
	owner := r.repo.owner
	r.touch(r.repo.path(), "/orgs/"+owner+"/repos", "/users/"+owner+"/repos", "/@*/user/repos", "/@*/installation/repositories")
	r.repo.updated = r.now
}

func getRepo(s *Service, r *request) response {
	return response{status: http.StatusOK, body: s.renderRepo(r, r.repo), modified: r.repo.updated}
}

func updateRepo(s *Service, r *request) response {
	for _, name := range []string{"description", "homepage", "has_issues", "has_wiki", "archived"} {
		if value, ok := r.body[name]; ok {
			r.repo.fields[name] = value
		}
	}
	if private, ok := r.body["private"].(bool); ok && private != r.repo.private {
		r.repo.private = private
		r.touch(r.repo.path() + "/**")
	}
	s.touchRepo(r)
	s.emit(r, "repository", doc{})
	return getRepo(s, r)
}

func deleteRepo(s *Service, r *request) response {
	r.repo.gone = true
	s.touchRepo(r)
	s.emit(r, "repository", doc{})
	return response{status: http.StatusNoContent}
}

func (s *Service) listRepos(r *request, selects func(*repository) bool) response {
	list := []any{}
	for _, repo := range s.world.reposOf("") {
		if (!repo.private || s.isMember(r.caller)) && selects(repo) {
			list = append(list, s.renderRepo(r, repo))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func listRepos(s *Service, r *request) response {
	owner := keyOf(parentOf(r.path))
	return s.listRepos(r, func(repo *repository) bool { return repo.owner == owner })
}

// listMyRepos lists the repositories that the caller can see as an owner or a member.
func listMyRepos(s *Service, r *request) response {
	return s.listRepos(r, func(repo *repository) bool {
		return repo.owner == r.caller.login || repo.owner == "acme" && s.isMember(r.caller)
	})
}

func createRepo(s *Service, r *request) response {
	owner := r.caller.login
	if org := r.params["org"]; org != "" {
		owner = keyOf(parentOf(r.path))
	}
	name := r.text("name")
	if old := s.world.repo(owner, name); name == "" || old != nil && !old.gone {
		return *problem(http.StatusUnprocessableEntity, "Repository creation failed.")
	}
	private, _ := r.body["private"].(bool)
	r.repo = s.world.addRepo(owner, name, private, r.now)
	s.touchRepo(r)
	r.touch(r.repo.path()+"/**", "/orgs/"+owner, "/users/"+owner, "/@"+owner+"/user")
	s.emit(r, "repository", doc{})
	return response{status: http.StatusCreated, body: s.renderRepo(r, r.repo), location: r.base + r.repo.path()}
}

func replaceTopics(s *Service, r *request) response {
	names, _ := r.body["names"].([]any)
	r.repo.fields["topics"] = namesIn(names)
	s.touchRepo(r)
	return getTopics(s, r)
}

func getTopics(_ *Service, r *request) response {
	topics := r.repo.fields["topics"]
	if topics == nil {
		topics = []string{}
	}
	return response{status: http.StatusOK, body: doc{"names": topics}}
}

// getOwner returns an organization or a user.
func getOwner(s *Service, r *request) response {
	login, all := keyOf(r.path), slices.Concat(s.world.users, s.world.orgs)
	if r.path == "/user" {
		login = r.caller.login
	}
	o, ok := ownerOf(all, login)
	if !ok {
		return *problem(http.StatusNotFound, "Not Found")
	}
	body := doc{"login": o.login, "id": o.id, "type": "User", "url": r.base + "/users/" + o.login, "public_repos": len(s.world.reposOf(o.login))}
	if o.org {
		body["type"], body["url"] = "Organization", r.base+"/orgs/"+o.login
	} else {
		maps.Copy(body, s.world.find("/@"+o.login+"/user"))
	}
	maps.Copy(body, s.world.find("/orgs/"+o.login))
	return response{status: http.StatusOK, body: body, modified: s.world.started}
}

// acceptLater responds with 202 and changes nothing.
func acceptLater(_ *Service, r *request) response {
	r.seq = 0
	return response{status: http.StatusAccepted, body: doc{}}
}

func createTeam(s *Service, r *request) response {
	org, name := keyOf(parentOf(r.path)), r.text("name")
	slug := strings.ReplaceAll(strings.ToLower(name), " ", "-")
	if slug == "" || s.world.find(r.path+"/"+escape(slug)) != nil {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	team := s.world.addTeam(org, slug, maps.Clone(r.body))
	r.touch(r.path + "/" + escape(slug))
	return response{status: http.StatusCreated, body: team}
}

func branchesOfHead(s *Service, r *request) response {
	list := []any{}
	for _, ref := range slices.Sorted(maps.Keys(r.repo.git.refs)) {
		if name, isBranch := strings.CutPrefix(ref, "heads/"); isBranch && r.repo.git.refs[ref] == r.params["commit_sha"] {
			list = append(list, s.renderBranch(r, name))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func pullsOfCommit(s *Service, r *request) response {
	list := []any{}
	for _, pull := range s.world.all(r.repo.path() + "/pulls") {
		if r.repo.git.resolve(str(pull["head"])) == r.repo.git.resolve(r.params["commit_sha"]) {
			list = append(list, s.renderPull(r, pull))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func (w *world) addStatus(repo *repository, sha string, body doc, login string, now time.Time) doc {
	id := w.nextID()
	status := doc{"id": id, "sha": sha, "context": "default", "creator": doc{"login": login}, "created_at": stamp(now)}
	maps.Copy(status, body)
	w.create(repo.path()+"/statuses", strconv.Itoa(id), status)
	return status
}

func createStatus(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.params["sha"])
	if sha == "" {
		return *problem(http.StatusUnprocessableEntity, "No commit found for SHA")
	}
	status := s.world.addStatus(r.repo, sha, r.body, r.caller.login, r.now)
	s.touchCommit(r, sha, "/status", "/statuses")
	s.emit(r, "status", doc{"sha": sha})
	return response{status: http.StatusCreated, body: status}
}

func combinedStatus(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.params["ref"])
	if sha == "" {
		return *problem(http.StatusNotFound, "Not Found")
	}
	latest, state := map[any]any{}, "pending"
	for _, status := range s.where(r.repo.path()+"/statuses", "sha", sha) {
		latest[status.(doc)["context"]] = status
	}
	list := []any{}
	for _, context := range slices.SortedFunc(maps.Keys(latest), func(a, b any) int { return strings.Compare(str(a), str(b)) }) {
		list = append(list, latest[context])
		state = str(latest[context].(doc)["state"])
	}
	return response{status: http.StatusOK, body: doc{"sha": sha, "state": state, "total_count": len(list), "statuses": list}}
}

// addCheck creates a check run in the suite of its commit.
func (w *world) addCheck(repo *repository, body doc, now time.Time) doc {
	sha, _ := body["head_sha"].(string)
	suite := w.suite(repo, sha, now)
	id := w.nextID()
	run := doc{"id": id, "status": "queued", "conclusion": nil, "started_at": stamp(now)}
	maps.Copy(run, body)
	run["suite"] = suite["id"]
	w.create(repo.path()+"/check-runs", strconv.Itoa(id), run)
	return run
}

// suite returns the check suite of a commit. It creates the suite if there is none.
func (w *world) suite(repo *repository, sha string, now time.Time) doc {
	for _, suite := range w.all(repo.path() + "/check-suites") {
		if suite["head_sha"] == sha {
			return suite
		}
	}
	id := w.nextID()
	suite := doc{"id": id, "head_sha": sha, "status": "queued", "created_at": stamp(now)}
	w.create(repo.path()+"/check-suites", strconv.Itoa(id), suite)
	return suite
}

// touchCheck touches what shows a check run or a suite of a commit.
func (s *Service) touchCheck(r *request, fields doc) {
	sha, root := str(fields["head_sha"]), r.repo.path()
	s.touchCommit(r, sha, "/check-runs", "/check-suites")
	suite := str(s.world.suite(r.repo, sha, r.now)["id"])
	r.touch(root+"/check-suites/"+suite, root+"/check-suites/"+suite+"/check-runs")
}

func createCheck(s *Service, r *request) response {
	if r.body["head_sha"] = r.repo.git.resolve(r.text("head_sha")); r.body["head_sha"] == "" || r.text("name") == "" {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	run := s.world.addCheck(r.repo, r.body, r.now)
	r.touch(r.path + "/" + str(run["id"]))
	s.touchCheck(r, run)
	s.emit(r, "check_run", doc{"check_run": doc{"id": run["id"], "head_sha": run["head_sha"]}})
	return response{status: http.StatusCreated, body: run, location: r.base + r.path + "/" + str(run["id"])}
}

func createSuite(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.text("head_sha"))
	if sha == "" {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	suite := s.world.suite(r.repo, sha, r.now)
	r.touch(r.path + "/" + str(suite["id"]))
	s.touchCheck(r, suite)
	return response{status: http.StatusCreated, body: suite}
}

// changeCheck handles PATCH of a check run, and requests to run it or its suite again.
func changeCheck(s *Service, r *request) response {
	path := strings.TrimSuffix(r.path, "/rerequest")
	fields := s.world.find(path)
	if fields == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	sha := fields["head_sha"]
	maps.Copy(fields, r.body)
	if fields["head_sha"] = sha; path != r.path {
		fields["status"] = "queued"
	}
	fields["updated_at"] = stamp(r.now)
	s.touchCheck(r, fields)
	s.emit(r, "check_run", doc{"check_run": doc{"id": fields["id"], "head_sha": sha}})
	return response{status: r.op.success()[0], body: fields}
}

func (w *world) addRelease(repo *repository, body doc, login string, now time.Time) doc {
	id := w.nextID()
	release := doc{"id": id, "draft": false, "prerelease": false, "author": doc{"login": login}, "created_at": stamp(now), "target_commitish": mainBranch}
	maps.Copy(release, body)
	w.create(repo.path()+"/releases", strconv.Itoa(id), release)
	return release
}

func (w *world) addAsset(repo *repository, release, name string, now time.Time) doc {
	id := w.nextID()
	asset := doc{"id": id, "name": name, "release": release, "state": "uploaded", "created_at": stamp(now)}
	w.create(repo.path()+"/releases/assets", strconv.Itoa(id), asset)
	return asset
}

func (s *Service) renderRelease(r *request, release doc) doc {
	body, root := maps.Clone(release), r.repo.path()
	id := str(release["id"])
	body["assets"] = s.where(root+"/releases/assets", "release", id)
	body["url"], body["upload_url"] = r.base+root+"/releases/"+id, r.base+root+"/releases/"+id+"/assets{?name,label}"
	body["reactions"] = doc{"total_count": len(s.keysOf(root+"/releases/"+id+"/reactions", "/repos/{}/{}/releases/{}/reactions/{}"))}
	return body
}

// touchRelease touches all that shows a release.
func (s *Service) touchRelease(r *request, release doc) {
	list := r.repo.path() + "/releases"
	r.touch(list, list+"/latest", list+"/"+str(release["id"]), list+"/tags/"+escape(str(release["tag_name"])), list+"/"+str(release["id"])+"/assets")
}

func listReleases(s *Service, r *request) response {
	list := []any{}
	for _, release := range slices.Backward(s.world.all(r.path)) {
		list = append(list, s.renderRelease(r, release))
	}
	return response{status: http.StatusOK, list: list}
}

// getRelease returns a release by ID or by tag, or the latest one.
func getRelease(s *Service, r *request) response {
	tag, byTag := r.params["tag"]
	_, byID := r.params["release_id"]
	for _, release := range slices.Backward(s.world.all(r.repo.path() + "/releases")) {
		isDraft := release["draft"] == true
		if byID && str(release["id"]) == r.params["release_id"] || byTag && release["tag_name"] == tag && !isDraft ||
			!byID && !byTag && !isDraft && release["prerelease"] != true {
			return response{status: http.StatusOK, body: s.renderRelease(r, release)}
		}
	}
	return *problem(http.StatusNotFound, "Not Found")
}

func createRelease(s *Service, r *request) response {
	tag := r.text("tag_name")
	if tag == "" {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	release := s.world.addRelease(r.repo, r.body, r.caller.login, r.now)
	if g := r.repo.git; release["draft"] != true && g.refs["tags/"+tag] == "" {
		s.move(r, "tags/"+tag, g.resolve(str(release["target_commitish"])))
	}
	s.touchRelease(r, release)
	s.emit(r, "release", doc{"release": doc{"id": release["id"], "tag_name": tag}})
	return response{status: http.StatusCreated, body: s.renderRelease(r, release), location: r.base + r.path + "/" + str(release["id"])}
}

// changeRelease handles PATCH and DELETE of a release.
func changeRelease(s *Service, r *request) response {
	release := s.world.find(r.path)
	if release == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	s.touchRelease(r, release)
	s.emit(r, "release", doc{"release": doc{"id": release["id"], "tag_name": release["tag_name"]}})
	if r.Method == http.MethodDelete {
		s.world.remove(r.path)
		return response{status: http.StatusNoContent}
	}
	maps.Copy(release, r.body)
	s.touchRelease(r, release) // its tag may be another one
	return response{status: http.StatusOK, body: s.renderRelease(r, release)}
}

func reactToRelease(s *Service, r *request) response {
	release := s.world.find(r.repo.path() + "/releases/" + r.params["release_id"])
	if release == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	s.touchRelease(r, release)
	return s.generic(r)
}

func uploadAsset(s *Service, r *request) response {
	release := s.world.find(parentOf(r.path))
	if release == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	asset := s.world.addAsset(r.repo, str(release["id"]), r.query.Get("name"), r.now)
	s.touchRelease(r, release)
	r.touch(r.repo.path() + "/releases/assets/" + str(asset["id"]))
	return response{status: http.StatusCreated, body: asset}
}

func getAsset(s *Service, r *request) response {
	asset := s.world.find(r.path)
	if asset == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	if strings.Contains(r.Header.Get("Accept"), "octet-stream") {
		return response{status: http.StatusFound, location: s.config.Downloads + r.path}
	}
	return response{status: http.StatusOK, body: asset}
}

// changeAsset handles PATCH and DELETE of a release asset.
func changeAsset(s *Service, r *request) response {
	asset := s.world.find(r.path)
	if asset == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	s.touchRelease(r, s.world.objects[r.repo.path()+"/releases/"+str(asset["release"])].fields)
	if r.Method == http.MethodDelete {
		s.world.remove(r.path)
		return response{status: http.StatusNoContent}
	}
	maps.Copy(asset, r.body)
	return response{status: http.StatusOK, body: asset}
}

// statistics responds with 202 until the job of the path has ended. The first request starts the job.
func statistics(s *Service, r *request) response {
	end, started := s.jobs[r.path]
	if !started {
		end = r.now.Add(s.config.StatisticsDelay)
		s.jobs[r.path] = end
	}
	if r.now.Before(end) {
		return response{status: http.StatusAccepted, body: doc{}}
	}
	return response{status: http.StatusOK, list: []any{}}
}

// anyList returns the elements of a JSON list.
func anyList(raw []byte) ([]any, error) {
	var list []any
	err := json.Unmarshal(raw, &list)
	return list, err
}

func toAny(names []string) []any {
	list := make([]any, 0, len(names))
	for _, name := range names {
		list = append(list, name)
	}
	return list
}
