package service

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

func TestSearchCountsMatches(t *testing.T) {
	runWithService(t, func(t *tester) {
		total := func(as, target string) int {
			w := t.call(as, "GET "+target, 200, "ETag: W/...\nCache-Control: no-cache")
			time.Sleep(7 * time.Second) // stays within 10 searches per minute
			return int(decode[jsonObject](t, w)["total_count"].(float64))
		}
		widgets := total("outsider", "/search/code?q=widget")
		for _, c := range []struct {
			as, target string
			want       int
		}{
			{"member", "/search/code?q=widget", widgets + 1}, // and acme/secret
			{"member", "/search/code?q=widget+repo:acme/secret", 1},
			{"member", "/search/code?q=widget+language:Markdown", 1},
			{"member", "/search/code?q=pull+language:python", 1},
			{"member", "/search/code?q=turn+NOT+import+repo:acme/widgets", 1},
			{"member", "/search/code?q=turn+-import+repo:acme/widgets", 1},
			{"member", "/search/code?q=vault+OR+pull", 2},
			{"member", "/search/code?q=gear+in:path", 2},
			{"member", `/search/code?q="the+lever"`, 1},
			{"member", "/search/code?q=svg+in:path", 0}, // files of 400 KB are not searched
			{"member", "/search/code?q=vault+OR", 1},    // a part without terms is ignored
			{"member", "/search/code?q=OR+vault", 1},
			{"member", "/search/code?q=vault+OR+OR+pull", 2},
			{"member", "/search/code?q=zzzz+OR", 0},
			{"member", `/search/code?q=zzzz+OR+""`, 0},
			{"member", "/search/code?q=zzzz+OR+NOT", 0},
			{"member", "/search/code?q=AND+vault+AND", 1},
			{"member", "/search/code?q=zzzz+OR+language:python", 0},
			{"member", "/search/code?q=language:python+OR+pull", 1},
			{"member", "/search/code?q=zzzz+OR+-widget+language:go", 1}, // a negated term is a term
			{"", "/search/repositories?q=widgets", 1},
			{"", "/search/users?q=acme", 4},
		} {
			t.wantEqual(c.target, c.want, total(c.as, c.target))
		}
		t.wantEqual("open issues with both labels", 16,
			total("", "/search/issues?q=widget+state:open+label:bug")+total("", "/search/issues?q=widget+state:open+label:enhancement"))
		t.wantEqual("issues without a term", 24, total("", "/search/issues?q=label:bug")+total("", "/search/issues?q=label:enhancement+OR"))
		t.call("", "GET /search/nothing?q=x", 404, "")
	})
}

func TestSearchQualifiersRestrictTheScope(t *testing.T) {
	runWithService(t, func(t *tester) {
		total := func(q string) any {
			return decode[jsonObject](t, t.get("owner", "/search/commits?q="+q))["total_count"]
		}
		all, org, widgets := total("gear"), total("gear+org:acme"), total("gear+repo:acme/widgets")
		failIf(t, all != org || all == widgets ||
			total("gear+-repo:acme/monolith") != total("gear+repo:acme/widgets+repo:acme/secret") || total("gear+-org:acme") != 0.0, "got totals: all %v, acme %v, widgets %v", all, org, widgets)
	})
}

func TestSearchReturnsAtMost1000SortedResults(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.call("owner", "GET /search/commits?q=gear&sort=author-date&order=asc&per_page=100&page=11", 200, `{"items":[]}`)
		got := decode[searchResult](t, w)
		failIf(t, got.Total < 1000, "got total_count %d", got.Total)
		w = t.call("owner", "GET /search/commits?q=gear&per_page=100&page=10", 200, `{"items":"#100"}`)
		link := w.Header().Get("Link")
		failIf(t, strings.Contains(link, "next"), "the last page of 1,000 results has Link %s", link)
		w = t.call("owner\nAccept: application/vnd.service.text-match+json",
			"GET /search/commits?q=gear+repo:acme/widgets&sort=author-date&order=asc", 200, `{"items":"#30"}`)
		var before time.Time
		for i, item := range decode[searchResult](t, w).Items {
			m := item.Matches[0]
			failIf(t, m.Property != "message" || m.Fragment[m.Matches[0].Indices[0]:m.Matches[0].Indices[1]] != m.Matches[0].Text, "got text match %+v", m)
			at, err := time.Parse("2006-01-02T15:04:05.000-07:00", item.Commit.Author.Date)
			failIf(t, err != nil || before.After(at), "item %d is not in order: %v, %v", i, at, err)
			before = at
		}
	})
}

func TestSearchRefusesInvalidQueries(t *testing.T) {
	runCalls(t, []call{
		{"owner", "GET /search/commits", 422, ""},
		{"owner", "GET /search/commits?q=" + strings.Repeat("a", 256), 200, ""},
		{"owner", "GET /search/commits?q=" + strings.Repeat("a", 257), 422, ""},
		{"owner", "GET /search/commits?q=a" + strings.Repeat("+OR+a", 5), 200, ""},
		{"owner", "GET /search/commits?q=a" + strings.Repeat("+OR+a", 6), 422, ""},
		{"owner", "GET /search/code?q=repo:acme/widgets", 422, ""},
		{"", "GET /search/code?q=widget", 401, ""},
		{"outsider", "GET /search/code?q=key+repo:acme/secret", 422, ""},
		{"outsider", "GET /search/code?q=key+user:nobody", 422, ""},
		{"outsider", "GET /search/code?q=key+repo:acme/secret+repo:acme/widgets", 200, ""},
	})
}

// TestTextMatchesListProperties checks the matches in one file. The expected string lists
// each property and its matches with their indices.
func TestTextMatchesListProperties(t *testing.T) {
	runWithService(t, func(t *tester) {
		for q, want := range map[string]string{
			"turns":                           "file turns[22 27]",
			"TURN gear":                       "file gear[8 12] Turn[17 21] turn[22 26] gear[32 36] Turn[60 64]; path gear[0 4] gear[5 9]",
			"gear in:path turn -nothing":      "", // the path does not contain "turn"
			"gear in:path":                    "path gear[0 4] gear[5 9]",
			"turns in:file":                   "file turns[22 27]",
			"turns in:file,path":              "file turns[22 27]",
			"turns OR -gear":                  "file turns[22 27]",
			"turns NOT lever":                 "file turns[22 27]",
			"gear.go Gear.GO gear.go in:path": "path gear.go[5 12]",
			"go go gear.go in:path":           "path gear.go[5 12] go[10 12]",
			"zzzz OR turns":                   "file turns[22 27]",
		} {
			w := t.get("owner\nAccept: application/vnd.service.text-match+json", "/search/code?q="+url.QueryEscape(q+" repo:acme/widgets -import -lever"))
			got := ""
			for _, item := range decode[searchResult](t, w).Items {
				if item.Path == "gear/gear.go" {
					got = item.matches()
				}
				for _, m := range item.Matches {
					failIf(t, m.URL != item.URL || m.Type != "FileContent", "%s: got match %+v", q, m)
				}
			}
			t.wantEqual(q, want, got)
			time.Sleep(7 * time.Second) // stays within 10 searches per minute
		}
	})
}

// searchResult contains the members of a search response that the tests check.
type searchResult struct {
	Total int `json:"total_count"`
	Items []searchItem
}

type searchItem struct {
	URL, Path string
	Number    int
	Commit    struct{ Author struct{ Date string } }
	Matches   []struct {
		URL                string `json:"object_url"`
		Type               string `json:"object_type"`
		Property, Fragment string
		Matches            []struct {
			Text    string
			Indices [2]int
		}
	} `json:"text_matches"`
}

// matches returns the text matches of an item on one line.
func (i searchItem) matches() string {
	var all []string
	for _, m := range i.Matches {
		line := m.Property
		for _, at := range m.Matches {
			line += fmt.Sprint(" ", at.Text, at.Indices)
		}
		all = append(all, line)
	}
	return strings.Join(all, "; ")
}

// TestSearchSortsByValidKeysOnly checks that order is ignored without a valid sort key.
func TestSearchSortsByValidKeysOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		secret := t.s.world.repositoryNamed("acme/secret")
		secret.pushed = secret.pushed.AddDate(0, 0, -1) // before widgets
		first := func(target string) string {
			item := decode[searchResult](t, t.get("owner", target)).Items[0]
			time.Sleep(7 * time.Second) // stays within 10 searches per minute
			return item.URL
		}
		for _, c := range []struct{ target, sort, otherSort string }{
			{"/search/issues?q=the", "&sort=created", ""},
			{"/search/commits?q=the", "&sort=author-date", "&sort=created"},
			{"/search/code?q=widget", "&sort=indexed", "&sort=created"},
		} {
			best := first(c.target)
			for _, ignored := range []string{"&order=asc", "&order=desc", c.otherSort, "&sort=&order=asc"} {
				t.wantEqual(c.target+ignored, best, first(c.target+ignored))
			}
			newest, oldest := first(c.target+c.sort), first(c.target+c.sort+"&order=asc")
			failIf(t, newest == oldest || newest != first(c.target+c.sort+"&order=desc"), "%s%s: got newest %s and oldest %s", c.target, c.sort, newest, oldest)
		}
	})
}

// TestIncompleteSearchesReturnAPart checks that the part keeps the order of the complete
// result.
func TestIncompleteSearchesReturnAPart(t *testing.T) {
	runWithService(t, func(t *tester) {
		const target = "/search/issues?q=widget&sort=created"
		complete := decode[searchResult](t, t.get("owner", target))
		t.s.quirks.Put(quirk.Set{IncompleteEvery: 2})
		for i := range 4 {
			t.call("owner", "GET /search/issues?q=", 422, "") // an invalid search is not counted by the quirk
			want := len(complete.Items) / (1 + i%2)
			got := decode[searchResult](t, t.call("owner", "GET "+target, 200,
				fmt.Sprintf(`{"incomplete_results":%t,"total_count":%d,"items":"#%d"}`, i%2 == 1, want, want)))
			for _, item := range got.Items {
				failIf(t, !slices.ContainsFunc(complete.Items, func(other searchItem) bool { return other.URL == item.URL }), "search %d found %s, which the complete search did not find", i+1, item.URL)
			}
			failIf(t, !slices.IsSortedFunc(got.Items, func(a, b searchItem) int { return a.Number - b.Number }), "search %d is not in order", i+1)
		}
		t.calls([]call{
			{"", `PUT /_service/quirks {"incomplete_every":1}`, 200, ""},
			{"owner", "GET /search/users?q=acme-owner", 200, `{"incomplete_results":true,"items":"#1"}`}, // a single result
			{"", `PUT /_service/quirks {"incomplete_every":-1}`, 400, "incomplete_every: -1: must be 0 to "},
		})
	})
}

// TestSearchBuildsItemsOfThePageOnly bounds the allocations per commit.
func TestSearchBuildsItemsOfThePageOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		commits := 0
		for _, r := range t.s.world.repositories {
			commits += len(r.history())
		}
		for _, target := range []string{"/search/commits?q=turnip", "/search/commits?q=the&per_page=1"} {
			each := testing.AllocsPerRun(1, func() { t.get("owner", target) }) / float64(commits)
			failIf(t, each > 4, "%s: got %v allocations per commit", target, each)
		}
	})
}

func FuzzSearchQuery(f *testing.F) {
	for _, q := range []string{"widget", "a OR b", "NOT", "-", `"x y" in:path`, "OR OR", "repo:acme/widgets -user:x", "in:", "é", "std::vector https://h a:/ -", `a"b c"d "" x:"y z" "AND`, "a\u00a0b\vc"} {
		f.Add(q)
	}
	d := document{properties: []property{{"file", "a Widget é"}, {"path", "x/y"}}, language: "Go"}
	f.Fuzz(func(t *testing.T, q string) {
		query := parseQuery(q)
		gateway := policy.ParseSearch(q) // an independent parser
		stopIf(t, len(query.tokens) != len(gateway) || query.hasTerm != gateway.HasTerm() || query.operators != gateway.Operators() ||
			max(0, query.length) != gateway.Length(), "query %q is %+v here, but %+v for the gateway", q, query, gateway)
		for i, own := range query.tokens {
			g := gateway[i]
			failIf(t, own.term != g.Term || own.name != g.Name || own.value != g.Value || own.negated != g.Negated, "query %q has the token %+v here, but %+v for the gateway", q, own, g)
		}
		terms, in := alternatives(query), searchedProperties(query, d)
		score := bestScore(terms, in)
		failIf(t, score < 0 || len(terms) == 0 || in == nil && score > 0, "query %q has score %v", q, score)
		textMatches(terms, "FileContent", "", in)
	})
}

func TestSearchConsidersAtMost4000Repositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		base, g := t.s.world.repositories[0], newGit()
		g.grow(commit{sha: "needle", tree: g.treeOf(map[string]string{"a.txt": "needle", "b.txt": "needle"}), author: base.owner})
		for i := range maxSearchedRepositories + 1 {
			r := *base
			r.id, r.name = 100_000+i, fmt.Sprint("copy-", i)
			r.git = g
			t.s.world.repositories = append(t.s.world.repositories, &r)
		}
		last := fmt.Sprint(base.owner.login, "/copy-", maxSearchedRepositories)
		// acme/widgets, acme/monolith, acme-owner/tools and the spare repositories precede the copies and do not contain the word.
		t.call("outsider", "GET /search/code?q=needle", 200, fmt.Sprintf(`{"total_count":%d}`, 2*(maxSearchedRepositories-3-spare)))
		t.call("outsider", "GET /search/code?q=needle+repo:"+last, 200, `{"total_count":2}`)
	})
}
