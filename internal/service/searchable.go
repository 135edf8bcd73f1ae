package service

import (
	"path"
	"slices"
	"strings"
)

// languages by the ending of a file's name.
var languages = map[string]string{".go": "Go", ".py": "Python", ".md": "Markdown", ".svg": "SVG"}

func searchCode(s *Service, req *request) response {
	var all []document
	for _, r := range s.world.repositories {
		for _, f := range r.files {
			if f.size >= maxSearchedFile {
				continue
			}
			sha := f.sha(r)
			api := req.base + "/repositories/" + itoa(r.id)
			url := api + "/contents/" + f.path + "?ref=" + r.head()
			all = append(all, document{
				properties: []property{{"file", f.content}, {"path", f.path}},
				repository: r, language: languages[path.Ext(f.path)], url: url, order: r.pushed.Unix(),
				item: object{
					{"name", path.Base(f.path)}, {"path", f.path}, {"sha", sha}, {"url", url},
					{"git_url", api + "/git/blobs/" + sha},
					{"html_url", req.base + "/" + r.fullName() + "/blob/" + r.head() + "/" + f.path},
					{"repository", minimalRepository(req, r)},
				},
			})
		}
	}
	return s.search(req, "FileContent", all)
}

func searchCommits(s *Service, req *request) response {
	var all []document
	for _, r := range s.world.repositories {
		if !s.world.visible(r, req.caller) {
			continue
		}
		for i, c := range r.commits {
			all = append(all, commitDocument(req, r, i, c))
		}
	}
	return s.search(req, "Commit", all)
}

// commitDocument is found by its message only; the item is made when it is
// shown, so that searching 12,000 commits stays cheap.
func commitDocument(req *request, r *repository, i int, c commit) document {
	api := req.base + "/repos/" + r.fullName()
	url := api + "/commits/" + c.sha
	d := document{properties: []property{{"message", c.message}}, repository: r, author: c.author.login, url: url, order: c.at.Unix()}
	parents := []object{}
	if i > 0 {
		parent := r.commits[i-1].sha
		parents = append(parents, object{{"url", api + "/commits/" + parent}, {"sha", parent}})
	}
	person := object{{"name", c.author.name}, {"email", c.author.email}, {"date", c.at.Format("2006-01-02T15:04:05.000-07:00")}}
	d.item = object{
		{"url", url}, {"sha", c.sha}, {"node_id", "C_" + c.sha[:12]}, {"html_url", req.base + "/" + r.fullName() + "/commit/" + c.sha},
		{"comments_url", url + "/comments"},
		{"commit", object{
			{"url", api + "/git/commits/" + c.sha}, {"author", person}, {"committer", person}, {"message", c.message},
			{"tree", object{{"url", api + "/git/trees/" + c.sha}, {"sha", c.sha}}}, {"comment_count", 0},
		}},
		{"author", deferred(func() any { return userObject(req, c.author) })},
		{"committer", deferred(func() any { return userObject(req, c.author) })},
		{"parents", parents},
		{"repository", deferred(func() any { return minimalRepository(req, r) })},
	}
	return d
}

// deferred is a value that is made when it is written.
type deferred func() any

// MarshalJSON makes and writes the value.
func (d deferred) MarshalJSON() ([]byte, error) { return encode(d()), nil }

func searchIssues(s *Service, req *request) response {
	var all []document
	for _, r := range s.world.repositories {
		for _, i := range r.issues {
			all = append(all, issueDocument(req, r, i))
		}
	}
	return s.search(req, "Issue", all)
}

func issueDocument(req *request, r *repository, i issue) document {
	state := "closed"
	if i.open {
		state = "open"
	}
	var labels []object
	for _, name := range i.labels {
		labels = append(labels, object{{"name", name}})
	}
	api := req.base + "/repos/" + r.fullName()
	url := api + "/issues/" + itoa(i.number)
	return document{
		properties: []property{{"title", i.title}, {"body", i.body}},
		repository: r, labels: i.labels, state: state, author: i.author.login, url: url, order: i.created.Unix(),
		item: object{
			{"url", url}, {"repository_url", api}, {"html_url", req.base + "/" + r.fullName() + "/issues/" + itoa(i.number)},
			{"id", r.id*1000 + i.number}, {"number", i.number}, {"title", i.title}, {"user", userObject(req, i.author)},
			{"labels", labels}, {"state", state}, {"comments", 0}, {"created_at", stamp(i.created)}, {"updated_at", stamp(i.created)},
			{"body", i.body},
		},
	}
}

// searchOther searches repositories and users; the documents show no more.
func searchOther(s *Service, req *request) response {
	var all []document
	switch req.match.Params["kind"] {
	case "repositories":
		for _, r := range s.world.repositories {
			all = append(all, document{
				properties: []property{{"name", r.name}, {"description", r.description}},
				repository: r, language: r.language, url: req.base + "/repos/" + r.fullName(), order: r.pushed.Unix(),
				item: repositoryObject(s, req, r),
			})
		}
		return s.search(req, "Repository", all)
	case "users":
		for _, a := range s.world.accounts {
			all = append(all, document{
				properties: []property{{"login", a.login}, {"name", a.name}}, order: -int64(a.id),
				url: req.base + "/users/" + a.login, item: userObject(req, a),
			})
		}
		slices.SortFunc(all, func(a, b document) int { return strings.Compare(a.url, b.url) }) // they come from a map
		return s.search(req, "User", all)
	}
	return s.notFound()
}
