package wholeapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// git is the Git data of a repository. Objects never change; refs do.
type git struct {
	refs    map[string]string // SHA by name, such as heads/main
	known   map[string]bool   // all refs that ever existed
	commits map[string]*commit
	trees   map[string]map[string]string // SHA of the content by path, of all levels
	blobs   map[string]string
	tags    map[string]doc
	// comments counts the comments on each commit.
	comments map[string]int
}

type commit struct {
	sha, tree, message, login string
	parents                   []string
	at                        time.Time
	number                    int // the order of creation
}

const mainBranch = "main"

func newGit(r *repository, now time.Time) *git {
	g := &git{refs: map[string]string{}, known: map[string]bool{}, commits: map[string]*commit{}, trees: map[string]map[string]string{}, blobs: map[string]string{}, tags: map[string]doc{}, comments: map[string]int{}}
	count := 3
	if len(r.name) < 8 && !strings.HasPrefix(r.name, "spare") {
		count = 35 // two pages
	}
	for n := range count {
		files := map[string]string{"docs/f-" + strconv.Itoa(n%20) + ".txt": fmt.Sprintf("%s %d", r.name, n), "README.md": "# " + r.name, "docs/README.md": "# Docs"}
		g.refs["heads/"+mainBranch] = g.commit(mainBranch, fmt.Sprintf("Commit %d", n+1), r.owner, now, files)
	}
	g.refs["tags/v1.0"] = g.refs["heads/"+mainBranch]
	for ref := range g.refs {
		g.known[ref] = true
	}
	return g
}

func shaOf(kind, text string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + text))
	return hex.EncodeToString(sum[:20])
}

// resolve returns the SHA of a commit with a name: a branch, a tag, a full ref name or a SHA.
func (g *git) resolve(name string) string {
	if name == "" || name == "HEAD" {
		name = mainBranch
	}
	name = strings.TrimPrefix(name, "refs/")
	for _, ref := range []string{"heads/" + name, "tags/" + name, name} {
		if sha := g.refs[ref]; sha != "" {
			return sha
		}
	}
	if g.commits[name] != nil {
		return name
	}
	return ""
}

// branchOf returns the branch that a name denotes, or "".
func (g *git) branchOf(name string) string {
	if name == "" || name == "HEAD" {
		return mainBranch
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "refs/"), "heads/")
	if g.known["heads/"+name] || g.commits[name] == nil {
		return name
	}
	return ""
}

// commit adds a commit with changed files to the commit with a name, and returns its SHA. An empty content deletes a
// file.
func (g *git) commit(onto, message, login string, now time.Time, changed map[string]string) string {
	var parents []string
	files := map[string]string{}
	if parent := g.resolve(onto); parent != "" {
		parents = []string{parent}
		files = maps.Clone(g.trees[g.commits[parent].tree])
	}
	for path, content := range changed {
		if content == "" {
			delete(files, path)
		} else {
			files[path] = g.blob(content)
		}
	}
	return g.add(g.tree(files), message, login, now, parents...)
}

func (g *git) blob(content string) string {
	sha := shaOf("blob", content)
	g.blobs[sha] = content
	return sha
}

func (g *git) tree(files map[string]string) string {
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(files)) {
		text.WriteString(path + " " + files[path] + "\n")
	}
	sha := shaOf("tree", text.String())
	g.trees[sha] = files
	return sha
}

func (g *git) add(tree, message, login string, now time.Time, parents ...string) string {
	sha := shaOf("commit", fmt.Sprint(tree, parents, message, login, len(g.commits)))
	g.commits[sha] = &commit{sha, tree, message, login, parents, now, len(g.commits)}
	return sha
}

// history returns the commits that are reachable from a commit, newest first.
func (g *git) history(sha string) []*commit {
	seen := map[string]bool{}
	var list []*commit
	for todo := []string{sha}; len(todo) > 0; {
		next := todo[0]
		todo = todo[1:]
		if c := g.commits[next]; c != nil && !seen[next] {
			seen[next] = true
			list = append(list, c)
			todo = append(todo, c.parents...)
		}
	}
	slices.SortFunc(list, func(a, b *commit) int { return b.number - a.number })
	return list
}

// changed returns the paths that differ between two commits.
func (g *git) changed(from, to string) []string {
	files := func(sha string) map[string]string {
		if c := g.commits[sha]; c != nil {
			return g.trees[c.tree]
		}
		return nil
	}
	before, after := files(from), files(to)
	all := maps.Clone(after)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, before)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(path string) bool { return before[path] == after[path] })
}

// move changes a ref, creates it, or deletes it if the SHA is empty. It touches all that shows the ref.
func (s *Service) move(r *request, ref, sha string) {
	g, root := r.repo.git, r.repo.path()
	from := g.refs[ref]
	if g.refs[ref] = sha; sha == "" {
		delete(g.refs, ref)
	}
	g.known[ref] = true
	r.repo.pushed = r.now
	r.touch(refTopic(r.repo, ref))
	s.touchRepo(r)
	for _, commit := range []string{from, sha} {
		r.touch(root + "/commits/" + commit + "/branches-where-head")
	}
	branch, isBranch := strings.CutPrefix(ref, "heads/")
	if !isBranch {
		name := escape(strings.TrimPrefix(ref, "tags/"))
		r.touch(root+"/tags", root+"/commits/"+name, root+"/commits/"+name+"/**")
		return
	}
	s.emit(r, "push", doc{"ref": "refs/" + ref, "before": from, "after": sha})
	at := " ref=" + branch
	r.touch(root+"/branches", root+"/branches/"+escape(branch), root+"/commits"+at, root+"/commits/"+escape(branch), root+"/commits/"+escape(branch)+"/**", root+"/readme"+at)
	for _, path := range g.changed(from, sha) {
		for p := path; p != ""; p = parentOf(p) {
			r.touch(root+"/contents/"+escape(p)+at, root+"/readme/"+escape(p)+at)
		}
	}
	for _, p := range s.world.all(root + "/pulls") {
		if p["head"] == branch {
			n := str(p["number"])
			r.touch(root+"/pulls/"+n+"/commits", root+"/pulls/"+n+"/files")
			s.touchIssue(r, n)
		}
	}
}

// refTopic returns the topic of a ref. Reads that depend on the ref show it.
func refTopic(repo *repository, ref string) string {
	return repo.path() + "/git/ref/" + escape(strings.TrimPrefix(ref, "refs/"))
}

// commitNames returns the SHA of a commit and the branches and tags that point to it.
func (g *git) commitNames(sha string) []string {
	names := []string{sha}
	for ref, at := range g.refs {
		if at == sha {
			names = append(names, strings.TrimPrefix(strings.TrimPrefix(ref, "heads/"), "tags/"))
		}
	}
	return names
}

// touchCommit touches what is shown with a commit: its status, its checks or its comments.
func (s *Service) touchCommit(r *request, sha string, parts ...string) {
	for _, name := range r.repo.git.commitNames(sha) {
		for _, part := range parts {
			r.touch(r.repo.path() + "/commits/" + escape(name) + part)
		}
	}
}

// topicsOf returns the topics that a read shows. Reads that the real API computes later show none.
func (s *Service) topicsOf(r *request) []string {
	if isDelayed(r.op) {
		return nil
	}
	path := r.qualify(r.path, r.op.view)
	if r.repo == nil {
		if filter, ok := myIssues[r.op.ID]; ok {
			if given := r.query.Get("filter"); given != "" {
				filter = given
			}
			return []string{path + " " + issueFilter(filter)}
		}
		return []string{path}
	}
	g, root := r.repo.git, r.repo.path()
	named := func(name string) string { return cmp.Or(g.branchOf(name), name) }
	// moves are the refs that a name may denote.
	moves := func(name string) []string {
		return []string{refTopic(r.repo, "heads/"+named(name)), refTopic(r.repo, "tags/"+named(name))}
	}
	const ofCommit = "/repos/{owner}/{repo}/commits/{+ref}"
	switch ref := r.params["ref"]; {
	case r.op.ID == "git/list-matching-refs":
		topics := []string{}
		for known := range g.known {
			if strings.HasPrefix(known, ref) {
				topics = append(topics, refTopic(r.repo, known))
			}
		}
		return topics
	case strings.HasPrefix(r.op.Path, ofCommit):
		return []string{root + "/commits/" + escape(named(ref)) + strings.TrimPrefix(r.op.Path, ofCommit)}
	case r.op.ID == "repos/list-commits":
		name := named(r.query.Get("sha"))
		return []string{root + "/commits ref=" + name, refTopic(r.repo, "tags/"+name)}
	case r.op.ID == "repos/get-content", r.op.ID == "repos/get-readme", r.op.ID == "repos/get-readme-in-directory":
		name := named(r.query.Get("ref"))
		return []string{r.path + " ref=" + name, refTopic(r.repo, "tags/"+name)}
	case r.op.ID == "git/get-tree":
		return append(moves(r.params["tree_sha"]), r.path)
	case strings.HasPrefix(r.op.Path, "/repos/{owner}/{repo}/compare/"):
		base, head := r.comparison()
		return slices.Concat(moves(base), moves(head), []string{r.path})
	}
	return []string{path}
}

// comparison returns the two names of a comparison.
func (r *request) comparison() (base, head string) {
	if basehead, ok := r.params["basehead"]; ok {
		base, head, _ = strings.Cut(basehead, "..")
		return base, strings.TrimPrefix(head, ".")
	}
	return r.params["base"], r.params["head"]
}

func (s *Service) renderCommit(r *request, c *commit) doc {
	root := r.base + r.repo.path()
	parents := []any{}
	for _, p := range c.parents {
		parents = append(parents, doc{"sha": p, "url": root + "/commits/" + p})
	}
	who := doc{"name": c.login, "date": stamp(c.at)}
	return doc{
		"sha": c.sha, "url": root + "/commits/" + c.sha, "parents": parents, "author": doc{"login": c.login},
		"commit": doc{"message": c.message, "author": who, "committer": who, "tree": doc{"sha": c.tree}, "comment_count": r.repo.git.comments[c.sha]},
	}
}

func (s *Service) renderCommits(r *request, commits []*commit) []any {
	list := []any{}
	for _, c := range commits {
		list = append(list, s.renderCommit(r, c))
	}
	return list
}

func listCommits(s *Service, r *request) response {
	sha := r.repo.git.resolve(r.query.Get("sha"))
	if sha == "" {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, list: s.renderCommits(r, r.repo.git.history(sha))}
}

func getCommit(s *Service, r *request) response {
	c := r.repo.git.commits[r.repo.git.resolve(r.params["ref"])]
	if c == nil {
		return *problem(http.StatusUnprocessableEntity, "No commit found for SHA: "+r.params["ref"])
	}
	return response{status: http.StatusOK, body: s.renderCommit(r, c), modified: c.at}
}

func compare(s *Service, r *request) response {
	g := r.repo.git
	base, head := r.comparison()
	from, to := g.resolve(base), g.resolve(head)
	if from == "" || to == "" {
		return *problem(http.StatusNotFound, "Not Found")
	}
	old := map[*commit]bool{}
	for _, c := range g.history(from) {
		old[c] = true
	}
	ahead := slices.DeleteFunc(g.history(to), func(c *commit) bool { return old[c] })
	files := []any{}
	for _, path := range g.changed(from, to) {
		files = append(files, doc{"filename": path})
	}
	status := map[bool]string{true: "identical", false: "ahead"}[len(ahead) == 0]
	return response{status: http.StatusOK, body: doc{
		"url": r.base + r.path, "status": status, "ahead_by": len(ahead), "total_commits": len(ahead), "commits": s.renderCommits(r, ahead), "files": files,
		"base_commit": s.renderCommit(r, g.commits[from]),
	}}
}

func (s *Service) renderBranch(r *request, name string) doc {
	protection := r.repo.path() + "/branches/" + escape(name) + "/protection"
	sha := r.repo.git.refs["heads/"+name]
	return doc{"name": name, "commit": doc{"sha": sha, "url": r.base + r.repo.path() + "/commits/" + sha}, "protected": s.world.find(protection) != nil}
}

func listBranches(s *Service, r *request) response {
	list := []any{}
	for _, ref := range slices.Sorted(maps.Keys(r.repo.git.refs)) {
		if name, isBranch := strings.CutPrefix(ref, "heads/"); isBranch {
			list = append(list, s.renderBranch(r, name))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func getBranch(s *Service, r *request) response {
	if r.repo.git.refs["heads/"+r.params["branch"]] == "" {
		return *problem(http.StatusNotFound, "Branch not found")
	}
	return response{status: http.StatusOK, body: s.renderBranch(r, r.params["branch"])}
}

func renameBranch(s *Service, r *request) response {
	from, to := r.params["branch"], r.text("new_name")
	sha := r.repo.git.refs["heads/"+from]
	if sha == "" || to == "" || from == mainBranch {
		return *problem(http.StatusUnprocessableEntity, "Validation Failed")
	}
	s.move(r, "heads/"+to, sha)
	s.move(r, "heads/"+from, "")
	return response{status: http.StatusCreated, body: s.renderBranch(r, to)}
}

func listTags(_ *Service, r *request) response {
	list := []any{}
	for _, ref := range slices.Sorted(maps.Keys(r.repo.git.refs)) {
		if name, isTag := strings.CutPrefix(ref, "tags/"); isTag {
			list = append(list, doc{"name": name, "commit": doc{"sha": r.repo.git.refs[ref]}})
		}
	}
	return response{status: http.StatusOK, list: list}
}

func renderRef(r *request, ref string) doc {
	return doc{"ref": "refs/" + ref, "url": r.base + r.repo.path() + "/git/refs/" + ref, "object": doc{"sha": r.repo.git.refs[ref], "type": "commit"}}
}

func getRef(_ *Service, r *request) response {
	if r.repo.git.refs[r.params["ref"]] == "" {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: renderRef(r, r.params["ref"])}
}

func listRefs(_ *Service, r *request) response {
	list := []any{}
	for _, ref := range slices.Sorted(maps.Keys(r.repo.git.refs)) {
		if strings.HasPrefix(ref, r.params["ref"]) {
			list = append(list, renderRef(r, ref))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func createRef(s *Service, r *request) response {
	ref, sha := strings.TrimPrefix(r.text("ref"), "refs/"), r.repo.git.resolve(r.text("sha"))
	if !strings.Contains(ref, "/") || sha == "" || r.repo.git.refs[ref] != "" {
		return *problem(http.StatusUnprocessableEntity, "Reference cannot be created")
	}
	s.move(r, ref, sha)
	return response{status: http.StatusCreated, body: renderRef(r, ref)}
}

func updateRef(s *Service, r *request) response {
	ref, sha := r.params["ref"], r.repo.git.resolve(r.text("sha"))
	if r.repo.git.refs[ref] == "" || sha == "" {
		return *problem(http.StatusUnprocessableEntity, "Reference does not exist")
	}
	s.move(r, ref, sha)
	return response{status: http.StatusOK, body: renderRef(r, ref)}
}

func deleteRef(s *Service, r *request) response {
	ref := r.params["ref"]
	if r.repo.git.refs[ref] == "" || ref == "heads/"+mainBranch {
		return *problem(http.StatusUnprocessableEntity, "Reference does not exist")
	}
	s.move(r, ref, "")
	return response{status: http.StatusNoContent}
}

func createBlob(_ *Service, r *request) response {
	sha := r.repo.git.blob(decodeContent(r.text("content"), r.text("encoding")))
	r.touch(r.repo.path() + "/git/blobs/" + sha)
	return response{status: http.StatusCreated, body: doc{"sha": sha, "url": r.base + r.repo.path() + "/git/blobs/" + sha}}
}

func decodeContent(text, encoding string) string {
	if raw, err := base64.StdEncoding.DecodeString(text); err == nil && encoding == "base64" {
		return string(raw)
	}
	return text
}

func getBlob(_ *Service, r *request) response {
	content, ok := r.repo.git.blobs[r.params["file_sha"]]
	if !ok {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: doc{"sha": r.params["file_sha"], "encoding": "base64", "size": len(content), "content": base64.StdEncoding.EncodeToString([]byte(content))}}
}

func createTree(_ *Service, r *request) response {
	g, files := r.repo.git, map[string]string{}
	if c := g.commits[g.resolve(r.text("base_tree"))]; c != nil {
		maps.Copy(files, g.trees[c.tree])
	}
	maps.Copy(files, g.trees[r.text("base_tree")])
	entries, _ := r.body["tree"].([]any)
	for _, entry := range entries {
		e, _ := entry.(doc)
		path, _ := e["path"].(string)
		content, _ := e["content"].(string)
		sha, _ := e["sha"].(string)
		if sha == "" {
			sha = g.blob(content)
		}
		files[path] = sha
	}
	sha := g.tree(files)
	r.touch(r.repo.path() + "/git/trees/" + sha)
	return response{status: http.StatusCreated, body: renderTree(r, sha)}
}

func renderTree(r *request, sha string) doc {
	entries, files := []any{}, r.repo.git.trees[sha]
	for _, path := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, doc{"path": path, "type": "blob", "mode": "100644", "sha": files[path]})
	}
	return doc{"sha": sha, "tree": entries, "truncated": false, "url": r.base + r.repo.path() + "/git/trees/" + sha}
}

func getTree(_ *Service, r *request) response {
	g, name := r.repo.git, r.params["tree_sha"]
	if c := g.commits[g.resolve(name)]; c != nil {
		name = c.tree
	}
	if _, ok := g.trees[name]; !ok {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: renderTree(r, name)}
}

func createCommit(_ *Service, r *request) response {
	g := r.repo.git
	if _, ok := g.trees[r.text("tree")]; !ok {
		return *problem(http.StatusUnprocessableEntity, "Tree SHA does not exist")
	}
	var parents []string
	given, _ := r.body["parents"].([]any)
	for _, p := range given {
		if sha := g.resolve(str(p)); sha != "" {
			parents = append(parents, sha)
		}
	}
	sha := g.add(r.text("tree"), r.text("message"), r.caller.login, r.now, parents...)
	r.touch(r.repo.path()+"/git/commits/"+sha, r.repo.path()+"/commits/"+sha)
	return response{status: http.StatusCreated, body: doc{"sha": sha, "message": r.text("message"), "tree": doc{"sha": r.text("tree")}}}
}

func getGitCommit(_ *Service, r *request) response {
	c := r.repo.git.commits[r.params["commit_sha"]]
	if c == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: doc{"sha": c.sha, "message": c.message, "tree": doc{"sha": c.tree}, "author": doc{"name": c.login, "date": stamp(c.at)}}}
}

func createTag(s *Service, r *request) response {
	sha := shaOf("tag", fmt.Sprint(r.body, s.world.nextID()))
	tag := doc{"sha": sha, "tag": r.text("tag"), "message": r.text("message"), "object": doc{"sha": r.text("object"), "type": "commit"}}
	r.repo.git.tags[sha] = tag
	r.touch(r.repo.path() + "/git/tags/" + sha)
	return response{status: http.StatusCreated, body: tag}
}

func getTag(_ *Service, r *request) response {
	tag := r.repo.git.tags[r.params["tag_sha"]]
	if tag == nil {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, body: tag}
}

func merge(s *Service, r *request) response {
	g := r.repo.git
	base, head := r.text("base"), g.resolve(r.text("head"))
	if g.refs["heads/"+base] == "" || head == "" {
		return *problem(http.StatusNotFound, "Base or head does not exist")
	}
	sha := g.mergeInto(base, head, "Merge "+r.text("head"), r.caller.login, r.now)
	if sha == "" {
		r.seq = 0
		return response{status: http.StatusNoContent}
	}
	s.move(r, "heads/"+base, sha)
	return response{status: http.StatusCreated, body: s.renderCommit(r, g.commits[sha])}
}

// mergeInto returns a merge commit of a branch and a head, or "" if the branch already contains the head. The files of
// the head win.
func (g *git) mergeInto(base, head, message, login string, now time.Time) string {
	onto := g.refs["heads/"+base]
	if slices.Contains(g.history(onto), g.commits[head]) {
		return ""
	}
	files := maps.Clone(g.trees[g.commits[onto].tree])
	maps.Copy(files, g.trees[g.commits[head].tree])
	return g.add(g.tree(files), message, login, now, onto, head)
}

func getContent(_ *Service, r *request) response {
	return contentAt(r, r.params["path"])
}

func getReadme(_ *Service, r *request) response {
	path := "README.md"
	if dir := r.params["dir"]; dir != "" {
		path = dir + "/README.md"
	}
	return contentAt(r, path)
}

func contentAt(r *request, path string) response {
	g := r.repo.git
	c := g.commits[g.resolve(r.query.Get("ref"))]
	if c == nil {
		return *problem(http.StatusNotFound, "No commit found for the ref "+r.query.Get("ref"))
	}
	files := g.trees[c.tree]
	if sha, ok := files[path]; ok {
		if strings.Contains(r.Header.Get("Accept"), ".raw") {
			return response{status: http.StatusOK, text: []byte(g.blobs[sha]), kind: "application/vnd.github.raw; charset=utf-8"}
		}
		return response{status: http.StatusOK, body: renderFile(r, path, sha)}
	}
	list, seen := []any{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, below := strings.CutPrefix(name, path+"/")
		first, _, isDir := strings.Cut(rest, "/")
		if below && isDir && !seen[first] {
			list = append(list, doc{"name": first, "path": path + "/" + first, "type": "dir"})
		} else if below && !isDir {
			list = append(list, doc{"name": first, "path": name, "type": "file", "sha": files[name]})
		}
		seen[first] = true
	}
	if len(list) == 0 {
		return *problem(http.StatusNotFound, "Not Found")
	}
	return response{status: http.StatusOK, list: list}
}

func renderFile(r *request, path, sha string) doc {
	content := r.repo.git.blobs[sha]
	return doc{
		"name": lastOf("/" + path), "path": path, "sha": sha, "size": len(content), "type": "file", "encoding": "base64",
		"content": base64.StdEncoding.EncodeToString([]byte(content)), "url": r.base + r.repo.path() + "/contents/" + path,
	}
}

// changeContent handles PUT and DELETE of a file: both create a commit.
func changeContent(s *Service, r *request) response {
	g, path := r.repo.git, r.params["path"]
	branch := g.branchOf(cmp.Or(r.text("branch"), r.query.Get("branch")))
	head := g.commits[g.refs["heads/"+branch]]
	if head == nil {
		return *problem(http.StatusNotFound, "Branch "+branch+" not found")
	}
	old, exists := g.trees[head.tree][path]
	content := decodeContent(r.text("content"), "base64")
	switch given := cmp.Or(r.text("sha"), r.query.Get("sha")); {
	case r.Method == http.MethodDelete && !exists:
		return *problem(http.StatusNotFound, "Not Found")
	case exists && given == "":
		return *problem(http.StatusUnprocessableEntity, `Invalid request. "sha" wasn't supplied.`)
	case exists && given != old:
		return *problem(http.StatusConflict, path+" does not match "+given)
	case r.Method == http.MethodDelete:
		content = ""
	case content == "":
		content = "\n" // an empty content would delete the file
	}
	sha := g.commit(branch, r.text("message"), r.caller.login, r.now, map[string]string{path: content})
	s.move(r, "heads/"+branch, sha)
	body := doc{"content": nil, "commit": s.renderCommit(r, g.commits[sha])}
	if r.Method == http.MethodPut {
		body["content"] = renderFile(r, path, g.trees[g.commits[sha].tree][path])
	}
	status := http.StatusOK
	if !exists {
		status = http.StatusCreated
	}
	return response{status: status, body: body}
}

// text returns a string of the body, or "".
func (r *request) text(name string) string {
	value, _ := r.body[name].(string)
	return value
}
