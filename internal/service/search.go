package service

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

const (
	// maxResults is the most a search returns (Document B section 8.2).
	maxResults = 1000
	// maxSearchedFile is from which size files are not searched.
	maxSearchedFileSize = 384 << 10
)

// document is something that a search can find: its searchable properties, and
// what qualifiers ask about.
type document struct {
	properties []property
	repository *repository
	language   string
	labels     []string
	state      string
	author     string
	order      int64 // what sort orders by
	// item makes what is shown, so that what is not found, or on another page,
	// costs little. Its member url tells the document.
	item func() object
}

type property struct{ name, value string }

// found is a document, with those properties that were searched, and how well it
// matches.
type searchHit struct {
	document
	score float64
}

// search answers a query over documents: those that the caller may see, that
// match, best or newest first, one page of at most 1,000.
func (s *Service) search(req *request, kind string, documents []document) response {
	query := policy.ParseSearch(req.query.Get("q"))
	if problem := s.checkScopes(req, query); problem != nil {
		return *problem
	}
	terms := alternatives(query)
	var all []searchHit
	for _, d := range documents {
		if d.repository != nil && !s.world.visible(d.repository, req.caller) {
			continue
		}
		d.properties = searchedProperties(query, d)
		if score := bestScore(terms, d.properties); score > 0 {
			all = append(all, searchHit{d, score})
		}
	}
	incomplete := s.faulty.turn(&s.faulty.searches, req.faults.IncompleteEvery)
	if incomplete {
		all = all[:(len(all)+1)/2] // what the time sufficed for
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
		status: http.StatusOK, volatile: true, link: links(req, req.match.Path, len(all)),
		body: object{{"total_count", total}, {"incomplete_results", incomplete}, {"items", items}},
	}
}

// scopes refuses a query that names something the caller cannot access, when
// nothing else is named (Document B section 5.2).
func (s *Service) checkScopes(req *request, query policy.SearchQuery) *response {
	named, accessible := 0, 0
	for _, t := range query {
		switch t.Name {
		case "repo":
			named++
			for _, r := range s.world.repositories {
				if strings.EqualFold(r.fullName(), t.Value) && s.world.visible(r, req.caller) {
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
	p := s.problem(http.StatusUnprocessableEntity, "Validation Failed: the listed users and repositories cannot be searched", problemField{"Search", "q", "invalid"})
	return &p
}

// sort orders by what sort asks for, else best match first.
func (s *Service) sort(req *request, all []searchHit) {
	chosen := slices.ContainsFunc(req.match.Operation.Query, func(p policy.Parameter) bool {
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

// alternatives are the terms of a query, in lower case, parted where OR stands: it
// binds less than AND, which stands between terms that nothing parts. NOT and a
// leading minus negate. What has no term, as on one side of an OR without an operand
// or with a qualifier only, is no alternative: qualifiers restrict the whole query.
// A query without any term has one alternative, which everything matches.
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

// evaluate scores the properties that are searched: that of the alternative which
// matches best, 0 when none does or there are no properties.
func bestScore(alternatives [][]policy.SearchToken, in []property) float64 {
	best := 0.0
	for _, terms := range alternatives {
		best = max(best, score(terms, in))
	}
	return best
}

// score is 0 unless all terms match; else it grows with how often they stand there.
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

// occurrences counts a term, which is in lower case.
func occurrences(term string, in []property) int {
	n := 0
	for _, p := range in {
		n += strings.Count(strings.ToLower(p.value), term)
	}
	return n
}

// qualified holds a document against the qualifiers, and returns the
// properties that are searched; nil when it does not qualify. Several repo:,
// user: and org: widen the scope, a qualifier that is not known restricts
// nothing.
func searchedProperties(query policy.SearchQuery, d document) []property {
	in := d.properties
	scoped, inScope := false, false
	for _, t := range query {
		var holds bool
		switch t.Name {
		case "in":
			in = slices.DeleteFunc(slices.Clone(in), func(p property) bool { return !slices.Contains(strings.Split(t.Value, ","), p.name) })
			continue
		case "repo", "user", "org":
			holds = d.belongsTo(t)
			if !t.Negated {
				scoped, inScope = true, inScope || holds
				continue
			}
		case "language":
			holds = strings.EqualFold(d.language, t.Value)
		case "label":
			holds = slices.Contains(d.labels, t.Value)
		case "state":
			holds = d.state == t.Value
		case "author":
			holds = d.author == t.Value
		default:
			continue
		}
		if holds == t.Negated {
			return nil
		}
	}
	if scoped && !inScope || len(in) == 0 {
		return nil
	}
	return in
}

// within reports whether a document belongs to what repo:, user: or org: names.
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

// textMatches are the places where terms that are not negated stand in the properties
// that are searched (Document B section 2.1); indices count characters of the fragment.
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

// places are from where to where terms stand in a text, which is in lower case: each
// place once, by its first index.
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
