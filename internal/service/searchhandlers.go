package service

import (
	"maps"
	"path"
	"slices"
)

// languages maps file extensions to language names.
var languages = map[string]string{".go": "Go", ".py": "Python", ".md": "Markdown", ".svg": "SVG"}

// searchIn returns a handler that searches the documents of all repositories.
func searchIn(kind string, documents func(*Service, *request, *repository) []document) handler {
	return func(s *Service, req *request) response {
		var all []document
		for _, r := range s.world.repositories {
			all = append(all, documents(s, req, r)...)
		}
		return s.search(req, kind, all)
	}
}

func fileDocuments(_ *Service, req *request, r *repository) (all []document) {
	for _, f := range r.files() {
		if len(f.content) < maxSearchedFileSize {
			all = append(all, fileDocument(req, r, f))
		}
	}
	return all
}

func fileDocument(req *request, r *repository, f file) document {
	return document{
		properties: []property{{"file", f.content}, {"path", f.path}},
		repository: r, language: languages[path.Ext(f.path)], order: r.pushed.Unix(),
		item: func() object {
			api, sha := req.base+"/repositories/"+itoa(r.id), f.sha
			return object{
				{"name", path.Base(f.path)}, {"path", f.path}, {"sha", sha}, {"url", api + "/contents/" + f.path + "?ref=" + r.head()},
				{"git_url", api + "/git/blobs/" + sha},
				{"html_url", req.base + "/" + r.fullName() + "/blob/" + r.head() + "/" + f.path},
				{"repository", minimalRepository(req, r)},
			}
		},
	}
}

func commitDocuments(_ *Service, req *request, r *repository) (all []document) {
	for _, c := range r.history() {
		all = append(all, document{
			properties: []property{{"message", c.message}}, repository: r, author: c.author.login, order: c.at.Unix(),
			item: func() object { return commitItem(req, r, c) },
		})
	}
	return all
}

// commitItem returns the search result for a commit. Its times are in the author's time zone.
func commitItem(req *request, r *repository, c *commit) object {
	item := renderCommit(req, r, c)
	shown := item["commit"].(doc)
	shown["comment_count"], shown["author"].(doc)["date"] = 0, c.at.Format("2006-01-02T15:04:05.000-07:00")
	item["repository"] = minimalRepository(req, r)
	return fieldsOf(item)
}

// fieldsOf returns an object with the members of a document in the order of their names.
func fieldsOf(d doc) (o object) {
	for _, name := range slices.Sorted(maps.Keys(d)) {
		o = append(o, field{name, d[name]})
	}
	return o
}

func issueDocuments(s *Service, req *request, r *repository) (all []document) {
	for _, issue := range s.world.where(r, "issues", "", "") {
		if d := s.issueDocument(req, r, issue); d.kind == "issue" {
			all = append(all, d)
		}
	}
	return all
}

// issueDocument returns the record of an issue or a pull request.
func (s *Service) issueDocument(req *request, r *repository, issue doc) document {
	d := document{
		properties: []property{{"title", textOf(issue["title"])}, {"body", textOf(issue["body"])}},
		repository: r, kind: "issue", labels: issue["labels"].([]string), state: str(issue["state"]), author: s.world.authorOf(issue).login,
		order: timeOf(issue["created_at"]).Unix(),
		item:  func() object { return fieldsOf(renderIssue(s, req, issue)) },
	}
	if _, pull := s.world.numbered(r, issue["number"].(int)); pull != nil {
		d.kind, d.reviewers = "pr", pull["requested_reviewers"].([]string)
	}
	return d
}

const searchOtherID = "search/other"

// searchOther searches repositories and users. The documents describe no other kinds.
func searchOther(s *Service, req *request) response {
	switch lastOf(req.path) {
	case "repositories":
		return searchIn("Repository", repositoryDocuments)(s, req)
	case "users":
		var all []document
		for _, a := range s.world.byID {
			all = append(all, document{
				properties: []property{{"login", a.login}, {"name", a.name}}, order: -int64(a.id),
				item: func() object { return userObject(req, a) },
			})
		}
		return s.search(req, "User", all)
	}
	return notFound()
}

func repositoryDocuments(s *Service, req *request, r *repository) []document {
	return []document{{
		properties: []property{{"name", r.name}, {"description", r.description}},
		repository: r, language: r.language, order: r.pushed.Unix(),
		item: func() object { return repositoryObject(s, req, r) },
	}}
}
