package service

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// userObject returns the simple account object (Document A section 2.1).
func userObject(req *request, a *account) object {
	api, html := req.base+"/users/"+a.login, req.base+"/"+a.login
	kind := accountType(a)
	return object{
		{"login", a.login}, {"id", a.id}, {"node_id", nodeID(kind, a.id)},
		{"avatar_url", req.base + "/avatars/" + itoa(a.id)}, {"gravatar_id", ""},
		{"url", api}, {"html_url", html},
		{"followers_url", api + "/followers"}, {"following_url", api + "/following{/other_user}"},
		{"gists_url", api + "/gists{/gist_id}"}, {"starred_url", api + "/starred{/owner}{/repo}"},
		{"subscriptions_url", api + "/subscriptions"}, {"organizations_url", api + "/orgs"},
		{"repos_url", api + "/repos"}, {"events_url", api + "/events{/privacy}"},
		{"received_events_url", api + "/received_events"}, {"type", kind}, {"site_admin", false},
	}
}

func nodeID(kind string, id int) string { return views().NodePrefixes[kind] + "_" + itoa(id) }

// minimalRepository returns the repository object of a search result. It has the owner and the URL fields (Document B
// section 2.1).
func minimalRepository(req *request, r *repository) object {
	api, html := req.base+"/repos/"+r.fullName(), req.base+"/"+r.fullName()
	o := object{
		{"id", r.id}, {"node_id", nodeID("Repository", r.id)}, {"name", r.name}, {"full_name", r.fullName()},
		{"owner", userObject(req, r.owner)}, {"private", r.private}, {"html_url", html}, {"description", r.description},
		{"fork", false}, {"url", api},
	}
	for _, u := range views().RepositoryURLs {
		o = append(o, field{u[0], api + u[1]})
	}
	host := strings.TrimPrefix(strings.TrimPrefix(req.base, "https://"), "http://")
	return append(o, object{
		{"git_url", "git://" + host + "/" + r.fullName() + ".git"}, {"ssh_url", "git@" + host + ":" + r.fullName() + ".git"},
		{"clone_url", html + ".git"}, {"mirror_url", ""}, {"svn_url", html},
	}...)
}

// repositoryObject returns the repository object of the lists of watched repositories (Document A section 2.7). No
// repository is a mirror, so mirror_url is empty.
func repositoryObject(s *Service, req *request, r *repository) object {
	var language any
	if r.language != "" {
		language = r.language
	}
	enabled, disabled := object{{"status", "enabled"}}, object{{"status", "disabled"}}
	return append(minimalRepository(req, r), object{
		{"homepage", ""}, {"language", language}, {"forks_count", 0}, {"stargazers_count", 0}, {"watchers_count", 0},
		{"size", len(r.git.files(r.head()))}, {"default_branch", r.defaultBranch}, {"open_issues_count", s.world.openIssues(r)},
		{"is_template", false}, {"topics", []string{}}, {"has_issues", true}, {"has_projects", true}, {"has_wiki", true},
		{"has_pages", false}, {"has_downloads", true}, {"has_discussions", false}, {"archived", false}, {"disabled", false},
		{"visibility", r.visibility()}, {"pushed_at", timestamp(r.pushed)}, {"created_at", timestamp(r.created)}, {"updated_at", timestamp(r.pushed)},
		{"permissions", s.permissions(req.caller, r)},
		{"security_and_analysis", object{
			{"advanced_security", disabled}, {"secret_scanning", enabled},
			{"secret_scanning_push_protection", disabled}, {"secret_scanning_non_provider_patterns", disabled},
		}},
	}...)
}

// permissions returns the permissions of the caller in a repository (Document A section 2.7). The permissions depend on
// the user, or on the grants of an installation or workflow token.
func (s *Service) permissions(c caller, r *repository) object {
	u := s.world.user(c)
	admin, push := u != nil && isOwner(r.owner, u), u != nil && isMember(r.owner, u)
	if c.covers(r.owner, r) {
		admin, push = c.hasPermission("Administration (repository): write"), c.hasPermission("Contents (repository): write")
	}
	return object{{"admin", admin}, {"push", push}, {"pull", true}}
}

// openIssues returns the number of open issues and pull requests.
func (w *world) openIssues(r *repository) int { return len(w.where(r, "issues", "state", "open")) }

// exportSBOM returns the software bill of materials of a repository (Document B section 2.4). It lists the repository
// and one package per language.
func exportSBOM(s *Service, req *request) response {
	r := req.repo
	name := "com.example." + r.fullName()
	packages := []object{spdxPackage("SPDXRef-Repository", name, r.head(), "git+"+req.base+"/"+r.fullName(), "MIT")}
	for _, language := range []string{"go", "py"} { // by the endings of files
		if slices.ContainsFunc(r.paths(), func(name string) bool { return path.Ext(name) == "."+language }) {
			packages = append(packages, spdxPackage("SPDXRef-"+language, language+":standard-library", "1.0", "NOASSERTION", "NOASSERTION"))
		}
	}
	return response{status: http.StatusOK, modified: r.pushed, body: object{{"sbom", object{
		{"SPDXID", "SPDXRef-DOCUMENT"}, {"spdxVersion", "SPDX-2.3"},
		{"creationInfo", object{{"created", timestamp(r.pushed)}, {"creators", []string{"Tool: reference-service"}}}},
		{"name", name}, {"dataLicense", "CC0-1.0"}, {"documentDescribes", []string{"SPDXRef-Repository"}},
		{"documentNamespace", req.base + "/" + r.fullName() + "/dependency_graph/sbom-" + itoa(r.id)}, {"packages", packages},
	}}}}
}

func spdxPackage(id, name, version, location, license string) object {
	return object{
		{"SPDXID", id}, {"name", name}, {"versionInfo", version}, {"downloadLocation", location}, {"filesAnalyzed", false},
		{"licenseConcluded", license}, {"licenseDeclared", license}, {"copyrightText", "NOASSERTION"},
	}
}
