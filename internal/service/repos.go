package service

import (
	"maps"
	"net/http"
	"strings"
	"time"
)

// tableHandlers are the operations of the table that are neither documented nor generic, by ID.
var tableHandlers = map[string]handler{
	"repos/get": getRepo, "repos/update": updateRepo, "repos/delete": deleteRepo, "repos/list-for-org": listRepos, "repos/list-for-user": listRepos,
	"repos/list-for-authenticated-user": listRepos, "apps/list-repos-accessible-to-installation": listRepos, "repos/create-in-org": createRepo,
	"repos/create-for-authenticated-user": createRepo, "repos/create-using-template": createRepo, "repos/replace-all-topics": replaceTopics,
	"repos/get-all-topics": getTopics, "orgs/get": getOwner, "users/get-by-username": getOwner, "users/get-by-id": getOwner,
	"users/get-authenticated": getOwner, "meta/get-zen": zen, "meta/root": getIndex, "activity/get-feed": getFeed, "meta/get-octocat": zen,
	"apps/create-installation-access-token": mintToken,

	"issues/list-for-repo": listIssues, "issues/list": listIssues, "issues/list-for-org": listIssues, "issues/list-for-authenticated-user": listIssues,
	"issues/create": createIssue, "issues/update": updateIssue, "issues/lock": lockIssue, "issues/unlock": lockIssue,
	"issues/add-labels": changeNames("labels", "labeled"), "issues/set-labels": changeNames("labels", "labeled"),
	"issues/remove-label": changeNames("labels", "unlabeled"), "issues/remove-all-labels": changeNames("labels", "unlabeled"),
	"issues/add-assignees": changeNames("assignees", "assigned"), "issues/remove-assignees": changeNames("assignees", "unassigned"),
	"issues/list-labels-on-issue": func(s *Service, r *request) response {
		return listOf(renderIssue(s, r, r.issue)["labels"].([]any), func(label any) any { return label })
	},
	"issues/list-sub-issues": subIssues, "issues/get-parent": parentIssue,
	"issues/add-sub-issue": changeSubIssue, "issues/remove-sub-issue": changeSubIssue, "issues/update-label": updateLabel,

	"pulls/list": listPulls, "pulls/create": createPull, "pulls/update": updateIssue, "pulls/list-commits": func(s *Service, r *request) response {
		return s.listOfCommits(r, r.repo.git.ahead(str(r.pull["base_sha"]), r.repo.git.refs["heads/"+str(r.pull["head"])]))
	},
	"pulls/list-files": pullFiles, "pulls/check-if-merged": func(_ *Service, r *request) response { return check(r.pull["merged"] == true) }, "pulls/merge": mergePull,

	"repos/list-commits": listCommits, "repos/get-commit": getCommit, "repos/compare-commits": compare, "repos/compare-commits-with-basehead": compare,
	"repos/list-branches": listBranches, "repos/get-branch": getBranch, "repos/rename-branch": renameBranch, "repos/list-tags": func(_ *Service, r *request) response {
		return listOf(r.repo.git.named("tags/"), func(name string) doc { return doc{"name": name, "commit": doc{"sha": r.repo.git.refs["tags/"+name]}} })
	},
	"repos/list-branches-for-head-commit": listBranches, "repos/list-pull-requests-associated-with-commit": pullsOfCommit, "repos/merge": mergeBranch,
	"git/get-ref": getRef, "git/list-matching-refs": listRefs, "git/create-ref": changeRef, "git/update-ref": changeRef, "git/delete-ref": changeRef,
	"git/create-blob": createObject, "git/get-blob": getObject, "git/create-tree": createObject, "git/get-tree": getObject,
	"git/create-commit": createObject, "git/get-commit": getObject,
	"repos/get-content": getContent, "repos/get-readme": getContent, "repos/get-readme-in-directory": getContent,
	"repos/create-or-update-file-contents": changeContent, "repos/delete-file": changeContent, "repos/get-combined-status-for-ref": combinedStatus,
	"repos/get-latest-release": latestRelease, "repos/get-release-by-tag": latestRelease, "repos/get-release-asset": getAsset,
}

// viewHandlers are handlers by method and view, for operations with several paths.
var viewHandlers = map[string]handler{
	"GET /orgs/{}/teams": listTeams, "POST /orgs/{}/teams": createTeam, "GET /orgs/{}/teams/{}": show(func(r *request) any {
		return teamObject(r, r.org, r.team)
	}), "PATCH /orgs/{}/teams/{}": updateTeam,
	"DELETE /orgs/{}/teams/{}": deleteTeam, "GET /orgs/{}/teams/{}/teams": listTeams, "GET /orgs/{}/teams/{}/members": listSelected(func(r *request, m *membership) bool {
		return r.team.hasMember(r.org, m.user.login)
	}),
	"GET /orgs/{}/teams/{}/members/{}": getTeamMember, "PUT /orgs/{}/teams/{}/members/{}": changeTeamMember,
	"DELETE /orgs/{}/teams/{}/members/{}": changeTeamMember, "GET /orgs/{}/teams/{}/memberships/{}": getTeamMember,
	"PUT /orgs/{}/teams/{}/memberships/{}": changeTeamMember, "DELETE /orgs/{}/teams/{}/memberships/{}": changeTeamMember,

	"GET /orgs/{}/memberships/{}": getMembership, "PUT /orgs/{}/memberships/{}": setMembership, "DELETE /orgs/{}/memberships/{}": removeMember,
	"DELETE /orgs/{}/members/{}": removeMember, "GET /orgs/{}/public_members": listSelected(func(_ *request, m *membership) bool { return m.public }),
	"PUT /orgs/{}/public_members/{}": publicizeMember, "DELETE /orgs/{}/public_members/{}": publicizeMember,
	"GET /repos/{}/{}/rulesets/{}": oneRuleset, "PUT /repos/{}/{}/rulesets/{}": oneRuleset, "DELETE /repos/{}/{}/rulesets/{}": oneRuleset,
	"GET /orgs/{}/rulesets/{}": oneRuleset, "PUT /orgs/{}/rulesets/{}": oneRuleset, "DELETE /orgs/{}/rulesets/{}": oneRuleset,
	"GET /user/orgs": listOrganizations, "GET /user/memberships/orgs": listOrganizations, "GET /users/{}/orgs": listOrganizations,
	"GET /user/memberships/orgs/{}": getMembership,
}

func (s *Service) renderRepo(r *request, repo *repository) doc {
	stars := 0
	for _, u := range s.world.users() {
		if s.world.find("/@"+u.login+"/user/starred/"+repo.owner.login+"/"+repo.name) != nil {
			stars++
		}
	}
	body := doc{
		"id": repo.id, "name": repo.name, "full_name": repo.owner.login + "/" + repo.name, "owner": doc{"login": repo.owner.login}, "private": repo.private,
		"url": r.base + repo.path(), "default_branch": mainBranch, "open_issues_count": s.world.openIssues(repo),
		"pushed_at": timestamp(repo.pushed), "created_at": timestamp(s.world.started), "stargazers_count": stars, "topics": []string{}, "description": nil,
	}
	maps.Copy(body, repo.fields)
	return body
}

// touchRepo touches the repository of the request, the lists of repositories, and what shows the name or the content.
func (s *Service) touchRepo(r *request) {
	s.touchRepoViews(r)
	r.touch(r.repo.path() + "/dependency-graph/sbom")
}

// touchRepoViews touches the repository of the request and the lists of repositories.
func (s *Service) touchRepoViews(r *request) {
	owner := r.repo.owner.login
	r.touch(r.repo.path(), "/users/*/subscriptions", "/*/user/subscriptions", "/orgs/"+owner+"/repos", "/users/"+owner+"/repos", "/*/user/repos", "/*/installation/repositories")
}

func getRepo(s *Service, r *request) response {
	return response{status: http.StatusOK, body: s.renderRepo(r, r.repo), modified: r.repo.pushed}
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
	return getRepo(s, r)
}

func deleteRepo(s *Service, r *request) response {
	r.repo.gone = true
	s.touchRepo(r)
	r.touch("/orgs/"+r.repo.owner.login, "/users/"+r.repo.owner.login, "/@"+r.repo.owner.login+"/user")
	return response{status: http.StatusNoContent}
}

// listRepos lists the visible repositories of an owner. Without an owner in the path, it lists those of the caller and
// of the caller's organization.
func listRepos(s *Service, r *request) response {
	list, user := []*repository(nil), s.world.user(r.caller)
	for _, repo := range s.world.visible(r.caller) {
		ofOwner := strings.HasPrefix(r.path, "/orgs/"+repo.owner.login+"/") || strings.HasPrefix(r.path, "/users/"+repo.owner.login+"/")
		ofCaller := isMine(r.op.view) && (user != nil && isMember(repo.owner, user) || r.caller.covers(repo.owner, repo))
		if ofOwner || ofCaller {
			list = append(list, repo)
		}
	}
	return listOf(list, func(repo *repository) doc { return s.renderRepo(r, repo) })
}

func createRepo(s *Service, r *request) response {
	owner, name := r.org, r.text("name")
	if owner == nil {
		owner = s.world.user(r.caller)
	}
	if owner == nil {
		return fail(http.StatusForbidden, "Resource not accessible by integration")
	}
	if old := s.world.repo(owner.login, name); name == "" || old != nil && !old.gone {
		return fail(http.StatusUnprocessableEntity, "Repository creation failed.")
	}
	r.repo = s.world.addRepo(owner, name, r.body["private"] == true, r.now)
	s.touchRepo(r)
	r.touch(r.repo.path()+"/**", "/orgs/"+owner.login, "/users/"+owner.login, "/@"+owner.login+"/user")
	return response{status: http.StatusCreated, body: s.renderRepo(r, r.repo), location: r.base + r.repo.path()}
}

func replaceTopics(s *Service, r *request) response {
	r.repo.fields["topics"] = namesIn(r.body["names"])
	s.touchRepo(r)
	return getTopics(s, r)
}

func getTopics(s *Service, r *request) response {
	return respond(doc{"names": s.renderRepo(r, r.repo)["topics"]})
}

// getOwner returns an organization or a user.
func getOwner(s *Service, r *request) response {
	o := s.world.accounts[keyOf(r.path)]
	if r.path == "/user" {
		o = s.world.user(r.caller)
	}
	if o == nil {
		return notFound()
	}
	path := "/users/" + o.login
	if o.members != nil {
		path = "/orgs/" + o.login
	}
	body := doc{"login": o.login, "id": o.id, "type": accountType(o), "url": r.base + path, "public_repos": len(s.world.reposOf(o.login))}
	maps.Copy(body, s.world.find("/orgs/"+o.login))
	maps.Copy(body, s.world.find("/@"+o.login+"/user"))
	return response{status: http.StatusOK, body: body, modified: s.world.started}
}

// mintToken creates a token of the installation on acme. The token ends after an hour.
func mintToken(s *Service, r *request) response {
	r.seq = 0 // no read shows a token
	token := "ghs_1_" + shaOf("token", s.world.nextID())
	minted := s.world.tokens["tok-app"]
	minted.ends = r.now.Add(time.Hour)
	maps.DeleteFunc(s.world.tokens, func(_ string, c caller) bool { return c.hasEnded(r.now) })
	s.world.tokens[token] = minted
	body := doc{"token": token, "expires_at": timestamp(minted.ends), "permissions": doc{"contents": "write", "issues": "write"}, "repository_selection": "all"}
	return response{status: http.StatusCreated, body: body}
}

func zen(*Service, *request) response {
	return response{status: http.StatusOK, text: []byte("Keep it logically awesome."), kind: "text/plain; charset=utf-8"}
}
