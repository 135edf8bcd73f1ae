package wholeapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// world is the state. Objects are stored by canonical path, such as /repos/acme/widgets/issues/3. Paths that depend on
// the caller begin with "/@login".
type world struct {
	started time.Time
	lastID  int
	users   []owner
	orgs    []owner
	teams   map[int][2]string // organization and slug by ID
	repos   []*repository
	kinds   map[string]kind
	objects map[string]*object
	keys    map[string][]string // the keys of created objects by the path of their collection, oldest first
	counts  map[string]int      // by the path of a collection, a space and what its objects belong to
}

// owner is a user or an organization.
type owner struct {
	id     int
	login  string
	member bool // of the organization acme
	org    bool
}

// repository is a repository with its own numbers of issues and its own Git data.
type repository struct {
	id      int
	owner   string
	name    string
	private bool
	gone    bool
	pushed  time.Time
	fields  doc // changed by PATCH
	issues  int // the last number of an issue or pull request
	git     *git
}

// object is a stored object. A deleted object remains as gone.
type object struct {
	fields doc
	gone   bool
}

func (r *repository) path() string { return "/repos/" + r.owner + "/" + r.name }

// Spare is the number of repositories acme/spare-N, which requests to delete a repository may name.
const spare = 20

func newWorld(now time.Time) *world {
	w := &world{
		started: now, lastID: 10_000, teams: map[int][2]string{}, objects: map[string]*object{}, keys: map[string][]string{}, counts: map[string]int{}, kinds: newKinds(),
		users: []owner{{1, "acme-owner", true, false}, {2, "acme-member", true, false}, {3, "outsider", false, false}, {4, "builder", true, false}},
		orgs:  []owner{{101, "acme", false, true}, {102, "acme-labs", false, true}},
	}
	w.addRepo("acme", "widgets", false, now)
	w.addRepo("acme", "secret", true, now)
	w.addRepo("acme-owner", "tools", false, now)
	for n := range spare {
		w.addRepo("acme", fmt.Sprintf("spare-%d", n), false, now)
	}
	for _, slug := range []string{"core", "docs"} {
		w.addTeam("acme", slug, doc{"name": slug, "privacy": "closed"})
	}
	for _, r := range w.repos[:3] {
		w.seedRepo(r, now)
	}
	return w
}

func (w *world) nextID() int {
	w.lastID++
	return w.lastID
}

// firstRepo is the ID of the first repository.
const firstRepo = 1001

// addRepo creates a repository.
func (w *world) addRepo(owner, name string, private bool, now time.Time) *repository {
	r := &repository{id: firstRepo + len(w.repos), owner: owner, name: name, private: private, pushed: now, fields: doc{}}
	commits := 1
	if name == "widgets" {
		commits = 35 // two pages
	}
	r.git = newGit(name, commits, now)
	w.repos = append(w.repos, r)
	return r
}

func (w *world) addTeam(org, slug string, fields doc) doc {
	id := w.nextID()
	w.teams[id] = [2]string{org, slug}
	fields["id"], fields["slug"] = id, slug
	w.create("/orgs/"+org+"/teams", slug, fields)
	return fields
}

// create stores an object in a collection.
func (w *world) create(collection, key string, fields doc) *object {
	o := &object{fields: fields}
	if !slices.Contains(w.keys[collection], key) {
		w.keys[collection] = append(w.keys[collection], key)
	}
	w.objects[itemPath(collection, key)] = o
	return o
}

// itemPath returns the path of an object in a collection. The lists of gists depend on the caller; gists do not.
func itemPath(collection, key string) string {
	if strings.HasPrefix(collection, "/@") && strings.HasSuffix(collection, "/gists") {
		collection = "/gists"
	}
	return collection + "/" + escape(key)
}

// find returns the fields of a stored object, or nil.
func (w *world) find(path string) doc {
	if o := w.objects[path]; o != nil && !o.gone {
		return o.fields
	}
	return nil
}

// all returns the objects of a collection, oldest first.
func (w *world) all(collection string) []doc {
	list := []doc{}
	for _, key := range w.keys[collection] {
		if fields := w.find(itemPath(collection, key)); fields != nil {
			list = append(list, fields)
		}
	}
	return list
}

// remove deletes an object and reports whether it existed.
func (w *world) remove(path string) bool {
	o := w.objects[path]
	if o == nil || o.gone {
		return false
	}
	o.gone = true
	return true
}

func escape(segment string) string { return strings.ReplaceAll(url.PathEscape(segment), "+", "%2B") }

// repoOf returns the repository of an issue.
func (w *world) repoOf(issue doc) *repository { return w.repos[issue["repo"].(int)-firstRepo] }

func (w *world) repo(owner, name string) *repository {
	for _, r := range slices.Backward(w.repos) { // a new repository may have the name of a deleted one
		if strings.EqualFold(r.owner, owner) && strings.EqualFold(r.name, name) {
			return r
		}
	}
	return nil
}

func (w *world) reposOf(owner string) []*repository {
	return slices.DeleteFunc(slices.Clone(w.repos), func(r *repository) bool { return r.gone || owner != "" && r.owner != owner })
}

// ownerOf returns the user or organization with a name or number.
func ownerOf(all []owner, name string) (owner, bool) {
	at := slices.IndexFunc(all, func(o owner) bool { return strings.EqualFold(o.login, name) || strconv.Itoa(o.id) == name })
	if at < 0 {
		return owner{}, false
	}
	return all[at], true
}

// byName replaces the numbers at the beginning of a path by names. Other paths are returned unchanged.
func (w *world) byName(path []string) []string {
	if len(path) < 2 || !isNumber(path[1]) {
		return path
	}
	id, _ := strconv.Atoi(path[1])
	switch path[0] {
	case "repositories":
		for _, r := range w.repos {
			if r.id == id {
				return append([]string{"repos", r.owner, r.name}, path[2:]...)
			}
		}
	case "organizations":
		org, ok := ownerOf(w.orgs, path[1])
		if ok && len(path) > 3 && path[2] == "team" {
			number, _ := strconv.Atoi(path[3])
			if team, known := w.teams[number]; known && team[0] == org.login {
				return append([]string{"orgs", team[0], "teams", team[1]}, path[4:]...)
			}
		} else if ok {
			return append([]string{"orgs", org.login}, path[2:]...)
		}
	case "user":
		if user, ok := ownerOf(w.users, path[1]); ok {
			return append([]string{"users", user.login}, path[2:]...)
		}
	}
	return path
}

// byNumber replaces the names at the beginning of a canonical path by numbers, as the real API does in Link.
func (w *world) byNumber(path string) string {
	part := strings.SplitN(path, "/", 5)
	switch {
	case len(part) > 3 && part[1] == "repos":
		if r := w.repo(part[2], part[3]); r != nil {
			return strings.Join(append([]string{"", "repositories", strconv.Itoa(r.id)}, part[4:]...), "/")
		}
	case len(part) > 2 && part[1] == "orgs":
		if org, ok := ownerOf(w.orgs, part[2]); ok {
			rest := strings.TrimPrefix(path, "/orgs/"+part[2])
			for id, team := range w.teams {
				if below, isTeam := strings.CutPrefix(rest+"/", "/teams/"+escape(team[1])+"/"); isTeam && team[0] == org.login {
					rest = strings.TrimSuffix("/team/"+strconv.Itoa(id)+"/"+below, "/")
				}
			}
			return "/organizations/" + strconv.Itoa(org.id) + rest
		}
	case len(part) > 2 && part[1] == "users":
		if user, ok := ownerOf(w.users, part[2]); ok {
			return "/user/" + strconv.Itoa(user.id) + strings.TrimPrefix(path, "/users/"+part[2])
		}
	}
	return path
}

// isMine reports whether the response to a view depends on the caller.
func isMine(view string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(view, "/"), "/")
	switch first {
	case "user", "issues", "notifications", "installation":
		return true
	}
	return view == "/gists" || view == "/gists/starred" || strings.HasSuffix(view, "/subscription") && strings.HasPrefix(view, "/repos/") ||
		strings.HasSuffix(view, "/notifications") && strings.HasPrefix(view, "/repos/") || strings.HasPrefix(view, "/gists/") && strings.HasSuffix(view, "/star") ||
		view == "/orgs/{}/issues"
}

// qualify adds the caller to a path whose response depends on the caller.
func (r *request) qualify(path, view string) string {
	if isMine(view) {
		return "/@" + r.caller.login + path
	}
	return path
}

// resolve sets the canonical path and the repository of a request. It reports whether the caller can see the
// repository, organization and users in the path.
func (s *Service) resolve(r *request) bool {
	w, visible := s.world, true
	values := maps.Clone(r.params)
	for _, names := range [][2]string{{"owner", "repo"}, {"template_owner", "template_repo"}} {
		if _, ok := values[names[0]]; !ok {
			continue
		}
		if r.repo = w.repo(values[names[0]], values[names[1]]); r.repo == nil {
			visible = false
			continue
		}
		values[names[0]], values[names[1]] = r.repo.owner, r.repo.name
		visible = visible && !r.repo.gone && (!r.repo.private || s.isMember(r.caller))
	}
	for name, all := range map[string][]owner{"org": w.orgs, "username": w.users, "account_id": w.users, "user_id": w.users} {
		if value, ok := values[name]; ok {
			known, found := ownerOf(all, value)
			if visible = visible && found; found {
				values[name] = known.login
			}
		}
	}
	path := r.op.Path
	if number, ok := values["team_id"]; ok && strings.HasPrefix(path, "/teams/") {
		id, _ := strconv.Atoi(number)
		team, known := w.teams[id]
		visible = visible && known
		path = "/orgs/{org}/teams/{team_slug}" + strings.TrimPrefix(path, "/teams/{team_id}")
		values["org"], values["team_slug"] = team[0], cmp.Or(team[1], number)
	}
	path = strings.Replace(path, "/organizations/{org}", "/orgs/{org}", 1)
	path = strings.Replace(path, "/user/{account_id}", "/users/{account_id}", 1)
	path = strings.Replace(path, "/user/{user_id}", "/users/{user_id}", 1)
	r.path = expand(path, values)
	return visible
}

// expand replaces the parameters of a template by escaped values.
func expand(template string, values map[string]string) string {
	return parameter.ReplaceAllStringFunc(template, func(p string) string { return escape(values[strings.Trim(p, "{+}")]) })
}

// isMember reports whether a caller can see the private repository of the organization acme.
func (s *Service) isMember(c caller) bool {
	user, ok := ownerOf(s.world.users, c.login)
	return c.kind == User && ok && user.member || c.kind == Installation && c.login == "acme"
}

// seedRepo creates the first issues, pull requests and other objects of a repository.
func (w *world) seedRepo(r *repository, now time.Time) {
	root, g := r.path(), r.git
	add := func(collection, view string, fields doc) doc {
		return w.add(r, root+"/"+collection, inRepo+view, fields, "acme-member", now)
	}
	for _, name := range []string{"bug", "docs", "question"} {
		add("labels", "labels", doc{"name": name})
	}
	for n := range 34 {
		i := w.addIssue(r, doc{"title": fmt.Sprintf("Issue %d", n+1), "labels": []any{"bug"}, "milestone": float64(1 + n%2)}, "acme-owner", now)
		add("issues/comments", "issues/comments", doc{"issue": str(i["number"]), "body": "A comment."})
		add("issues/events", "issues/events", doc{"issue": str(i["number"]), "event": "labeled"})
	}
	w.find(root + "/issues/1")["children"], w.find(root + "/issues/2")["parent"] = []int{2}, 1
	for n := range 7 {
		branch := fmt.Sprintf("topic-%d", n)
		g.refs["heads/"+branch] = g.change(mainBranch, "Change "+branch, "acme-owner", now, map[string]string{branch + ".txt": branch})
		g.known["heads/"+branch] = true
		number := str(w.addPull(r, doc{"title": "Pull " + branch, "head": branch, "base": mainBranch}, "acme-owner", now)["number"])
		add("pulls/"+number+"/reviews", "pulls/{}/reviews", doc{"body": "A review."})
		add("pulls/comments", "pulls/comments", doc{"pull": number, "body": "A comment.", "path": "README.md"})
		if n == 0 {
			changeIssue(w.find(root+"/issues/"+number), doc{"state": "closed"}, now)
			maps.Copy(w.find(root+"/pulls/"+number), doc{"merged": true, "merged_at": stamp(now)})
		}
	}
	head := g.refs["heads/"+mainBranch]
	for n := range 3 {
		add("milestones", "milestones", doc{"title": fmt.Sprintf("v%d", n+1)})
		release := add("releases", "releases", doc{"tag_name": fmt.Sprintf("v1.%d", n), "name": "A release"})
		add("releases/assets", "releases/assets", doc{"release": str(release["id"]), "name": "weir.tar.gz"})
		add("check-runs", "check-runs", doc{"name": "build", "head_sha": head, "status": "completed", "conclusion": "success"})
		add("statuses", "statuses", doc{"sha": head, "state": "success"})
		add("comments", "comments", doc{"commit": head, "body": "A comment."})
	}
	tag := shaOf("tag", "v1.0")
	g.tags[tag] = doc{"sha": tag, "tag": "v1.0", "object": doc{"sha": head, "type": "commit"}}
}

func str(v any) string { return fmt.Sprint(v) }
