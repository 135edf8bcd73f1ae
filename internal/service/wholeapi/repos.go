package wholeapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// handler answers one operation. It runs with Service.mu held.
type handler func(*Service, *request) response

// handlers are the operations that are neither generic nor operations on a kind, by ID.
var handlers = map[string]handler{
	"repos/get": getRepo, "repos/update": updateRepo, "repos/delete": deleteRepo, "repos/list-for-org": listRepos, "repos/list-for-user": listRepos,
	"repos/list-for-authenticated-user": listRepos, "apps/list-repos-accessible-to-installation": listRepos, "repos/create-in-org": createRepo,
	"repos/create-for-authenticated-user": createRepo, "repos/create-using-template": createRepo, "repos/replace-all-topics": replaceTopics,
	"repos/get-all-topics": getTopics, "orgs/get": getOwner, "users/get-by-username": getOwner, "users/get-by-id": getOwner,
	"users/get-authenticated": getOwner, "orgs/delete": acceptLater, "teams/create": createTeam, "meta/get-zen": zen, "meta/get-octocat": zen,

	"issues/list-for-repo": listIssues, "issues/list": listIssues, "issues/list-for-org": listIssues, "issues/list-for-authenticated-user": listIssues,
	"issues/create": createIssue, "issues/update": withIssue(updateIssue), "issues/lock": withIssue(lockIssue), "issues/unlock": withIssue(lockIssue),
	"issues/add-labels": changeNames("labels", "labeled"), "issues/set-labels": changeNames("labels", "labeled"),
	"issues/remove-label": changeNames("labels", "unlabeled"), "issues/remove-all-labels": changeNames("labels", "unlabeled"),
	"issues/add-assignees": changeNames("assignees", "assigned"), "issues/remove-assignees": changeNames("assignees", "unassigned"),
	"issues/list-labels-on-issue": withIssue(listLabels), "issues/list-sub-issues": withIssue(subIssues), "issues/get-parent": withIssue(parentIssue),
	"issues/add-sub-issue": withIssue(changeSubIssue), "issues/remove-sub-issue": withIssue(changeSubIssue), "issues/update-label": updateLabel,

	"pulls/list": listPulls, "pulls/create": createPull, "pulls/update": withIssue(updateIssue), "pulls/list-commits": withPull(pullCommits),
	"pulls/list-files": withPull(pullFiles), "pulls/check-if-merged": withPull(isMerged), "pulls/merge": withPull(mergePull),

	"repos/list-commits": listCommits, "repos/get-commit": getCommit, "repos/compare-commits": compare, "repos/compare-commits-with-basehead": compare,
	"repos/list-branches": listBranches, "repos/get-branch": getBranch, "repos/rename-branch": renameBranch, "repos/list-tags": listTags,
	"repos/list-branches-for-head-commit": listBranches, "repos/list-pull-requests-associated-with-commit": pullsOfCommit, "repos/merge": mergeBranch,
	"git/get-ref": getRef, "git/list-matching-refs": listRefs, "git/create-ref": changeRef, "git/update-ref": changeRef, "git/delete-ref": changeRef,
	"git/create-blob": createObject, "git/get-blob": getObject, "git/create-tree": createObject, "git/get-tree": getObject,
	"git/create-commit": createObject, "git/get-commit": getObject, "git/create-tag": createObject, "git/get-tag": getObject,
	"repos/get-content": getContent, "repos/get-readme": getContent, "repos/get-readme-in-directory": getContent,
	"repos/create-or-update-file-contents": changeContent, "repos/delete-file": changeContent, "repos/get-combined-status-for-ref": combinedStatus,
	"repos/get-latest-release": latestRelease, "repos/get-release-by-tag": latestRelease, "repos/get-release-asset": getAsset,

	"repos/get-code-frequency-stats": statistics, "repos/get-commit-activity-stats": statistics, "repos/get-contributors-stats": statistics,
	"repos/get-participation-stats": statistics, "repos/get-punch-card-stats": statistics,
}

func (s *Service) renderRepo(r *request, repo *repository) doc {
	stars := 0
	for _, u := range s.world.users {
		if s.world.find("/@"+u.login+"/user/starred/"+repo.owner+"/"+repo.name) != nil {
			stars++
		}
	}
	body := doc{
		"id": repo.id, "name": repo.name, "full_name": repo.owner + "/" + repo.name, "owner": doc{"login": repo.owner}, "private": repo.private,
		"url": r.base + repo.path(), "default_branch": mainBranch, "open_issues_count": len(s.where(repo, "issues", "state", "open")),
		"pushed_at": stamp(repo.pushed), "created_at": stamp(s.world.started), "stargazers_count": stars, "topics": []string{}, "description": nil,
	}
	maps.Copy(body, repo.fields)
	return body
}

// touchRepo touches the repository of the request and the lists of repositories.
func (s *Service) touchRepo(r *request) {
	owner := r.repo.owner
	r.touch(r.repo.path(), "/orgs/"+owner+"/repos", "/users/"+owner+"/repos", "/*/user/repos", "/*/installation/repositories")
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
	r.touch("/orgs/"+r.repo.owner, "/users/"+r.repo.owner, "/@"+r.repo.owner+"/user")
	return response{status: http.StatusNoContent}
}

// listRepos lists the visible repositories of an owner. Without an owner in the path, it lists those of the caller and
// of the caller's organization.
func listRepos(s *Service, r *request) response {
	list, isMember := []any{}, s.isMember(r.caller)
	for _, repo := range s.world.reposOf("") {
		ofOwner := strings.HasPrefix(r.path, "/orgs/"+repo.owner+"/") || strings.HasPrefix(r.path, "/users/"+repo.owner+"/")
		ofCaller := isMine(r.op.view) && (repo.owner == r.caller.login || repo.owner == "acme" && isMember)
		if (ofOwner || ofCaller) && (!repo.private || isMember) {
			list = append(list, s.renderRepo(r, repo))
		}
	}
	return response{status: http.StatusOK, list: list}
}

func createRepo(s *Service, r *request) response {
	owner, name := r.caller.login, r.text("name")
	if r.params["org"] != "" {
		owner = keyOf(parentOf(r.path))
	}
	if old := s.world.repo(owner, name); name == "" || old != nil && !old.gone {
		return fail(http.StatusUnprocessableEntity, "Repository creation failed.")
	}
	r.repo = s.world.addRepo(owner, name, r.body["private"] == true, r.now)
	s.touchRepo(r)
	r.touch(r.repo.path()+"/**", "/orgs/"+owner, "/users/"+owner, "/@"+owner+"/user")
	return response{status: http.StatusCreated, body: s.renderRepo(r, r.repo), location: r.base + r.repo.path()}
}

func replaceTopics(s *Service, r *request) response {
	names, _ := r.body["names"].([]any)
	r.repo.fields["topics"] = namesIn(names)
	s.touchRepo(r)
	return getTopics(s, r)
}

func getTopics(s *Service, r *request) response {
	return response{status: http.StatusOK, body: doc{"names": s.renderRepo(r, r.repo)["topics"]}}
}

// getOwner returns an organization or a user.
func getOwner(s *Service, r *request) response {
	login := keyOf(r.path)
	if r.path == "/user" {
		login = r.caller.login
	}
	o, ok := ownerOf(slices.Concat(s.world.users, s.world.orgs), login)
	if !ok {
		return fail(http.StatusNotFound, "Not Found")
	}
	kind, path := "User", "/users/"+o.login
	if o.org {
		kind, path = "Organization", "/orgs/"+o.login
	}
	body := doc{"login": o.login, "id": o.id, "type": kind, "url": r.base + path, "public_repos": len(s.world.reposOf(o.login))}
	maps.Copy(body, s.world.find("/orgs/"+o.login))
	maps.Copy(body, s.world.find("/@"+o.login+"/user"))
	return response{status: http.StatusOK, body: body, modified: s.world.started}
}

func createTeam(s *Service, r *request) response {
	slug := strings.ReplaceAll(strings.ToLower(r.text("name")), " ", "-")
	if slug == "" || s.world.find(r.path+"/"+escape(slug)) != nil {
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	r.touch(r.path + "/" + escape(slug))
	return response{status: http.StatusCreated, body: s.world.addTeam(keyOf(parentOf(r.path)), slug, maps.Clone(r.body))}
}

// acceptLater responds with 202 and changes nothing.
func acceptLater(_ *Service, r *request) response {
	r.seq = 0
	return response{status: http.StatusAccepted, body: doc{}}
}

func zen(*Service, *request) response {
	return response{status: http.StatusOK, text: []byte("Keep it logically awesome."), kind: "text/plain; charset=utf-8"}
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
