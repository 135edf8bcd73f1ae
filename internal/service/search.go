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
	kind       string // pr or issue
	reviewer   string // the user whose review is requested
	order      int64  // the key for the sort parameter
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
	query := policy.ParseSearch(req.query.Get("q"))
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
	page, perPage := pages(req.query)
	from := min((page-1)*perPage, len(all))
	to := min(from+perPage, len(all))
	items := make([]object, 0, to-from)
	for _, f := range all[from:to] {
		item := slices.Clone(f.item())
		url := item.member("url")
		item = append(item, field{"score", f.score})
		if s.accepts(req, "text-match") {
			item = append(item, field{"text_matches", textMatches(terms, kind, url, f.properties)})
		}
		items = append(items, item)
	}
	return response{
		status: http.StatusOK, volatile: true, link: pageLinks(req, req.path, len(all)),
		body: object{{"total_count", total}, {"incomplete_results", incomplete}, {"items", items}},
	}
}

// preflight returns an error response to a search that the documents refuse, and to a call without a required
// credential.
func (s *Service) preflight(r *request) *response {
	m := policy.Match{Operation: r.op.documented, Query: r.query.Encode()}
	f := m.Preflight(r.caller.kind)
	if f == nil {
		return nil
	}
	var fields []problemField
	if f.Field != "" {
		fields = []problemField{{f.Resource, f.Field, f.Code}}
	}
	return refuse(f.Status, f.Message, fields...)
}

// checkScopes refuses a query if the caller can access none of the repositories and accounts that it names (Document B
// section 5.2).
func (s *Service) checkScopes(req *request, query policy.SearchQuery) *response {
	named, accessible := 0, 0
	for _, t := range query {
		switch t.Name {
		case "repo":
			named++
			for _, r := range s.world.repositories {
				if strings.EqualFold(r.fullName(), t.Value) && s.world.isVisible(r, req.caller) {
					accessible++
				}
			}
		case "user", "org":
			named++
			for _, a := range s.world.accounts {
				if strings.EqualFold(a.login, t.Value) {
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
func alternatives(query policy.SearchQuery) [][]policy.SearchToken {
	if !query.HasTerm() {
		return [][]policy.SearchToken{nil}
	}
	var all [][]policy.SearchToken
	var terms []policy.SearchToken
	negate := false
	for _, t := range query {
		switch {
		case t.Operator == "NOT":
			negate = true
			continue
		case t.Operator == "OR":
			all, terms = append(all, terms), nil
		case t.Term != "":
			t.Term, t.Negated = strings.ToLower(t.Term), t.Negated || negate
			terms = append(terms, t)
		}
		negate = false
	}
	all = append(all, terms)
	return slices.DeleteFunc(all, func(terms []policy.SearchToken) bool { return len(terms) == 0 })
}

// bestScore returns the highest score of the alternatives. It returns 0 if no alternative matches or if there are no
// properties.
func bestScore(alternatives [][]policy.SearchToken, in []property) float64 {
	best := 0.0
	for _, terms := range alternatives {
		best = max(best, score(terms, in))
	}
	return best
}

// score returns 0 if a term does not match. Otherwise it returns 1 plus the number of occurrences of the terms.
func score(terms []policy.SearchToken, in []property) float64 {
	if in == nil {
		return 0
	}
	sum := 1
	for _, t := range terms {
		n := occurrences(t.Term, in)
		if (n > 0) == t.Negated {
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
func searchedProperties(query policy.SearchQuery, d document) []property {
	in := d.properties
	scoped, inScope := false, false
	for _, t := range query {
		var matches bool
		switch t.Name {
		case "in":
			in = slices.DeleteFunc(slices.Clone(in), func(p property) bool { return !slices.Contains(strings.Split(t.Value, ","), p.name) })
			continue
		case "repo", "user", "org":
			matches = d.belongsTo(t)
			if !t.Negated {
				scoped, inScope = true, inScope || matches
				continue
			}
		case "language":
			matches = strings.EqualFold(d.language, t.Value)
		case "label":
			matches = slices.Contains(d.labels, t.Value)
		case "state":
			matches = d.state == t.Value
		case "author":
			matches = d.author == t.Value
		case "is", "type":
			matches = t.Value == d.kind || t.Value == d.state
		case "review-requested":
			matches = d.reviewer == t.Value
		default:
			continue
		}
		if matches == t.Negated {
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
func (d document) belongsTo(t policy.SearchToken) bool {
	if d.repository == nil {
		return false
	}
	name := d.repository.owner.login
	if t.Name == "repo" {
		name = d.repository.fullName()
	}
	return strings.EqualFold(name, t.Value)
}

// textMatches returns the positions of the terms in the searched properties (Document B section 2.1). Negated terms
// have no positions. The indices count characters of the fragment.
func textMatches(alternatives [][]policy.SearchToken, kind string, url any, in []property) []object {
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
func matchPositions(alternatives [][]policy.SearchToken, text []rune) [][2]int {
	var all [][2]int
	for _, t := range slices.Concat(alternatives...) {
		term := []rune(t.Term)
		for i := 0; !t.Negated && i+len(term) <= len(text); i++ {
			if slices.Equal(text[i:i+len(term)], term) {
				all = append(all, [2]int{i, i + len(term)})
			}
		}
	}
	slices.SortFunc(all, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(all)
}
