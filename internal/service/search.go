package service

import (
	"cmp"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weirgate/weir/policy"
)

// languages maps file extensions to language names.
var languages = map[string]string{".go": "Go", ".py": "Python", ".md": "Markdown", ".svg": "SVG"}

// searchIn returns a handler that searches the documents of the repositories that the caller may see.
func searchIn(kind string, documents func(*Service, *request, *repository) []document) handler {
	return func(s *Service, req *request) response {
		var all []document
		for _, r := range s.world.visible(req.caller) {
			all = append(all, documents(s, req, r)...)
		}
		return s.search(req, kind, all)
	}
}

func fileDocuments(_ *Service, req *request, r *repository) (all []document) {
	api := req.base + "/repositories/" + itoa(r.id)
	for _, name := range r.paths() {
		sha := r.git.files(r.head())[name]
		content := r.git.blobs[sha]
		if len(content) >= maxSearchedFileSize {
			continue
		}
		all = append(all, document{
			properties: []property{{"file", content}, {"path", name}},
			repository: r, language: languages[path.Ext(name)], order: r.pushed.Unix(),
			item: func() object {
				return object{
					{"name", path.Base(name)}, {"path", name}, {"sha", sha}, {"url", api + "/contents/" + name + "?ref=" + r.head()},
					{"git_url", api + "/git/blobs/" + sha},
					{"html_url", req.base + "/" + r.fullName() + "/blob/" + r.head() + "/" + name},
					{"repository", minimalRepository(req, r)},
				}
			},
		})
	}
	return all
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

const (
	// maxResults is the maximum number of results of a search (Document B section 8.2).
	maxResults = 1000
	// maxSearchedRepositories is the maximum number of matching repositories that a search considers (Document B section
	// 8.2). The documents do not define which repositories these are.
	maxSearchedRepositories = 4000
	// maxSearchedFileSize excludes files of this size or larger from searches.
	maxSearchedFileSize = 384 << 10
)

// document is a searchable record. It holds the text properties and the values that qualifiers compare.
type document struct {
	properties []property
	repository *repository
	language   string
	labels     []string
	state      string
	author     string
	kind       string   // pr or issue
	reviewers  []string // the users whose review is requested
	order      int64    // the key for the sort parameter
	// item builds the result object. It is called only for results on the requested page. The member url of the result
	// identifies the document.
	item func() object
}

type property struct{ name, value string }

// searchHit is a matching document with its score and only the properties that the query searched.
type searchHit struct {
	document
	score float64
}

// search returns one page of the documents that match the query. The results are sorted by score or by the requested sort
// key.
func (s *Service) search(req *request, kind string, documents []document) response {
	query := parseQuery(req.query.Get("q"))
	if problem := s.checkScopes(req, query); problem != nil {
		return *problem
	}
	terms := alternatives(query)
	var all []searchHit
	repositories := map[*repository]bool{} // considered repositories
	for _, d := range documents {
		d.properties = searchedProperties(query, d)
		if d.properties != nil && d.repository != nil && !repositories[d.repository] {
			if len(repositories) == maxSearchedRepositories {
				continue
			}
			repositories[d.repository] = true
		}
		if score := bestScore(terms, d.properties); score > 0 {
			all = append(all, searchHit{d, score})
		}
	}
	incomplete := s.quirks.Due("incomplete_every", req.quirks.IncompleteEvery)
	if incomplete {
		all = all[:(len(all)+1)/2] // as if the search had timed out
	}
	s.sort(req, all)
	found := listOf(all, func(h searchHit) object {
		item := slices.Clone(h.item())
		url := item.member("url")
		item = append(item, field{"score", h.score})
		if s.accepts(req, "text-match") {
			item = append(item, field{"text_matches", textMatches(terms, kind, url, h.properties)})
		}
		return item
	})
	found.volatile, found.incomplete = true, incomplete
	return found
}

// These constants bound the query of a search (Document B sections 7 and 8.2).
const (
	maxQueryLength    = 256
	maxQueryOperators = 5
)

// queryChecks are the reasons to refuse a query, by the name of the check in the catalogue.
var queryChecks = map[string]struct {
	isInvalid     func(searchQuery) bool
	code, message string
}{
	"search-query":  {func(q searchQuery) bool { return len(q.tokens) == 0 }, "missing", ""},
	"search-length": {func(q searchQuery) bool { return q.length > maxQueryLength }, "invalid", ": the search is longer than 256 characters"},
	"search-operators": {
		func(q searchQuery) bool { return q.operators > maxQueryOperators }, "invalid", ": more than five AND / OR / NOT operators were used",
	},
	"search-terms": {
		func(q searchQuery) bool { return !q.hasTerm }, "invalid",
		": the search contains only qualifiers; at least one search term is needed",
	},
}

// checkQuery returns an error response to a search that the documents refuse.
func (s *Service) checkQuery(r *request) *response {
	query := parseQuery(r.query.Get("q"))
	for _, name := range r.op.documented.Checks {
		if c, ok := queryChecks[name]; ok && c.isInvalid(query) {
			return refuse(http.StatusUnprocessableEntity, "Validation Failed"+c.message, problemField{"Search", "q", c.code})
		}
	}
	return nil
}

// checkScopes refuses a query if the caller can access none of the repositories and accounts that it names (Document B
// section 5.2).
func (s *Service) checkScopes(req *request, query searchQuery) *response {
	isScope := func(t searchToken) bool { return slices.Contains([]string{"repo", "user", "org"}, t.name) }
	isAccessible := func(t searchToken) bool {
		if t.name == "repo" {
			return slices.ContainsFunc(s.world.visible(req.caller), func(r *repository) bool { return strings.EqualFold(r.fullName(), t.value) })
		}
		return isScope(t) && slices.ContainsFunc(s.world.byID, func(a *account) bool { return strings.EqualFold(a.login, t.value) })
	}
	if !slices.ContainsFunc(query.tokens, isScope) || slices.ContainsFunc(query.tokens, isAccessible) {
		return nil
	}
	return refuse(http.StatusUnprocessableEntity, "Validation Failed: the listed users and repositories cannot be searched", problemField{"Search", "q", "invalid"})
}

// sort orders the hits by the sort parameter if it is valid, otherwise by score.
func (s *Service) sort(req *request, all []searchHit) {
	chosen := slices.ContainsFunc(req.op.documented.Query, func(p policy.Parameter) bool {
		return p.Name == "sort" && (len(p.Values) == 0 || slices.Contains(p.Values, req.query.Get("sort")))
	}) && req.query.Get("sort") != ""
	slices.SortStableFunc(all, func(a, b searchHit) int {
		if !chosen {
			return cmp.Compare(b.score, a.score)
		}
		if req.query.Get("order") == "asc" {
			return cmp.Compare(a.order, b.order)
		}
		return cmp.Compare(b.order, a.order)
	})
}

// alternatives splits a query at each OR and returns the terms of each part in lower case. All terms of a part must
// match, because AND binds tighter than OR. NOT and a leading minus negate a term. A part without terms is dropped,
// because qualifiers restrict the whole query. A query without any term has one empty alternative, which matches every
// document.
func alternatives(query searchQuery) [][]searchToken {
	if !query.hasTerm {
		return [][]searchToken{nil}
	}
	var all [][]searchToken
	var terms []searchToken
	negate := false
	for _, t := range query.tokens {
		switch {
		case t.operator == "NOT":
			negate = true
			continue
		case t.operator == "OR":
			all, terms = append(all, terms), nil
		case t.term != "":
			t.term, t.negated = strings.ToLower(t.term), t.negated || negate
			terms = append(terms, t)
		}
		negate = false
	}
	all = append(all, terms)
	return slices.DeleteFunc(all, func(terms []searchToken) bool { return len(terms) == 0 })
}

// bestScore returns the highest score of the alternatives: 0 if a term does not match or if there are no properties,
// otherwise 1 plus the number of occurrences of the terms.
func bestScore(alternatives [][]searchToken, in []property) float64 {
	best := 0
	for _, terms := range alternatives {
		score := min(len(in), 1)
		for _, t := range terms {
			n := 0
			for _, p := range in {
				n += strings.Count(strings.ToLower(p.value), t.term)
			}
			if score += n; (n > 0) == t.negated {
				score = 0
				break
			}
		}
		best = max(best, score)
	}
	return float64(best)
}

// searchedProperties returns the properties of the document that the query searches. It returns nil if the document
// does not match the qualifiers. A single matching repo:, user: or org: qualifier is sufficient. Unknown qualifiers are
// ignored.
func searchedProperties(query searchQuery, d document) []property {
	in := d.properties
	scoped, inScope := false, false
	for _, t := range query.tokens {
		var matches bool
		switch t.name {
		case "in":
			in = slices.DeleteFunc(slices.Clone(in), func(p property) bool { return !slices.Contains(strings.Split(t.value, ","), p.name) })
			continue
		case "repo", "user", "org":
			matches = d.belongsTo(t)
			if !t.negated {
				scoped, inScope = true, inScope || matches
				continue
			}
		case "language":
			matches = strings.EqualFold(d.language, t.value)
		case "label":
			matches = slices.Contains(d.labels, t.value)
		case "state":
			matches = d.state == t.value
		case "author":
			matches = d.author == t.value
		case "is", "type":
			matches = t.value == d.kind || t.value == d.state
		case "review-requested":
			matches = slices.Contains(d.reviewers, t.value)
		default:
			continue
		}
		if matches == t.negated {
			return nil
		}
	}
	if scoped && !inScope || len(in) == 0 {
		return nil
	}
	return in
}

// belongsTo reports whether the document belongs to the repository or account that a repo:, user: or org: qualifier
// names.
func (d document) belongsTo(t searchToken) bool {
	if d.repository == nil {
		return false
	}
	name := d.repository.owner.login
	if t.name == "repo" {
		name = d.repository.fullName()
	}
	return strings.EqualFold(name, t.value)
}

// textMatches returns the positions of the terms in the searched properties (Document B section 2.1). Negated terms
// have no positions. The indices count characters of the fragment.
func textMatches(alternatives [][]searchToken, kind string, url any, in []property) []object {
	all := []object{}
	for _, p := range in {
		var matches []object
		text := []rune(p.value)
		for _, at := range matchPositions(alternatives, []rune(strings.ToLower(p.value))) {
			matches = append(matches, object{{"text", string(text[at[0]:at[1]])}, {"indices", at}})
		}
		if matches != nil {
			all = append(all, object{{"object_url", url}, {"object_type", kind}, {"property", p.name}, {"fragment", p.value}, {"matches", matches}})
		}
	}
	return all
}

// matchPositions returns the sorted, distinct [start, end) positions of the terms in a lower-case text.
func matchPositions(alternatives [][]searchToken, text []rune) [][2]int {
	var all [][2]int
	for _, t := range slices.Concat(alternatives...) {
		term := []rune(t.term)
		for i := 0; !t.negated && i+len(term) <= len(text); i++ {
			if slices.Equal(text[i:i+len(term)], term) {
				all = append(all, [2]int{i, i + len(term)})
			}
		}
	}
	slices.SortFunc(all, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(all)
}

// searchQuery is the query of a search (Document B section 4.1).
type searchQuery struct {
	tokens    []searchToken // terms, qualifiers and operators in their order
	length    int           // the number of characters that count: those of the terms, with one blank between two terms
	operators int
	hasTerm   bool
}

// searchToken is a term, a qualifier or an operator. An empty phrase is none of these.
type searchToken struct {
	term        string // a keyword, or a phrase without its quotes
	name, value string // of a qualifier, such as repo and acme/widgets
	operator    string // AND, OR or NOT
	negated     bool   // the term or the qualifier has a leading minus
}

var (
	// searchWord matches a token. A blank in quotes does not end it, and a phrase may lack its closing quote.
	searchWord = regexp.MustCompile(`([^\s\v\x{85}\p{Z}"]|"[^"]*("|$))+`)
	// searchQualifier matches a qualifier without its minus. std::vector and https://host are terms.
	searchQualifier = regexp.MustCompile(`(?s)^([A-Za-z][A-Za-z0-9_-]*):($|[^:/].*|/$|/[^/].*)$`)
)

// parseQuery parses any text.
func parseQuery(q string) searchQuery {
	query := searchQuery{length: -1} // no blank precedes the first term
	for _, source := range searchWord.FindAllString(q, -1) {
		text, negated := strings.CutPrefix(source, "-")
		unquoted := func(text string) string { return strings.ReplaceAll(text, `"`, "") }
		t := searchToken{negated: negated}
		qualifier := searchQualifier.FindStringSubmatch(text)
		switch {
		case slices.Contains([]string{"AND", "OR", "NOT"}, source):
			t.operator = source
			query.operators++
		case text == "": // a single minus
			t.term, t.negated = source, false
		case qualifier != nil:
			t.name, t.value = strings.ToLower(qualifier[1]), unquoted(qualifier[2])
		default:
			t.term = unquoted(text)
		}
		if t.operator == "" && t.name == "" {
			query.length += 1 + utf8.RuneCountInString(source)
		}
		query.tokens, query.hasTerm = append(query.tokens, t), query.hasTerm || t.term != ""
	}
	return query
}
