package service

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// git is the Git data of a repository. Objects never change; refs do.
type git struct {
	refs    map[string]string // SHA by name, such as heads/main
	commits map[string]*commit
	trees   map[string]map[string]string // SHA of the content by path, of all levels
	blobs   map[string]string
	tags    []*gitTag
	line    []*commit // the history of the default branch when it was last read, oldest first
}

type commit struct {
	sha, tree, message   string
	author               *account
	parents              []string
	at                   time.Time // in the author's time zone
	number               int       // the order of creation
	additions, deletions int
	merge                bool
}

func (c *commit) empty() bool { return c.additions == 0 && c.deletions == 0 }

const mainBranch = "main"

// newGit returns Git data without commits.
func newGit() *git {
	return &git{
		refs: map[string]string{}, commits: map[string]*commit{}, trees: map[string]map[string]string{}, blobs: map[string]string{},
	}
}

// head returns the SHA of the default branch, or "" without commits.
func (g *git) head() string { return g.refs["heads/"+mainBranch] }

// mainLine returns the history of the default branch, oldest first.
func (g *git) mainLine() []*commit {
	if n := len(g.line); g.head() == "" {
		g.line = nil
	} else if n == 0 || g.line[n-1].sha != g.head() {
		g.line = g.history(g.head())
		slices.Reverse(g.line)
	}
	return g.line
}

// shaOf derives 40 hexadecimal digits from values, in the form of a Git object name.
func shaOf(parts ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, parts...)) // fmt prints maps in the order of their keys
	return hex.EncodeToString(sum[:20])
}

func (g *git) blob(content string) string {
	sha := gitObjectName("blob", content)
	g.blobs[sha] = content
	return sha
}

func (g *git) tree(files map[string]string) string {
	sha := shaOf("tree", files)
	g.trees[sha] = files
	return sha
}

// treeOf returns the tree of files with their content.
func (g *git) treeOf(content map[string]string) string {
	files := map[string]string{}
	for path, text := range content {
		files[path] = g.blob(text)
	}
	return g.tree(files)
}

// add adds a commit and returns its SHA.
func (g *git) add(c commit) string {
	c.number, c.merge = len(g.commits), c.merge || len(c.parents) > 1
	if c.sha == "" {
		c.sha = shaOf("commit", []any{c.tree, c.parents, c.message, c.author.login, c.number})
	}
	g.commits[c.sha] = &c
	return c.sha
}

// grow adds a commit to the default branch.
func (g *git) grow(c commit) {
	if head := g.head(); head != "" {
		c.parents = []string{head}
	}
	g.refs["heads/"+mainBranch] = g.add(c)
}

// change adds a commit to the commit with a name and returns its SHA. An empty content deletes a file.
func (g *git) change(onto string, c commit, changed map[string]string) string {
	files := map[string]string{}
	if parent := g.commits[g.resolve(onto)]; parent != nil {
		c.parents, files = []string{parent.sha}, maps.Clone(g.trees[parent.tree])
	}
	for path, content := range changed {
		if files[path] = g.blob(content); content == "" {
			delete(files, path)
		}
	}
	c.tree, c.additions = g.tree(files), len(changed)
	return g.add(c)
}

// merge returns a merge commit of a branch and a head, or "" if the branch contains the head. The files of the head
// win.
func (g *git) merge(base, head string, c commit) string {
	onto := g.refs["heads/"+base]
	if slices.Contains(g.history(onto), g.commits[head]) {
		return ""
	}
	files := maps.Clone(g.trees[g.commits[onto].tree])
	maps.Copy(files, g.trees[g.commits[head].tree])
	c.tree, c.parents = g.tree(files), []string{onto, head}
	return g.add(c)
}

// resolve returns the SHA of the commit with a name: a branch, a tag, a full ref name or a SHA. It returns "" if there
// is none.
func (g *git) resolve(name string) string {
	if name == "" || name == "HEAD" {
		name = mainBranch
	}
	name = strings.TrimPrefix(name, "refs/")
	sha := cmp.Or(g.refs["heads/"+name], g.refs["tags/"+name], g.refs[name])
	if sha == "" && g.commits[name] != nil {
		return name
	}
	return sha
}

// short returns the name of a branch or tag without the beginning of a ref. Other names are returned unchanged.
func (g *git) short(name string) string {
	if name == "" || name == "HEAD" {
		return mainBranch
	}
	name = strings.TrimPrefix(name, "refs/")
	return strings.TrimPrefix(strings.TrimPrefix(name, "heads/"), "tags/")
}

// history returns the commits that are reachable from a commit, newest first.
func (g *git) history(sha string) []*commit {
	seen, list := map[string]bool{}, []*commit{}
	for todo := []string{sha}; len(todo) > 0; todo = todo[1:] {
		if c := g.commits[todo[0]]; c != nil && !seen[c.sha] {
			seen[c.sha] = true
			list, todo = append(list, c), append(todo, c.parents...)
		}
	}
	slices.SortFunc(list, func(a, b *commit) int { return b.number - a.number })
	return list
}

// ahead returns the commits of one history that another lacks.
func (g *git) ahead(from, to string) []*commit {
	if c := g.commits[to]; c != nil && slices.Equal(c.parents, []string{from}) {
		return []*commit{c} // without a walk over a long history
	}
	old := map[*commit]bool{}
	for _, c := range g.history(from) {
		old[c] = true
	}
	return slices.DeleteFunc(g.history(to), func(c *commit) bool { return old[c] })
}

// files returns the content of a commit.
func (g *git) files(sha string) map[string]string {
	if c := g.commits[sha]; c != nil {
		return g.trees[c.tree]
	}
	return nil
}

// changed returns the paths that differ between two commits.
func (g *git) changed(from, to string) []string {
	before, after, all := g.files(from), g.files(to), map[string]string{}
	maps.Copy(all, before)
	maps.Copy(all, after)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(path string) bool { return before[path] == after[path] })
}

// named returns the names of all refs with a prefix, without it.
func (g *git) named(prefix string) []string {
	var names []string
	for _, ref := range slices.Sorted(maps.Keys(g.refs)) {
		if name, ok := strings.CutPrefix(ref, prefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// move changes a ref, creates it, or deletes it if the SHA is empty. It touches all that shows the ref.
func (s *Service) move(r *request, ref, sha string) {
	g := r.repo.git
	from := g.refs[ref]
	if g.refs[ref] = sha; sha == "" {
		delete(g.refs, ref)
	}
	r.repo.pushed = r.now
	commits := g.ahead(cmp.Or(from, g.head()), sha)
	slices.Reverse(commits)
	push := &pushResult{
		before: cmp.Or(from, zeroSHA), after: cmp.Or(sha, zeroSHA), commits: commits, head: g.commits[sha],
		created: from == "", deleted: sha == "",
	}
	grows := len(commits) > 0 && slices.Contains(commits[0].parents, from)
	push.forced = !push.created && !push.deleted && !grows && len(g.ahead(sha, from)) > 0
	s.emit(r, &event{name: "push", ref: "refs/" + ref, push: push})
	if push.created {
		s.emit(r, &event{name: "create", ref: "refs/" + ref})
	} else if push.deleted {
		s.emit(r, &event{name: "delete", ref: "refs/" + ref, shown: []string{"ref", "ref_type", "pusher_type"}})
	}
	s.touchRef(r, ref, from, sha)
}

// touchRef touches all that shows a ref that moved.
func (s *Service) touchRef(r *request, ref, from, sha string) {
	g, root := r.repo.git, r.repo.path()
	s.touchRepo(r)
	name := g.short(ref)
	of := root + "/commits/" + escape(name)
	r.touch(refTopics(r.repo, ref)...)
	r.touch(of, of+"/**", root+"/commits/"+from+"/branches-where-head", root+"/commits/"+sha+"/branches-where-head")
	if !strings.HasPrefix(ref, "heads/") {
		r.touch(root + "/tags")
		return
	}
	at := " ref=" + name
	r.touch(root+"/branches", root+"/branches/"+escape(name), root+"/commits"+at, root+"/readme"+at)
	for _, path := range g.changed(from, sha) {
		for ; path != ""; path = parentOf(path) {
			r.touch(root+"/contents/"+escape(path)+at, root+"/readme/"+escape(path)+at)
		}
	}
	for _, pull := range s.world.where(r.repo, "pulls", "head", name) {
		path := root + "/pulls/" + str(pull["number"])
		r.touch(path+"/commits", path+"/files", root+"/commits/"+from+"/pulls")
		touchIssue(s, r, pull)
	}
}

// refTopic returns the topic of a ref. Reads that depend on the ref show it.
func refTopic(repo *repository, ref string) string {
	return repo.path() + "/git/ref/" + escape(strings.TrimPrefix(ref, "refs/"))
}

// refTopics returns what shows a ref: the topic of the ref, and those of the lists of refs with its beginnings.
func refTopics(repo *repository, ref string) []string {
	topics := []string{refTopic(repo, ref)}
	for n := range len(ref) {
		topics = append(topics, repo.path()+"/git/matching-refs/"+escape(ref[:n+1]))
	}
	return topics
}

// touchCommit records a change of parts of a commit, such as its statuses, under the SHA and under each ref of the
// commit.
func (s *Service) touchCommit(r *request, sha string, parts ...string) {
	names := []string{sha}
	for ref, at := range r.repo.git.refs {
		if at == sha {
			names = append(names, r.repo.git.short(ref))
		}
	}
	for _, name := range names {
		for _, part := range parts {
			r.touch(r.repo.path() + "/commits/" + escape(name) + part)
		}
	}
}

// gitTopics returns the topics of a read of Git data, whose content may depend on refs. It returns nil for other reads.
func gitTopics(r *request) []string {
	g, root := r.repo.git, r.repo.path()
	refs := func(name string) []string {
		return []string{refTopic(r.repo, "heads/"+g.short(name)), refTopic(r.repo, "tags/"+g.short(name))}
	}
	const ofCommit = "/repos/{owner}/{repo}/commits/{+ref}"
	switch {
	case strings.HasPrefix(r.op.Path, ofCommit):
		return []string{root + "/commits/" + escape(g.short(r.params["ref"])) + strings.TrimPrefix(r.op.Path, ofCommit)}
	case r.op.ID == "repos/list-commits", r.op.ID == "repos/get-content", strings.HasPrefix(r.op.ID, "repos/get-readme"):
		name := g.short(cmp.Or(r.query.Get("sha"), r.query.Get("ref")))
		return []string{r.path + " ref=" + name, refTopic(r.repo, "tags/"+name)}
	case r.op.ID == "git/get-tree":
		return append(refs(r.params["tree_sha"]), r.path)
	case strings.HasPrefix(r.op.Path, "/repos/{owner}/{repo}/compare/"):
		base, head := r.comparison()
		return slices.Concat(refs(base), refs(head), []string{r.path})
	}
	return nil
}

// comparison returns the two names of a comparison.
func (r *request) comparison() (base, head string) {
	if basehead, ok := r.params["basehead"]; ok {
		base, head, _ = strings.Cut(basehead, "..")
		return base, strings.TrimPrefix(head, ".")
	}
	return r.params["base"], r.params["head"]
}

// renderCommit returns a commit of a repository.
func renderCommit(r *request, repo *repository, c *commit) doc {
	root := r.base + repo.path()
	parents := renderAll(c.parents, func(sha string) doc { return doc{"sha": sha, "url": root + "/commits/" + sha} })
	url, user := root+"/commits/"+c.sha, userObject(r, c.author)
	author := doc{"name": c.author.name, "email": c.author.email, "date": timestamp(c.at)}
	return doc{
		"sha": c.sha, "node_id": "C_" + c.sha, "url": url, "html_url": r.base + "/" + repo.fullName() + "/commit/" + c.sha,
		"comments_url": url + "/comments", "parents": parents, "author": user, "committer": user,
		"commit": doc{
			"url": root + "/git/commits/" + c.sha, "message": c.message, "author": author, "committer": author,
			"tree": doc{"sha": c.tree, "url": root + "/git/trees/" + c.tree},
		},
	}
}

func listCommits(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.query.Get("sha"))
	if sha == "" {
		return notFound()
	}
	return s.listOfCommits(r, r.repo.git.history(sha))
}

func (s *Service) listOfCommits(r *request, commits []*commit) response {
	return listOf(commits, func(c *commit) doc { return renderCommit(r, r.repo, c) })
}

func getCommit(s *Service, r *request) response {
	c := r.repo.git.commits[r.repo.git.resolve(r.params["ref"])]
	if c == nil {
		return fail(http.StatusNotFound, "No commit found for SHA: "+r.params["ref"])
	}
	body := renderCommit(r, r.repo, c)
	body["commit"].(doc)["comment_count"] = len(s.world.where(r.repo, "comments", "commit", c.sha))
	return response{status: http.StatusOK, body: body, modified: c.at}
}

func compare(s *Service, r *request) response {
	g := r.repo.git
	base, head := r.comparison()
	from, to := g.resolve(base), g.resolve(head)
	if from == "" || to == "" {
		return notFound()
	}
	ahead := g.ahead(from, to)
	files := renderAll(g.changed(from, to), func(path string) doc { return doc{"filename": path} })
	commits := renderAll(ahead, func(c *commit) doc { return renderCommit(r, r.repo, c) })
	return response{status: http.StatusOK, body: doc{
		"url": r.base + r.path, "status": map[bool]string{true: "identical", false: "ahead"}[len(ahead) == 0], "ahead_by": len(ahead), "total_commits": len(ahead),
		"commits": commits, "files": files, "base_commit": renderCommit(r, r.repo, g.commits[from]),
	}}
}

func (s *Service) renderBranch(r *request, name string) doc {
	sha := r.repo.git.refs["heads/"+name]
	protected := s.world.find(r.repo.path()+"/branches/"+escape(name)+"/protection") != nil
	return doc{"name": name, "commit": doc{"sha": sha, "url": r.base + r.repo.path() + "/commits/" + sha}, "protected": protected}
}

// listBranches lists all branches, or those whose head is the commit in the path.
func listBranches(s *Service, r *request) response {
	sha, ofHead := r.params["commit_sha"]
	names := slices.DeleteFunc(r.repo.git.named("heads/"), func(name string) bool { return ofHead && r.repo.git.refs["heads/"+name] != sha })
	return listOf(names, func(name string) doc { return s.renderBranch(r, name) })
}

func getBranch(s *Service, r *request) response {
	if r.repo.git.refs["heads/"+r.params["branch"]] == "" {
		return fail(http.StatusNotFound, "Branch not found")
	}
	return respond(s.renderBranch(r, r.params["branch"]))
}

func renameBranch(s *Service, r *request) response {
	from, to := r.params["branch"], r.text("new_name")
	sha := r.repo.git.refs["heads/"+from]
	if sha == "" || to == "" || from == mainBranch {
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	s.move(r, "heads/"+to, sha)
	s.move(r, "heads/"+from, "")
	return response{status: http.StatusCreated, body: s.renderBranch(r, to)}
}

func pullsOfCommit(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.params["commit_sha"])
	pulls := slices.DeleteFunc(s.world.where(r.repo, "pulls", "", ""), func(pull doc) bool { return r.repo.git.resolve(str(pull["head"])) != sha })
	return listOf(pulls, func(pull doc) doc { return renderPull(s, r, pull) })
}

func renderRef(r *request, ref string) doc {
	return doc{"ref": "refs/" + ref, "url": r.base + r.repo.path() + "/git/refs/" + ref, "object": doc{"sha": r.repo.git.refs[ref], "type": "commit"}}
}

func getRef(_ *Service, r *request) response {
	if r.repo.git.refs[r.params["ref"]] == "" {
		return notFound()
	}
	return respond(renderRef(r, r.params["ref"]))
}

func listRefs(_ *Service, r *request) response {
	prefix := r.params["ref"]
	return listOf(r.repo.git.named(prefix), func(rest string) doc { return renderRef(r, prefix+rest) })
}

// changeRef creates, changes or deletes a ref.
func changeRef(s *Service, r *request) response {
	ref := cmp.Or(r.params["ref"], strings.TrimPrefix(r.text("ref"), "refs/"))
	exists, sha := r.repo.git.refs[ref] != "", r.repo.git.resolve(r.text("sha"))
	if r.Method == http.MethodDelete {
		sha = ""
	} else if sha == "" {
		return fail(http.StatusUnprocessableEntity, "Object does not exist")
	}
	if creates := r.Method == http.MethodPost; creates == exists || !strings.Contains(ref, "/") || sha == "" && ref == "heads/"+mainBranch {
		return fail(http.StatusUnprocessableEntity, "Reference already exists, does not exist or cannot be deleted")
	}
	s.move(r, ref, sha)
	return response{status: r.op.created(), body: renderRef(r, ref)}
}

// actor returns the user or the account of a request.
func (s *Service) actor(r *request) *account {
	return cmp.Or(s.world.user(r.caller), s.world.accounts[r.caller.name()], s.world.accounts["acme"])
}

// commitBy returns a new commit by the user or the account of a request.
func (s *Service) commitBy(r *request, message string) commit {
	return commit{message: message, author: s.actor(r), at: r.now}
}

func mergeBranch(s *Service, r *request) response {
	g, base, head := r.repo.git, r.text("base"), r.repo.git.resolve(r.text("head"))
	if g.refs["heads/"+base] == "" || head == "" {
		return fail(http.StatusNotFound, "Base or head does not exist")
	}
	sha := g.merge(base, head, s.commitBy(r, "Merge "+r.text("head")))
	if sha == "" {
		r.seq = 0
		return response{status: http.StatusNoContent}
	}
	s.move(r, "heads/"+base, sha)
	return response{status: http.StatusCreated, body: renderCommit(r, r.repo, g.commits[sha])}
}

// getObject returns a blob, tree or commit.
func getObject(_ *Service, r *request) response {
	g := r.repo.git
	name, isTree := r.params["tree_sha"]
	if c := g.commits[g.resolve(name)]; isTree && c != nil {
		name = c.tree
	}
	name = cmp.Or(name, r.params["file_sha"], r.params["commit_sha"])
	if body := g.object(name); body != nil {
		return respond(body)
	}
	return notFound()
}

// object returns the object with a SHA, or nil.
func (g *git) object(sha string) doc {
	if content, ok := g.blobs[sha]; ok {
		return doc{"sha": sha, "encoding": "base64", "size": len(content), "content": encoded(content)}
	}
	if c, ok := g.commits[sha]; ok {
		return doc{"sha": sha, "message": c.message, "tree": doc{"sha": c.tree}, "author": doc{"name": c.author.name, "date": timestamp(c.at)}}
	}
	if files, ok := g.trees[sha]; ok {
		entries := renderAll(slices.Sorted(maps.Keys(files)), func(path string) doc {
			return doc{"path": path, "type": "blob", "mode": "100644", "sha": files[path]}
		})
		return doc{"sha": sha, "tree": entries, "truncated": false}
	}
	return nil
}

// createObject creates a blob, tree or commit.
func createObject(s *Service, r *request) response {
	g, sha := r.repo.git, ""
	switch r.op.ID {
	case "git/create-blob":
		sha = g.blob(decoded(r.text("content"), r.text("encoding")))
	case "git/create-tree":
		files := map[string]string{}
		maps.Copy(files, g.files(g.resolve(r.text("base_tree"))))
		maps.Copy(files, g.trees[r.text("base_tree")])
		entries, _ := r.body["tree"].([]any)
		for _, entry := range entries {
			e, _ := entry.(doc)
			files[str(e["path"])] = cmp.Or(textOf(e["sha"]), g.blob(textOf(e["content"])))
		}
		sha = g.tree(files)
	default:
		if g.trees[r.text("tree")] == nil {
			return fail(http.StatusUnprocessableEntity, "Tree SHA does not exist")
		}
		var parents []string
		given, _ := r.body["parents"].([]any)
		for _, p := range given {
			parents = append(parents, g.resolve(str(p)))
		}
		c := s.commitBy(r, r.text("message"))
		c.tree, c.parents = r.text("tree"), parents
		sha = g.add(c)
		r.touch(r.repo.path() + "/commits/" + sha)
	}
	r.touch(r.path + "/" + sha)
	return response{status: http.StatusCreated, body: g.object(sha), location: r.base + r.path + "/" + sha}
}

func encoded(content string) string { return base64.StdEncoding.EncodeToString([]byte(content)) }

func decoded(text, encoding string) string {
	if raw, err := base64.StdEncoding.DecodeString(text); err == nil && encoding == "base64" {
		return string(raw)
	}
	return text
}

// getContent returns a file or a directory, or the README of a directory.
func getContent(_ *Service, r *request) response {
	g, path := r.repo.git, r.params["path"]
	if path == "" {
		path = strings.TrimPrefix(r.params["dir"]+"/README.md", "/")
	}
	files, list, seen := g.files(g.resolve(r.query.Get("ref"))), []any{}, map[string]bool{}
	if sha, ok := files[path]; ok {
		if strings.Contains(r.Header.Get("Accept"), ".raw") {
			return response{status: http.StatusOK, text: []byte(g.blobs[sha]), kind: "application/vnd.github.raw; charset=utf-8"}
		}
		return respond(renderFile(r, path, sha))
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, isBelow := strings.CutPrefix(name, path+"/")
		first, _, isDir := strings.Cut(rest, "/")
		if isBelow && !seen[first] {
			seen[first] = true
			list = append(list, doc{"name": first, "path": path + "/" + first, "type": map[bool]string{true: "dir", false: "file"}[isDir], "sha": shaOf("entry", name+files[name])})
		}
	}
	if len(list) == 0 {
		return notFound()
	}
	return listOf(list, func(entry any) any { return entry })
}

func renderFile(r *request, path, sha string) doc {
	content := r.repo.git.blobs[sha]
	return doc{
		"name": lastOf("/" + path), "path": path, "sha": sha, "size": len(content), "type": "file", "encoding": "base64",
		"content": encoded(content), "url": r.base + r.repo.path() + "/contents/" + path,
		"download_url": r.on("raw", r.base+"/raw") + "/" + r.repo.fullName() + "/" + cmp.Or(r.query.Get("ref"), mainBranch) + "/" + path,
	}
}

// changeContent handles PUT and DELETE of a file: both create a commit.
func changeContent(s *Service, r *request) response {
	g, path, deletes := r.repo.git, r.params["path"], r.Method == http.MethodDelete
	branch := g.short(cmp.Or(r.text("branch"), r.query.Get("branch")))
	head := g.refs["heads/"+branch]
	old, exists := g.files(head)[path]
	content := cmp.Or(decoded(r.text("content"), "base64"), "\n") // an empty content would delete the file
	switch given := cmp.Or(r.text("sha"), r.query.Get("sha")); {
	case head == "" || deletes && !exists:
		return notFound()
	case exists && given == "":
		return fail(http.StatusUnprocessableEntity, `Invalid request. "sha" wasn't supplied.`)
	case exists && given != old:
		return fail(http.StatusConflict, path+" does not match "+given)
	case deletes:
		content = ""
	}
	sha := g.change(branch, s.commitBy(r, r.text("message")), map[string]string{path: content})
	s.move(r, "heads/"+branch, sha)
	body := doc{"content": nil, "commit": renderCommit(r, r.repo, g.commits[sha])}
	if !deletes {
		body["content"] = renderFile(r, path, g.files(sha)[path])
	}
	return response{status: r.op.putStatus(exists), body: body}
}

// text returns a string of the body, or "".
func (r *request) text(name string) string { return textOf(r.body[name]) }
