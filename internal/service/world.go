package service

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// world is the state of the service. Service.mu guards it, except the tokens and the IDs and logins of accounts, which
// never change.
type world struct {
	// stored are the objects that no exact handler owns, by canonical path, such as /repos/acme/widgets/issues/3. Paths that
	// depend on the caller begin with "/@login". A deleted object remains as nil.
	stored  map[string]doc
	started time.Time
	lastID  int
	kinds   map[string]kind
	keys    map[string][]string // the keys of created objects by the path of their collection, oldest first
	of      map[string][]string // the keys by the path of a collection, a space and what its objects belong to

	byID []*account // by ascending ID

	apps map[string]int // IDs of the apps created from manifests, by code

	invitations int // number of invitations so far, which is the ID of the newest invitation
	lastRuleset int // highest ID of a ruleset
	lastTeam    int // number of teams so far

	tokens       map[string]caller
	accounts     map[string]*account // by login
	repositories []*repository

	configurations []*configuration // by ascending id; never empty
	migrations     []*migration     // by ascending id; never empty
}

// account is a user or an organization. Only organizations have members.
type account struct {
	id       int
	login    string
	name     string
	email    string
	members  map[string]*membership // by login; nil for a user
	rulesets []*ruleset

	// Only organizations use the following fields.
	description   string
	formerMembers map[string]*membership // removed members with their former roles, by login
	teams         []*team                // by ascending ID
	roles         []*role                // by ascending ID; nil if roles are not enabled
	invitations   []*invitation          // pending and failed, by ascending ID

	defaults []newRepositoryDefault // default configurations of new repositories

	// canEvaluate allows the enforcement "evaluate" of rulesets (Document A section 4.9).
	canEvaluate bool
}

type membership struct {
	user      *account
	admin     bool
	public    bool // visible to every caller
	twoFactor bool
	// securityManager allows the member to administer code security configurations.
	securityManager bool
}

type repository struct {
	id            int
	owner         *account
	name          string
	description   string
	language      string
	defaultBranch string
	private       bool
	created       time.Time
	pushed        time.Time
	subscriptions map[*account]*subscription
	rulesets      []*ruleset
	properties    map[string]string // custom properties, by name
	advisories    []advisory

	gone       bool // deleted
	fields     doc  // changed by PATCH
	lastNumber int  // of the issues and pull requests
	git        *git
	fill       func() // adds the seeded content on first use; nil without such content

	configuration *configuration // the attached code security configuration, or nil
	locked        bool           // locked by a migration, permanently
}

// filled returns the repository with its content. Every use of git and of stored objects needs it.
func (r *repository) filled() *repository {
	if fill := r.fill; fill != nil {
		r.fill = nil
		fill()
	}
	return r
}

func (r *repository) fullName() string { return r.owner.login + "/" + r.name }

func (r *repository) visibility() string {
	return map[bool]string{true: "private", false: "public"}[r.private]
}

// head returns the SHA of the default branch, or "" without commits.
func (r *repository) head() string { return r.filled().git.head() }

// history returns the commits of the default branch, oldest first.
func (r *repository) history() []*commit { return r.filled().git.mainLine() }

// paths returns the sorted paths of the default branch.
func (r *repository) paths() []string { return slices.Sorted(maps.Keys(r.git.files(r.head()))) }

// gitObjectName returns the Git object name of an object type and its content.
func gitObjectName(kind, content string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "%s %d\x00%s", kind, len(content), content))
	return hex.EncodeToString(sum[:])
}

// advisory is a published security advisory.
type advisory struct {
	id        string
	summary   string
	published time.Time
}

type subscription struct {
	subscribed, ignored bool
	created             time.Time
}

func itoa(n int) string { return strconv.Itoa(n) }

// timestamp formats a time in the format of the documents.
func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// first returns the first element that matches, or the zero value.
func first[T any](list []T, matches func(T) bool) (none T) {
	if at := slices.IndexFunc(list, matches); at >= 0 {
		return list[at]
	}
	return none
}

// installationSize returns the number of repositories and users of an installation on an organization (Document B
// section 8.1).
func (w *world) installationSize(login string) (repositories, users int) {
	for _, r := range w.repositories {
		if r.owner.login == login {
			repositories++
		}
	}
	return repositories, len(w.accounts[login].members)
}

func (r *repository) path() string { return "/repos/" + r.fullName() }

// spare is the number of repositories acme-labs/spare-N, which requests to delete a repository may name.
const spare = 20

// seedObjects adds the repositories that only requests outside the documents use.
func (w *world) seedObjects(now time.Time) {
	owner, labs := w.accounts["acme-owner"], w.accounts["acme-labs"]
	w.addRepo(owner, "tools", false, now).subscriptions[owner] = &subscription{ignored: true, created: now}
	for n := range spare {
		w.addRepo(labs, fmt.Sprintf("spare-%d", n), false, now)
	}
	for _, r := range w.repositories[:4] {
		for _, name := range []string{"bug", "docs", "enhancement", "question"} {
			w.add(r, r.path()+"/labels", inRepo+"labels", doc{"name": name}, "acme-owner", now)
		}
	}
	w.seedRepo(w.repositories[0], now)
}

func (w *world) nextID() int {
	w.lastID++
	return w.lastID
}

// firstRepo is the ID of the first repository.
const firstRepo = 1001

// newRepo creates a repository without commits.
func (w *world) newRepo(owner *account, name string, private bool, now time.Time) *repository {
	r := &repository{
		id: firstRepo + len(w.repositories), owner: owner, name: name, private: private, defaultBranch: mainBranch,
		created: now, pushed: now, subscriptions: map[*account]*subscription{}, fields: doc{}, git: newGit(),
	}
	w.repositories = append(w.repositories, r)
	return r
}

// addRepo creates a repository with a commit.
func (w *world) addRepo(owner *account, name string, private bool, now time.Time) *repository {
	r := w.newRepo(owner, name, private, now)
	content := map[string]string{"README.md": "# " + name, "docs/README.md": "# Docs", "docs/f-0.txt": name}
	r.git.grow(commit{tree: r.git.treeOf(content), message: "Commit 1", author: w.accounts["acme-owner"], at: now})
	return r
}

// create stores an object in a collection.
func (w *world) create(collection, key string, fields doc) {
	path := itemPath(collection, key)
	if _, known := w.stored[path]; !known {
		w.keys[collection] = append(w.keys[collection], key)
	}
	w.stored[path] = fields
}

// itemPath returns the path of an object in a collection. The lists of gists depend on the caller; gists do not.
func itemPath(collection, key string) string {
	if strings.HasPrefix(collection, "/@") && strings.HasSuffix(collection, "/gists") {
		collection = "/gists"
	}
	return collection + "/" + escape(key)
}

// find returns the fields of a stored object, or nil.
func (w *world) find(path string) doc { return w.stored[path] }

// isGone reports whether an object was deleted.
func (w *world) isGone(path string) bool {
	fields, known := w.stored[path]
	return known && fields == nil
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

// where returns the objects of a collection whose member has a value, oldest first.
func (w *world) where(repo *repository, collection, member, value string) (list []doc) {
	path := repo.filled().path() + "/" + collection
	keys := w.keys[path]
	if member != "" && w.kinds[collection].of == member {
		keys = w.of[path+" "+value]
	}
	for _, key := range keys {
		if fields := w.find(itemPath(path, key)); fields != nil && (member == "" || str(fields[member]) == value) {
			list = append(list, fields)
		}
	}
	return list
}

func escape(segment string) string { return strings.ReplaceAll(url.PathEscape(segment), "+", "%2B") }

// repoOf returns the repository of an issue.
func (w *world) repoOf(issue doc) *repository { return w.repositories[issue["repo"].(int)-firstRepo] }

func (w *world) repo(owner, name string) *repository {
	for _, r := range slices.Backward(w.repositories) { // a new repository may have the name of a deleted one
		if strings.EqualFold(r.owner.login, owner) && strings.EqualFold(r.name, name) {
			return r.filled()
		}
	}
	return nil
}

func (w *world) reposOf(owner string) []*repository {
	return slices.DeleteFunc(slices.Clone(w.repositories), func(r *repository) bool { return r.gone || r.owner.login != owner })
}

// accountNamed returns the organization or the user with a login or number, or nil.
func (w *world) accountNamed(isOrganization bool, name string) *account {
	return first(w.byID, func(a *account) bool {
		return (a.members != nil) == isOrganization && (a.login == strings.ToLower(name) || itoa(a.id) == name)
	})
}

// users returns all users by ID.
func (w *world) users() []*account {
	return slices.DeleteFunc(slices.Clone(w.byID), func(a *account) bool { return a.members != nil })
}

// prefixes returns the beginnings of the canonical paths by name and by number. Teams precede their organization, and a
// new repository precedes a deleted one with its name.
func (w *world) prefixes() (all [][2]string) {
	for _, a := range w.byID {
		named, numbered := "/users/"+a.login, "/user/"+itoa(a.id)
		if a.members != nil {
			named, numbered = "/orgs/"+a.login, "/organizations/"+itoa(a.id)
		}
		for _, t := range a.teams {
			all = append(all, [2]string{named + "/teams/" + escape(t.slug), numbered + "/team/" + itoa(t.id)})
		}
		all = append(all, [2]string{named, numbered})
	}
	for _, r := range slices.Backward(w.repositories) {
		all = append(all, [2]string{r.path(), "/repositories/" + itoa(r.id)})
	}
	return all
}

// renamed replaces the numbers at the beginning of a path by names, or the names of a canonical path by numbers, as the
// real API does in Link. Other paths are returned unchanged.
func (w *world) renamed(path string, toNumbers bool) string {
	from, to := 1, 0
	if toNumbers {
		from, to = 0, 1
	}
	for _, prefix := range w.prefixes() {
		if rest, ok := strings.CutPrefix(path, prefix[from]); ok && (rest == "" || rest[0] == '/') {
			return prefix[to] + rest
		}
	}
	return path
}

// isMine reports whether the response to a path depends on the caller.
func isMine(path string) bool { return anyCovers(views().Mine, path) }

// qualify adds the caller to a path whose response depends on the caller.
func (r *request) qualify(path, view string) string {
	if isMine(view) {
		return "/@" + r.caller.name() + path
	}
	return path
}

// resolve sets the canonical path, the repository and the organization of a request. hasTarget reports whether the
// caller can see the repository and the organization in the path, and isVisible whether it can see the users and teams,
// too.
func (s *Service) resolve(r *request) (hasTarget, isVisible bool) {
	w := s.world
	hasTarget, isVisible = true, true
	template, values := canonical(r.op.Path), maps.Clone(r.params)
	for _, names := range [][2]string{{"owner", "repo"}, {"template_owner", "template_repo"}} {
		if _, ok := values[names[0]]; !ok {
			continue
		}
		if r.repo = w.repo(values[names[0]], values[names[1]]); r.repo == nil {
			hasTarget = false
			continue
		}
		r.org = r.repo.owner
		values[names[0]], values[names[1]] = r.repo.owner.login, r.repo.name
		hasTarget = hasTarget && w.isVisible(r.repo, r.caller)
	}
	if value, ok := values["org"]; ok {
		if r.org = w.accountNamed(true, value); r.org == nil {
			hasTarget = false
		} else {
			values["org"] = r.org.login
		}
	}
	for _, name := range []string{"username", "account_id", "user_id"} {
		if value, ok := values[name]; ok {
			user := w.accountNamed(false, value)
			if isVisible = isVisible && user != nil; user != nil {
				values[name] = user.login
			}
		}
	}
	if strings.HasPrefix(r.op.view, "/orgs/{}/teams/{}") {
		if number, byID := values["team_id"]; byID {
			r.org, r.team = w.teamWithID(number)
		} else if r.org != nil {
			r.team = r.org.teamNamed(values["team_slug"])
		}
		if isVisible = isVisible && r.team != nil; r.team != nil {
			values["org"], values["team_slug"] = r.org.login, r.team.slug
		} else if r.params["team_id"] != "" { // the slug of a deleted team is unknown
			template = r.op.Path
		}
	}
	if number := cmp.Or(values["issue_number"], values["pull_number"]); number != "" && r.repo != nil {
		r.issue, r.pull = w.find(r.repo.path()+"/issues/"+escape(number)), w.find(r.repo.path()+"/pulls/"+escape(number))
		isVisible = isVisible && r.issue != nil && (values["pull_number"] == "" || r.pull != nil)
	}
	r.path = expand(template, values)
	return hasTarget, hasTarget && isVisible
}

// expand replaces the parameters of a template by escaped values.
func expand(template string, values map[string]string) string {
	return parameter.ReplaceAllStringFunc(template, func(p string) string { return escape(values[strings.Trim(p, "{+}")]) })
}

// seedRepo creates the first labels, milestones, releases, checks and comments of a repository.
func (w *world) seedRepo(r *repository, now time.Time) {
	root, g := r.path(), r.git
	add := func(collection string, fields doc) doc {
		return w.add(r, root+"/"+collection, inRepo+collection, fields, "acme-member", now)
	}
	for _, issue := range w.all(root + "/issues") {
		add("issues/events", doc{"issue": str(issue["number"]), "event": "labeled"})
	}
	for n := range 3 {
		add("milestones", doc{"title": fmt.Sprintf("v%d", n+1)})
		release := add("releases", doc{"tag_name": fmt.Sprintf("v1.%d", n), "name": "A release"})
		add("releases/assets", doc{"release": str(release["id"]), "name": "weir.tar.gz"})
		add("check-runs", doc{"name": "build", "head_sha": g.head(), "status": "completed", "conclusion": "success"})
		add("statuses", doc{"sha": g.head(), "state": "success"})
		add("comments", doc{"commit": g.head(), "body": "A comment."})
		add("pulls/comments", doc{"pull": "25", "body": "A comment.", "path": "README.md"})
		add("issues/comments", doc{"issue": "2", "body": "A comment."})
	}
	w.find(root + "/issues/1")["children"], w.find(root + "/issues/2")["parent"] = []int{2}, 1
	g.refs["tags/v1.0"] = g.head()
}

func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	}
	return fmt.Sprint(v)
}
