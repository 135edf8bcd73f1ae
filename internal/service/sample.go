package service

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
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
	content := x.body()
	if id == "repos/delete-file" {
		target += fmt.Sprintf("?message=Delete&sha=%v", content["sha"])
		content = nil
	}
	if strings.HasPrefix(op.Path, "/search/") {
		target += "?q=weir"
	}
	if content != nil && !isRead(op.Method) {
		body, _ = json.Marshal(content) // documents hold only JSON values
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
	var names []string
	for _, ref := range slices.Sorted(maps.Keys(x.repo.git.refs)) {
		if name, ok := strings.CutPrefix(ref, "heads/"); ok && name != mainBranch {
			names = append(names, name)
		}
	}
	return names
}

// issues returns the numbers of the issues with a property.
func (x *sampler) issues(has func(issue doc) bool) []string {
	var numbers []string
	for _, issue := range x.world.all(x.repo.path() + "/issues") {
		if has(issue) {
			numbers = append(numbers, str(issue["number"]))
		}
	}
	return numbers
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
	if value, ok := x.special(p.name); ok {
		return value
	}
	switch p.name {
	case "owner", "template_owner":
		return x.repo.owner.login
	case "repo", "template_repo":
		return x.repo.name
	case "org":
		return "acme"
	case "username", "target_user", "assignee":
		return user.login
	case "account_id", "user_id":
		return strconv.Itoa(user.id)
	case "team_id":
		return itoa(x.team().id)
	case "team_slug":
		if strings.HasPrefix(view, "/enterprises/") {
			return "name-1"
		}
		return x.team().slug
	case "configuration_id":
		return itoa(pick(x.random, x.world.configurations, nil).id)
	case "role_id":
		return itoa(pick(x.random, acme.roles, nil).id)
	case "invitation_id":
		return itoa(pick(x.random, acme.invitationsByState(true), &invitation{}).id)
	case "name":
		if strings.HasPrefix(view, "/gitignore/") {
			return "Go"
		}
	case "key":
		if view == "/codes_of_conduct" {
			return codesOfConduct[0].Key
		}
	case "enterprise":
		return "acme-corp"
	case "security_product":
		return "dependabot_alerts"
	case "enablement":
		return "enable_all"
	case "branch":
		return branch
	case "base":
		return mainBranch
	case "head":
		return branch
	case "basehead":
		if p.many {
			return mainBranch + ".." + branch
		}
		return mainBranch + "..." + branch
	case "ref":
		if strings.HasSuffix(view, "/matching-refs") {
			return "heads"
		}
		if strings.Contains(view, "/git/ref") {
			return "heads/" + branch
		}
		return pick(x.random, []string{branch, mainBranch, head}, head)
	case "commit_sha", "sha", "tree_sha":
		return head
	case "file_sha":
		return pick(x.random, slices.Sorted(maps.Keys(g.blobs)), "")
	case "tag_sha":
		return pick(x.random, x.repo.git.tags, nil).sha
	case "path":
		if x.op.Method == http.MethodPut && x.random.IntN(2) == 0 {
			return fmt.Sprintf("docs/new-%d.txt", x.random.IntN(20))
		}
		return pick(x.random, slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".md") }), "README.md")
	case "dir":
		return "docs"
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
	x.chosen = pick(x.random, x.world.accounts["acme"].teams, nil)
	return x.chosen
}

// special returns a value that an operation needs, such as the number of a pull request that can be merged.
func (x *sampler) special(name string) (string, bool) {
	root := x.repo.path()
	isPull := func(i doc) bool { return x.world.find(root+"/pulls/"+str(i["number"])) != nil }
	choose := func(has func(doc) bool) (string, bool) {
		numbers := x.issues(has)
		return pick(x.random, numbers, ""), len(numbers) > 0
	}
	if name == "review_id" {
		reviews := x.world.keys[root+"/pulls/"+x.values["pull_number"]+"/reviews"]
		return pick(x.random, reviews, ""), len(reviews) > 0
	}
	if name == "pull_number" && strings.Contains(x.op.Path, "/reviews/") {
		return choose(func(i doc) bool { return len(x.world.keys[root+"/pulls/"+str(i["number"])+"/reviews"]) > 0 })
	}
	switch x.op.ID + " " + name {
	case "issues/remove-label name":
		for _, label := range x.world.find(root + "/issues/" + x.values["issue_number"])["labels"].([]string) {
			return label, true
		}
	case "issues/remove-label issue_number":
		return choose(func(i doc) bool { return len(i["labels"].([]string)) > 0 })
	case "issues/get-parent issue_number":
		return choose(func(i doc) bool { return i["parent"] != 0 })
	case "issues/remove-sub-issue issue_number":
		return choose(func(i doc) bool { return len(i["children"].([]int)) > 0 })
	case "pulls/check-if-merged pull_number":
		return choose(func(i doc) bool {
			return isPull(i) && x.world.find(root + "/pulls/" + str(i["number"]))["merged"] == true
		})
	case "pulls/merge pull_number", "pulls/merge-async pull_number":
		return choose(func(i doc) bool {
			return isPull(i) && i["state"] == "open" && x.repo.git.refs["heads/"+str(x.world.find(root + "/pulls/" + str(i["number"]))["head"])] != ""
		})
	case "repos/get-release-by-tag tag":
		releases := slices.DeleteFunc(x.world.all(root+"/releases"), func(r doc) bool { return r["draft"] == true })
		if len(releases) > 0 {
			return str(pick(x.random, releases, nil)["tag_name"]), true
		}
	}
	return "", false
}

// body returns the body of the request.
func (x *sampler) body() doc {
	n, g := x.random.IntN(1_000_000), x.repo.git
	name := fmt.Sprintf("sample-%d", n)
	head := g.refs["heads/"+mainBranch]
	branch := pick(x.random, x.branches(), mainBranch)
	issue := func(has func(doc) bool) any {
		number := pick(x.random, x.issues(has), "0")
		if found := x.world.find(x.repo.path() + "/issues/" + number); found != nil {
			return found["id"]
		}
		return 0
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(name))
	switch x.op.ID {
	case "repos/create-or-update-file-contents", "repos/delete-file":
		body := doc{"message": "Change " + x.values["path"], "content": encoded}
		if sha, ok := g.files(head)[x.values["path"]]; ok {
			body["sha"] = sha
		}
		return body
	case "git/create-ref":
		return doc{"ref": "refs/heads/" + name, "sha": head}
	case "git/update-ref":
		return doc{"sha": pick(x.random, slices.Sorted(maps.Keys(g.commits)), head), "force": true}
	case "git/create-blob":
		return doc{"content": encoded, "encoding": "base64"}
	case "git/create-tree":
		return doc{"base_tree": head, "tree": []any{doc{"path": "docs/" + name, "mode": "100644", "type": "blob", "content": name}}}
	case "git/create-commit":
		return doc{"message": name, "tree": g.commits[head].tree, "parents": []any{head}}
	case "git/create-tag":
		return doc{"tag": name, "message": name, "object": x.repo.head(), "type": "commit"}
	case "orgs/create-invitation":
		return doc{"email": name + "@example.com"}
	case "migrations/start-for-org", "migrations/start-for-authenticated-user":
		return doc{"repositories": []any{"acme/widgets"}}
	case "repos/create-repo-ruleset":
		return doc{"name": name, "enforcement": "active", "rules": []any{}}
	case "repos/create-org-ruleset":
		all := doc{"include": []any{"~ALL"}}
		return doc{"name": name, "enforcement": "active", "rules": []any{}, "conditions": doc{"repository_name": all, "ref_name": all}}
	case "code-security/detach-configuration":
		return doc{"selected_repository_ids": []any{1001}}
	case "repos/merge":
		return doc{"base": mainBranch, "head": branch}
	case "repos/rename-branch":
		return doc{"new_name": name}
	case "pulls/create":
		return doc{"title": name, "head": branch, "base": mainBranch}
	case "pulls/create-review":
		return doc{"body": name, "event": "COMMENT"}
	case "issues/create":
		return doc{"title": name, "body": "A sample.", "labels": []any{"bug"}, "assignees": []any{"acme-owner"}, "milestone": 1}
	case "issues/update":
		return doc{"title": name, "state": pick(x.random, []string{"open", "closed"}, "")}
	case "issues/add-labels", "issues/set-labels":
		return doc{"labels": []any{pick(x.random, []string{"bug", "docs", "question"}, "")}}
	case "issues/add-assignees", "issues/remove-assignees":
		return doc{"assignees": []any{"acme-owner"}}
	case "issues/add-sub-issue":
		return doc{"sub_issue_id": issue(func(i doc) bool { return i["parent"] == 0 && str(i["number"]) != x.values["issue_number"] })}
	case "issues/remove-sub-issue":
		return doc{"sub_issue_id": issue(func(i doc) bool { return str(i["parent"]) == x.values["issue_number"] })}
	case "repos/create-commit-status":
		return doc{"state": pick(x.random, []string{"success", "failure", "pending"}, ""), "context": "ci"}
	case "checks/create", "checks/create-suite":
		return doc{"name": name, "head_sha": head}
	case "checks/update":
		return doc{"status": "completed", "conclusion": "success"}
	case "repos/create-release":
		return doc{"tag_name": name, "name": name}
	case "repos/update", "orgs/update", "users/update-authenticated", "repos/update-release", "pulls/update":
		return doc{"description": name, "body": name}
	case "repos/replace-all-topics":
		return doc{"names": []any{name}}
	case "issues/update-label":
		return doc{"description": name}
	}
	if x.op.Method == http.MethodDelete {
		return nil
	}
	return doc{"name": name, "title": name, "body": "A sample.", "description": name}
}
