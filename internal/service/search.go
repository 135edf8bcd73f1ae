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
	maxSearchedFile = 384 << 10
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
	item       object
	url        string
	order      int64 // what sort orders by
}

type property struct{ name, value string }

// found is a document with how well it matches.
type found struct {
	document
	score float64
}

// search answers a query over documents: those that the caller may see, that
// match, best or newest first, one page of at most 1,000.
func (s *Service) search(req *request, kind string, documents []document) response {
	query := policy.ParseSearch(req.query.Get("q"))
	if problem := s.scopes(req, query); problem != nil {
		return *problem
	}
	var all []found
	for _, d := range documents {
		if d.repository != nil && !s.world.visible(d.repository, req.caller) {
			continue
		}
		if score := evaluate(query, d); score > 0 {
			all = append(all, found{d, score})
		}
	}
	s.sort(req, all)
	total := len(all)
	all = all[:min(total, maxResults)]
	page, perPage := pages(req.query)
	from := min((page-1)*perPage, len(all))
	to := min(from+perPage, len(all))
	items := make([]object, 0, to-from)
	for _, f := range all[from:to] {
		item := append(slices.Clone(f.item), field{"score", f.score})
		if s.wants(req, "text-match") {
			item = append(item, field{"text_matches", textMatches(query, kind, f.document)})
		}
		items = append(items, item)
	}
	return response{
		status: http.StatusOK, volatile: true, link: links(req, req.match.Path, len(all)),
		body: object{{"total_count", total}, {"incomplete_results", false}, {"items", items}},
	}
}

// scopes refuses a query that names something the caller cannot access, when
// nothing else is named (Document B section 5.2).
func (s *Service) scopes(req *request, query policy.SearchQuery) *response {
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
func (s *Service) sort(req *request, all []found) {
	chosen := slices.ContainsFunc(req.match.Operation.Query, func(p policy.Parameter) bool {
		return p.Name == "sort" && (len(p.Values) == 0 || slices.Contains(p.Values, req.query.Get("sort")))
	}) && req.query.Get("sort") != ""
	slices.SortStableFunc(all, func(a, b found) int {
		if !chosen {
			return cmp.Compare(b.score, a.score)
		}
		if req.query.Get("order") == "asc" {
			return cmp.Compare(a.order, b.order)
		}
		return cmp.Compare(b.order, a.order)
	})
}

// evaluate scores a document: 0 when it does not match. Terms are joined by
// AND unless OR stands between them, which binds less; NOT and a leading minus
// negate. Qualifiers restrict the whole query.
func evaluate(query policy.SearchQuery, d document) float64 {
	in := qualified(query, d)
	if in == nil {
		return 0
	}
	best, sum, matches, negate := 0.0, 0.0, true, false
	for _, t := range query {
		switch {
		case t.Operator == "OR":
			if matches {
				best = max(best, sum+1)
			}
			sum, matches = 0, true
		case t.Operator == "NOT":
			negate = true
			continue
		case t.Term != "":
			n := occurrences(t.Term, in)
			if (n > 0) == (negate || t.Negated) {
				matches = false
			}
			sum += float64(n)
		}
		negate = false
	}
	if matches {
		best = max(best, sum+1)
	}
	return best
}

func occurrences(term string, in []property) int {
	n := 0
	for _, p := range in {
		n += strings.Count(strings.ToLower(p.value), strings.ToLower(term))
	}
	return n
}

// qualified holds a document against the qualifiers, and returns the
// properties that are searched; nil when it does not qualify. Several repo:,
// user: and org: widen the scope, a qualifier that is not known restricts
// nothing.
func qualified(query policy.SearchQuery, d document) []property {
	in := d.properties
	scoped, inScope := false, false
	for _, t := range query {
		var holds bool
		switch t.Name {
		case "in":
			in = slices.DeleteFunc(slices.Clone(in), func(p property) bool { return !slices.Contains(strings.Split(t.Value, ","), p.name) })
			continue
		case "repo", "user", "org":
			holds = d.within(t)
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
func (d document) within(t policy.SearchToken) bool {
	if d.repository == nil {
		return false
	}
	name := d.repository.owner.login
	if t.Name == "repo" {
		name = d.repository.fullName()
	}
	return strings.EqualFold(name, t.Value)
}

// textMatches are the places where the terms stand (Document B section 2.1);
// indices count characters of the fragment.
func textMatches(query policy.SearchQuery, kind string, d document) []object {
	all := []object{}
	for _, p := range d.properties {
		var matches []object
		text := []rune(strings.ToLower(p.value))
		for _, t := range query {
			term := []rune(strings.ToLower(t.Term))
			for i := 0; len(term) > 0 && i+len(term) <= len(text); i++ {
				if slices.Equal(text[i:i+len(term)], term) {
					matches = append(matches, object{{"text", string([]rune(p.value)[i : i+len(term)])}, {"indices", [2]int{i, i + len(term)}}})
				}
			}
		}
		if matches != nil {
			all = append(all, object{{"object_url", d.url}, {"object_type", kind}, {"property", p.name}, {"fragment", p.value}, {"matches", matches}})
		}
	}
	return all
}
