package service

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// kind describes the objects of a collection of a repository. They exist only if a request or the seed created them,
// and other routes show them, too.
type kind struct {
	key      string // the member that names the object in paths; the default is id
	of       string // the member that names what the object belongs to, such as the number of an issue
	defaults doc
	created  func(w *world, repo *repository, fields doc) // completes a new object; optional
	render   func(s *Service, r *request, fields doc) doc // returns the shown members; optional
	touch    func(s *Service, r *request, fields doc)     // touches the other routes that show the object; optional
}

// newKinds returns the kinds by the view of the collection below the repository.
func newKinds() map[string]kind {
	return map[string]kind{
		"issues":           {key: "number", render: renderIssue, touch: touchIssue},
		"pulls":            {key: "number", render: renderPull, touch: touchIssue},
		"issues/events":    {of: "issue"},
		"issues/comments":  {of: "issue", touch: touchComment},
		"pulls/comments":   {of: "pull", touch: touchComment},
		"pulls/{}/reviews": {defaults: doc{"state": "PENDING"}},
		"comments":         {of: "commit", touch: touchComment},
		"labels":           {key: "name", defaults: doc{"color": "ededed", "description": nil}, touch: touchLabel},
		"milestones":       {key: "number", defaults: doc{"state": "open"}, render: renderMilestone, touch: touchMilestone},
		"releases":         {defaults: doc{"draft": false, "prerelease": false, "target_commitish": mainBranch}, created: tagRelease, render: renderRelease, touch: touchRelease},
		"releases/assets":  {of: "release", defaults: doc{"state": "uploaded"}, touch: touchAsset},
		"statuses":         {of: "sha", defaults: doc{"context": "default"}, touch: touchCheck},
		"check-runs":       {of: "head_sha", defaults: doc{"status": "queued", "conclusion": nil}, created: joinSuite, touch: touchCheck},
		"check-suites":     {of: "head_sha", defaults: doc{"status": "queued"}, touch: touchCheck},
	}
}

// part is a route that shows or creates the objects of a collection whose member has the value of a parameter. An empty
// member selects all objects, as on the route of the collection itself.
type part struct{ Collection, Member, Param string }

// partOf returns the part that a route with a view shows, if it shows one.
func (w *world) partOf(view string) (part, bool) {
	below := strings.TrimPrefix(view, inRepo)
	if p, ok := views().Parts[below]; ok {
		return p, true
	}
	_, isCollection := w.kinds[below]
	return part{Collection: below}, isCollection
}

const inRepo = "/repos/{}/{}/"

// kindOf returns the kind of the object with a view, if it has one.
func (w *world) kindOf(view string) (kind, bool) {
	collection, isItem := strings.CutSuffix(strings.TrimPrefix(view, inRepo), "/{}")
	k, ok := w.kinds[collection]
	return k, ok && isItem
}

// add creates an object in a collection with a view.
func (w *world) add(repo *repository, path, view string, fields doc, login string, now time.Time) doc {
	k := w.kinds[strings.TrimPrefix(view, inRepo)]
	all := doc{"created_at": timestamp(now)}
	maps.Copy(all, k.defaults)
	maps.Copy(all, fields)
	all["id"], all["user"], all["updated_at"] = w.nextID(), doc{"login": login}, timestamp(now)
	if k.key == "number" && all["number"] == nil {
		all["number"] = len(w.keys[path]) + 1
	}
	if k.created != nil {
		k.created(w, repo, all)
	}
	w.create(path, str(all[cmp.Or(k.key, "id")]), all)
	if k.of != "" {
		w.of[path+" "+str(all[k.of])] = append(w.of[path+" "+str(all[k.of])], str(all["id"]))
	}
	return all
}

// valueOf returns the value of the member that a route selects, and whether the thing exists.
func (s *Service) valueOf(r *request, p part) (string, bool) {
	value := r.params[p.Param]
	switch p.Param {
	case "commit_sha", "ref", "sha":
		value = r.repo.git.resolve(value)
		return value, value != ""
	}
	return value, s.exists(parentOf(r.path), parentOf(r.op.view))
}

func (s *Service) listPart(r *request, p part) response {
	value, ok := s.valueOf(r, p)
	if !ok {
		return notFound()
	}
	k := s.world.kinds[parameter.ReplaceAllString(p.Collection, "{}")]
	list := s.world.where(r.repo, expand(p.Collection, r.params), p.Member, value)
	if p.Collection == "releases" {
		slices.Reverse(list)
	}
	return listOf(list, func(fields doc) doc { return s.show(r, k, fields) })
}

func (s *Service) show(r *request, k kind, fields doc) doc {
	if k.render != nil {
		return k.render(s, r, fields)
	}
	return fields
}

// createPart creates an object of a kind.
func (s *Service) createPart(r *request, p part) response {
	value, ok := s.valueOf(r, p)
	if !ok {
		return notFound()
	}
	view := parameter.ReplaceAllString(p.Collection, "{}")
	k, fields := s.world.kinds[view], doc{}
	maps.Copy(fields, r.body)
	if p.Member != "" {
		fields[p.Member] = value
	}
	if k.of == "head_sha" {
		fields["head_sha"] = r.repo.git.resolve(r.text("head_sha"))
	}
	path := r.repo.path() + "/" + expand(p.Collection, r.params)
	if name := r.text("name"); fields["head_sha"] == "" || k.key == "name" && (name == "" || s.world.find(path+"/"+escape(name)) != nil) {
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	created := s.world.add(r.repo, path, inRepo+view, fields, r.caller.name(), r.now)
	item := path + "/" + escape(str(created[cmp.Or(k.key, "id")]))
	r.touch(path, item)
	if k.touch != nil {
		k.touch(s, r, created)
	}
	return response{status: r.op.created(), body: s.show(r, k, created), location: r.base + item}
}

// touchKinds touches what shows the objects in the path of a write: the object itself and those above it.
func (s *Service) touchKinds(r *request) {
	for path, view := r.path, r.op.view; path != ""; path, view = parentOf(path), parentOf(view) {
		if k, ok := s.world.kindOf(view); ok && k.touch != nil {
			if fields := s.world.find(path); fields != nil {
				k.touch(s, r, fields)
			}
		}
	}
}

// touchComment touches the list of a comment. A new or deleted comment changes the thing that it belongs to.
func touchComment(s *Service, r *request, comment doc) {
	root := r.repo.path()
	_, isComment := s.world.kindOf(r.op.view)
	counts := r.Method == http.MethodPost && !strings.Contains(r.op.view, "comments/{}/reactions") || r.Method == http.MethodDelete && isComment
	if sha, ok := comment["commit"].(string); ok {
		s.touchCommit(r, sha, "/comments")
		if counts {
			s.touchCommit(r, sha, "")
		}
	}
	for member, list := range map[string]string{"issue": "/issues/", "pull": "/pulls/"} {
		if number, ok := comment[member].(string); ok {
			r.touch(root + list + number + "/comments")
			if issue := s.world.find(root + "/issues/" + number); counts && issue != nil {
				touchIssue(s, r, issue)
			}
		}
	}
	if review, ok := comment["review"].(string); ok {
		r.touch(root + "/pulls/" + str(comment["pull"]) + "/reviews/" + review + "/comments")
	}
}

// touchLabel touches the issues with a label.
func touchLabel(s *Service, r *request, label doc) {
	for _, issue := range s.world.all(r.repo.path() + "/issues") {
		if slices.Contains(issue["labels"].([]string), str(label["name"])) {
			touchIssue(s, r, issue)
			r.touch(r.repo.path() + "/issues/" + str(issue["number"]) + "/labels")
		}
	}
}

// touchMilestone touches the issues of a milestone.
func touchMilestone(s *Service, r *request, milestone doc) {
	for _, issue := range s.world.where(r.repo, "issues", "milestone", str(milestone["number"])) {
		touchIssue(s, r, issue)
	}
}

func renderMilestone(s *Service, r *request, milestone doc) doc {
	body, count := maps.Clone(milestone), map[any]int{}
	for _, issue := range s.world.where(r.repo, "issues", "milestone", str(milestone["number"])) {
		count[issue["state"]]++
	}
	body["open_issues"], body["closed_issues"] = count["open"], count["closed"]
	return body
}

// tagRelease creates the tag of a release.
func tagRelease(_ *world, repo *repository, release doc) {
	tag := "tags/" + str(release["tag_name"])
	if g := repo.git; release["draft"] != true && g.refs[tag] == "" {
		g.refs[tag] = g.resolve(str(release["target_commitish"]))
	}
}

func renderRelease(s *Service, r *request, release doc) doc {
	body, id := maps.Clone(release), str(release["id"])
	path := r.repo.path() + "/releases/" + id
	body["assets"] = append([]doc{}, s.world.where(r.repo, "releases/assets", "release", id)...)
	body["url"], body["upload_url"] = r.base+path, r.on("uploads", r.base)+path+"/assets{?name,label}"
	body["reactions"] = doc{"total_count": len(s.keysOf(path+"/reactions", inRepo+"releases/{}/reactions/{}"))}
	return body
}

func touchRelease(_ *Service, r *request, release doc) {
	list, tag := r.repo.path()+"/releases", str(release["tag_name"])
	r.touch(list, list+"/latest", list+"/"+str(release["id"]), list+"/tags/"+escape(tag))
	if r.op.ID == "repos/create-release" { // it may create the tag
		r.touch(append(refTopics(r.repo, "tags/"+tag), r.repo.path()+"/tags", r.repo.path()+"/commits/"+escape(tag))...)
	}
}

func touchAsset(s *Service, r *request, asset doc) {
	path := r.repo.path() + "/releases/" + str(asset["release"])
	if release := s.world.find(path); release != nil {
		touchRelease(s, r, release)
	}
	r.touch(path + "/assets")
}

// latestRelease handles the routes of the latest release and of the release with a tag.
func latestRelease(s *Service, r *request) response {
	tag, byTag := r.params["tag"]
	for _, release := range slices.Backward(s.world.where(r.repo, "releases", "draft", "false")) {
		if byTag && release["tag_name"] == tag || !byTag && release["prerelease"] != true {
			return respond(renderRelease(s, r, release))
		}
	}
	return notFound()
}

func getAsset(s *Service, r *request) response {
	if strings.Contains(r.Header.Get("Accept"), "octet-stream") && s.exists(r.path, r.op.view) {
		return response{status: http.StatusFound, location: r.download()}
	}
	return s.generic(r)
}

// joinSuite adds a check run to the last suite of its commit. It creates the suite if there is none.
func joinSuite(w *world, repo *repository, run doc) {
	path := repo.path() + "/check-suites"
	for _, suite := range w.where(repo, "check-suites", "head_sha", str(run["head_sha"])) {
		run["suite"] = suite["id"]
	}
	if run["suite"] == nil {
		run["suite"] = w.add(repo, path, inRepo+"check-suites", doc{"head_sha": run["head_sha"]}, "", w.started)["id"]
	}
}

// touchCheck touches what shows a status, a check run or a suite of a commit.
func touchCheck(s *Service, r *request, fields doc) {
	if sha, ok := fields["sha"].(string); ok {
		s.touchCommit(r, sha, "/status", "/statuses")
		return
	}
	s.touchCommit(r, str(fields["head_sha"]), "/check-runs", "/check-suites")
	suite := r.repo.path() + "/check-suites/" + str(cmp.Or(fields["suite"], fields["id"]))
	r.touch(suite, suite+"/check-runs")
}

func combinedStatus(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.params["ref"])
	if sha == "" {
		return notFound()
	}
	latest, state := map[string]any{}, "pending"
	for _, status := range s.world.where(r.repo, "statuses", "sha", sha) {
		latest[str(status["context"])], state = status, str(status["state"])
	}
	list := renderAll(slices.Sorted(maps.Keys(latest)), func(context string) any { return latest[context] })
	url := r.base + r.repo.path()
	repository := doc{
		"full_name": r.repo.owner.login + "/" + r.repo.name, "url": url, "trees_url": url + "/git/trees{/sha}", "archive_url": url + "/{archive_format}{/ref}",
	}
	return respond(doc{"sha": sha, "state": state, "total_count": len(list), "statuses": list, "repository": repository})
}
