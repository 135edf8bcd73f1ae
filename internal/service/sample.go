package service

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// Sample returns a random request for an operation that the current state can answer: method, escaped path with query,
// and body. A sample never names the private repository or a deleted object.
func (s *Service) Sample(id string, random *rand.Rand) (method, target string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op := s.router.byID[id]
	x := &sampler{Service: s, op: op, random: random, values: map[string]string{}}
	x.repo = s.world.repo("acme", "widgets")
	if id == "repos/delete" {
		x.repo = pick(random, slices.DeleteFunc(s.world.reposOf("acme-labs"), func(r *repository) bool { return !strings.HasPrefix(r.name, "spare-") }), x.repo)
	}
	if strings.HasSuffix(op.view, "/subscription") {
		x.repo = s.world.repo("acme-owner", "tools")
	}
	target = x.path()
	if op.ID == "repos/delete-file" {
		target += "?message=Delete&sha=" + x.repo.git.files(x.repo.head())[x.values["path"]]
	}
	if strings.HasPrefix(op.Path, "/search/") {
		target += "?q=weir"
	}
	if !isRead(op.Method) {
		body = []byte(x.body())
	}
	return op.Method, target, body
}

// sampler makes up one request.
type sampler struct {
	*Service
	op     *Operation
	random *rand.Rand
	repo   *repository
	values map[string]string
	chosen *team
}

// pick returns a random element, or a default if there is none.
func pick[T any](random *rand.Rand, from []T, or T) T {
	if len(from) == 0 {
		return or
	}
	return from[random.IntN(len(from))]
}

// path returns the path of the request. It chooses each parameter from the objects that exist below the path before it.
func (x *sampler) path() string {
	canonical, view, path := "", "", ""
	for _, p := range x.op.pattern {
		value := p.text
		if p.name != "" {
			value = x.parameter(p, canonical, view)
			x.values[p.name] = value
		}
		if p.head != "" {
			x.values[p.head] = x.parameter(segment{name: p.head}, canonical, view)
			value += "..." + x.values[p.head]
		}
		if p.text == "" {
			view += "/{}"
		} else {
			view += "/" + value
		}
		canonical += "/" + escape(value)
		if p.many {
			path += "/" + strings.ReplaceAll(escape(value), "%2F", "/")
		} else {
			path += "/" + escape(value)
		}
	}
	return path
}

func (x *sampler) branches() []string {
	return slices.DeleteFunc(x.repo.git.named("heads/"), func(name string) bool { return name == mainBranch })
}

// sampleValues are the values of parameters with one value, everywhere or below a view.
var sampleValues = map[string]string{
	"/enterprises/{}/enterprise-roles/teams/team_slug": "name-1", "/gitignore/templates/name": "Go", "/repos/{}/{}/git/matching-refs/ref": "heads",
	"/codes_of_conduct/key": "contributor_covenant", "org": "acme", "enterprise": "acme-corp", "security_product": "dependabot_alerts", "enablement": "enable_all", "base": mainBranch, "dir": "docs",
}

// parameter returns a value for a parameter below a path.
func (x *sampler) parameter(p segment, canonical, view string) string {
	g := x.repo.git
	head := g.refs["heads/"+mainBranch]
	branch := pick(x.random, x.branches(), mainBranch)
	acme := x.world.accounts["acme"]
	users := x.world.users()[:5]
	if (strings.HasPrefix(view, "/orgs/{}/") || strings.HasPrefix(view, "/teams/{}/")) && !strings.Contains(view, "outside") {
		users = x.members(strings.HasSuffix(view, "/public_members"))
	}
	user := pick(x.random, users, acme)
	files := slices.Sorted(maps.Keys(g.files(head)))
	if value := cmp.Or(sampleValues[view+"/"+p.name], sampleValues[p.name], x.special(p.name)); value != "" {
		return value
	}
	sets := acme.rulesets
	if strings.HasPrefix(view, "/repos/") {
		sets = x.repo.rulesets
	}
	value := map[string]string{
		"owner": x.repo.owner.login, "template_owner": x.repo.owner.login, "repo": x.repo.name, "template_repo": x.repo.name,
		"username": user.login, "target_user": user.login, "assignee": user.login,
		"account_id": itoa(user.id), "user_id": itoa(user.id),
		"branch": branch, "head": branch, "commit_sha": head, "sha": head, "tree_sha": head,
		"tag_sha":          pick(x.random, g.tags, &gitTag{}).sha,
		"configuration_id": itoa(pick(x.random, x.world.configurations, nil).id),
		"role_id":          itoa(pick(x.random, acme.roles, &role{}).id),
		"ruleset_id":       itoa(pick(x.random, sets, &ruleset{}).id),
		"invitation_id":    itoa(pick(x.random, acme.invitationsByState(true), &invitation{}).id),
	}[p.name]
	if value != "" {
		return value
	}
	switch p.name {
	case "team_id":
		return itoa(x.team().id)
	case "team_slug":
		return x.team().slug
	case "basehead":
		if p.many {
			return mainBranch + ".." + branch
		}
		return mainBranch + "..." + branch
	case "ref":
		if strings.Contains(view, "/git/ref") {
			return "heads/" + branch
		}
		return pick(x.random, []string{branch, mainBranch, head}, head)
	case "file_sha":
		return pick(x.random, slices.Sorted(maps.Keys(g.blobs)), "")
	case "path":
		if x.op.Method == http.MethodPut && x.random.IntN(2) == 0 {
			return fmt.Sprintf("docs/new-%d.txt", x.random.IntN(20))
		}
		return pick(x.random, slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".md") }), "README.md")
	}
	itemView := view + "/{}"
	_, isItem := x.router.items[itemView]
	_, isKind := x.world.kindOf(itemView)
	if isMine(view) {
		canonical = "/@acme-owner" + canonical
	}
	if isItem || isKind {
		if keys := x.keysOf(canonical, itemView); len(keys) > 0 {
			return pick(x.random, keys, "")
		}
	}
	if strings.HasSuffix(p.name, "_id") || strings.HasSuffix(p.name, "_number") {
		return "1"
	}
	return "name-1"
}

// members returns the members of acme that can be named without changing who may see its repositories.
func (x *sampler) members(public bool) (users []*account) {
	acme := x.world.accounts["acme"]
	for _, login := range sortedMembers(acme) {
		if m := acme.members[login]; (!public || m.public) && (x.chosen == nil || x.chosen.hasMember(acme, login)) {
			users = append(users, m.user)
		}
	}
	return users
}

// team chooses a team of acme. A user below it in the path is one of its members.
func (x *sampler) team() *team {
	x.chosen = pick(x.random, x.world.accounts["acme"].teams, &team{slug: "none"})
	return x.chosen
}

// needs are the properties of the issue, or of the pull request, that an operation needs.
var needs = map[string]func(x *sampler, issue, pull doc) bool{
	"issues/remove-label":     func(_ *sampler, issue, _ doc) bool { return len(issue["labels"].([]string)) > 0 },
	"issues/get-parent":       func(_ *sampler, issue, _ doc) bool { return issue["parent"] != 0 },
	"issues/remove-sub-issue": func(_ *sampler, issue, _ doc) bool { return len(issue["children"].([]int)) > 0 },
	"pulls/check-if-merged":   func(_ *sampler, _, pull doc) bool { return pull["merged"] == true },
	"pulls/merge":             canMerge, "pulls/merge-async": canMerge,
}

func canMerge(x *sampler, issue, pull doc) bool {
	return pull != nil && issue["state"] == "open" && x.repo.git.refs["heads/"+str(pull["head"])] != ""
}

// special returns a value that an operation needs, such as the number of a pull request that can be merged, or "".
func (x *sampler) special(name string) string {
	root, need := x.repo.path(), needs[x.op.ID]
	reviews := func(pull string) []string { return x.world.keys[root+"/pulls/"+pull+"/reviews"] }
	switch ofReview := strings.Contains(x.op.Path, "/reviews/"); {
	case name == "review_id":
		return pick(x.random, reviews(x.values["pull_number"]), "")
	case name == "name" && x.op.ID == "issues/remove-label":
		labels, _ := x.world.find(root + "/issues/" + x.values["issue_number"])["labels"].([]string)
		return pick(x.random, labels, "")
	case name == "tag" && x.op.ID == "repos/get-release-by-tag":
		return textOf(pick(x.random, x.world.where(x.repo, "releases", "draft", "false"), nil)["tag_name"])
	case (name == "issue_number" || name == "pull_number") && (need != nil || ofReview):
		var numbers []string
		for _, issue := range x.world.where(x.repo, "issues", "", "") {
			number := str(issue["number"])
			if _, pull := x.world.numbered(x.repo, issue["number"].(int)); need != nil && need(x, issue, pull) || ofReview && len(reviews(number)) > 0 {
				numbers = append(numbers, number)
			}
		}
		return pick(x.random, numbers, "")
	}
	return ""
}

// body returns the body of the request, or "".
func (x *sampler) body() string {
	g, text, issues := x.repo.git, `{"name":"$name","title":"$name","body":"A sample.","description":"$name"}`, x.world.all(x.repo.path()+"/issues")
	if x.op.Method == http.MethodDelete {
		text = ""
	}
	for _, row := range readTable("samples.tsv") {
		if row[0] == x.op.ID {
			text = row[1]
		}
	}
	// issue returns the ID of an issue of a parent, or 0.
	issue := func(parent string) string {
		of := slices.DeleteFunc(slices.Clone(issues), func(i doc) bool { return str(i["parent"]) != parent || str(i["number"]) == x.values["issue_number"] })
		return str(pick(x.random, of, doc{"id": 0})["id"])
	}
	name := fmt.Sprintf("sample-%d", x.random.IntN(1_000_000))
	commits := slices.Sorted(maps.Keys(g.commits))
	return strings.NewReplacer(
		"$name", name, "$encoded", encoded(name), "$head", g.head(), "$commit", pick(x.random, commits, ""), "$tree", g.commits[g.head()].tree,
		"$path", x.values["path"], "$blob", g.files(g.head())[x.values["path"]], "$branch", pick(x.random, x.branches(), mainBranch),
		"$state", pick(x.random, []string{"open", "closed"}, ""), "$label", pick(x.random, []string{"bug", "docs", "question"}, ""),
		"$result", pick(x.random, []string{"success", "failure", "pending"}, ""), "$orphan", issue("0"), "$child", issue(x.values["issue_number"]),
	).Replace(text)
}
