package service

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

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

// search returns one page of the documents that match the query and that the caller may see. The results are sorted by
// score or by the requested sort key.
func (s *Service) search(req *request, kind string, documents []document) response {
	query := parseQuery(req.query.Get("q"))
	if problem := s.checkScopes(req, query); problem != nil {
		return *problem
	}
	terms := alternatives(query)
	var all []searchHit
	repositories := map[*repository]bool{} // considered repositories
	for _, d := range documents {
		if d.repository != nil && !s.world.isVisible(d.repository, req.caller) {
			continue
		}
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
	total := len(all)
	all = all[:min(total, maxResults)]
	found := list(req, req.path, all, func(h searchHit) object {
		item := slices.Clone(h.item())
		url := item.member("url")
		item = append(item, field{"score", h.score})
		if s.accepts(req, "text-match") {
			item = append(item, field{"text_matches", textMatches(terms, kind, url, h.properties)})
		}
		return item
	})
	return response{
		status: http.StatusOK, volatile: true, link: found.link,
		body: object{{"total_count", total}, {"incomplete_results", incomplete}, {"items", found.body}},
	}
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
	"search-query":  {func(q searchQuery) bool { return len(q) == 0 }, "missing", ""},
	"search-length": {func(q searchQuery) bool { return q.length() > maxQueryLength }, "invalid", ": the search is longer than 256 characters"},
	"search-operators": {
		func(q searchQuery) bool { return q.operators() > maxQueryOperators }, "invalid", ": more than five AND / OR / NOT operators were used",
	},
	"search-terms": {
		func(q searchQuery) bool { return !q.hasTerm() }, "invalid",
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
	named, accessible := 0, 0
	for _, t := range query {
		switch t.name {
		case "repo":
			named++
			for _, r := range s.world.repositories {
				if strings.EqualFold(r.fullName(), t.value) && s.world.isVisible(r, req.caller) {
					accessible++
				}
			}
		case "user", "org":
			named++
			for _, a := range s.world.accounts {
				if strings.EqualFold(a.login, t.value) {
					accessible++
				}
			}
		}
	}
	if named == 0 || accessible > 0 {
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
	if !query.hasTerm() {
		return [][]searchToken{nil}
	}
	var all [][]searchToken
	var terms []searchToken
	negate := false
	for _, t := range query {
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

// bestScore returns the highest score of the alternatives. It returns 0 if no alternative matches or if there are no
// properties.
func bestScore(alternatives [][]searchToken, in []property) float64 {
	best := 0.0
	for _, terms := range alternatives {
		best = max(best, score(terms, in))
	}
	return best
}

// score returns 0 if a term does not match. Otherwise it returns 1 plus the number of occurrences of the terms.
func score(terms []searchToken, in []property) float64 {
	if in == nil {
		return 0
	}
	sum := 1
	for _, t := range terms {
		n := occurrences(t.term, in)
		if (n > 0) == t.negated {
			return 0
		}
		sum += n
	}
	return float64(sum)
}

// occurrences counts a lower-case term in the properties.
func occurrences(term string, in []property) int {
	n := 0
	for _, p := range in {
		n += strings.Count(strings.ToLower(p.value), term)
	}
	return n
}

// searchedProperties returns the properties of the document that the query searches. It returns nil if the document
// does not match the qualifiers. A single matching repo:, user: or org: qualifier is sufficient. Unknown qualifiers are
// ignored.
func searchedProperties(query searchQuery, d document) []property {
	in := d.properties
	scoped, inScope := false, false
	for _, t := range query {
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
