package service

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

func TestSearchCountsMatches(t *testing.T) {
	runWithService(t, func(t *tester) {
		total := func(credential, target string) int {
			w := t.get(credential, target)
			if w.Code != 200 || w.Header().Get("ETag") == "" || w.Header().Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: got %d %v %s", target, w.Code, w.Header(), w.Body)
			}
			time.Sleep(7 * time.Second) // stays within 10 searches per minute
			return int(decode[jsonObject](t, w)["total_count"].(float64))
		}
		widgets := total("outsider", "/search/code?q=widget")
		for _, c := range []struct {
			credential, target string
			want               int
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
			if got := total(c.credential, c.target); got != c.want {
				t.Errorf("%s as %q: got %d, want %d", c.target, c.credential, got, c.want)
			}
		}
		if total("", "/search/issues?q=widget+state:open+label:bug")+total("", "/search/issues?q=widget+state:open+label:enhancement") != 16 {
			t.Error("state:open with both labels does not find 16 issues")
		}
		time.Sleep(time.Minute)
		if all := total("", "/search/issues?q=label:bug") + total("", "/search/issues?q=label:enhancement+OR"); all != 24 {
			t.Errorf("got %d issues without a term, want 24", all)
		}
		t.wantStatus(t.get("", "/search/topics?q=x"), 404)
	})
}

func TestSearchReturnsAtMost1000SortedResults(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.get("owner", "/search/commits?q=gear&sort=author-date&order=asc&per_page=100&page=11")
		if got := decode[jsonObject](t, w); len(got["items"].([]any)) != 0 || got["total_count"].(float64) < 1000 {
			t.Errorf("got a page beyond 1,000 results; total_count %v", got["total_count"])
		}
		w = t.get("owner", "/search/commits?q=gear&per_page=100&page=10")
		if got := decode[jsonObject](t, w); len(got["items"].([]any)) != 100 || strings.Contains(w.Header().Get("Link"), "next") {
			t.Errorf("got %d items on page 10 of 1,000 results and Link %s", len(got["items"].([]any)), w.Header().Get("Link"))
		}
		type result struct {
			Items []struct {
				SHA    string
				Commit struct {
					Author struct{ Date string }
				}
				Matches []struct {
					Property, Fragment string
					Matches            []struct {
						Text    string
						Indices [2]int
					}
				} `json:"text_matches"`
			}
		}
		got := decode[result](t, t.get("owner", "/search/commits?q=gear+repo:acme/widgets&sort=author-date&order=asc", "Accept: application/vnd.service.text-match+json"))
		for i, item := range got.Items {
			m := item.Matches[0]
			if m.Property != "message" || m.Fragment[m.Matches[0].Indices[0]:m.Matches[0].Indices[1]] != m.Matches[0].Text {
				t.Errorf("got text match %+v", m)
			}
			at, err := time.Parse("2006-01-02T15:04:05.000-07:00", item.Commit.Author.Date)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				if before, _ := time.Parse("2006-01-02T15:04:05.000-07:00", got.Items[i-1].Commit.Author.Date); before.After(at) {
					t.Errorf("item %d is not in order", i)
				}
			}
		}
		if len(got.Items) != 30 {
			t.Errorf("got %d items, want 30", len(got.Items))
		}
	})
}

func TestSearchRefusesInvalidQueries(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			credential, target string
			status             int
		}{
			{"owner", "/search/commits", 422},
			{"owner", "/search/commits?q=" + strings.Repeat("a", 256), 200},
			{"owner", "/search/commits?q=" + strings.Repeat("a", 257), 422},
			{"owner", "/search/commits?q=a" + strings.Repeat("+OR+a", 5), 200},
			{"owner", "/search/commits?q=a" + strings.Repeat("+OR+a", 6), 422},
			{"owner", "/search/code?q=repo:acme/widgets", 422},
			{"", "/search/code?q=widget", 401},
			{"outsider", "/search/code?q=key+repo:acme/secret", 422},
			{"outsider", "/search/code?q=key+user:nobody", 422},
			{"outsider", "/search/code?q=key+repo:acme/secret+repo:acme/widgets", 200},
		} {
			t.wantStatus(t.get(c.credential, c.target), c.status)
		}
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
			w := t.get("owner", "/search/code?q="+url.QueryEscape(q+" repo:acme/widgets -import -lever"), "Accept: application/vnd.service.text-match+json")
			got := ""
			for _, item := range decode[searchResult](t, w).Items {
				if item.Path == "gear/gear.go" {
					got = item.matches()
				}
				for _, m := range item.Matches {
					if m.URL != item.URL || m.Type != "FileContent" {
						t.Errorf("%s: got match %+v", q, m)
					}
				}
			}
			if got != want {
				t.Errorf("%s: got %q, want %q", q, got, want)
			}
			time.Sleep(7 * time.Second) // stays within 10 searches per minute
		}
	})
}

// searchResult contains the members of a search response that the tests check.
type searchResult struct {
	Total      int  `json:"total_count"`
	Incomplete bool `json:"incomplete_results"`
	Items      []searchItem
}

type searchItem struct {
	URL, Path string
	Number    int
	Matches   []struct {
		URL      string `json:"object_url"`
		Type     string `json:"object_type"`
		Property string
		Matches  []struct {
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
				if got := first(c.target + ignored); got != best {
					t.Errorf("%s%s: got %s first, want the best match %s", c.target, ignored, got, best)
				}
			}
			newest, oldest := first(c.target+c.sort), first(c.target+c.sort+"&order=asc")
			if newest == oldest || newest != first(c.target+c.sort+"&order=desc") {
				t.Errorf("%s%s: got newest %s and oldest %s", c.target, c.sort, newest, oldest)
			}
		}
	})
}

// TestIncompleteSearchesReturnAPart checks that the part keeps the order of the complete
// result.
func TestIncompleteSearchesReturnAPart(t *testing.T) {
	runWithService(t, func(t *tester) {
		const target = "/search/issues?q=widget&sort=created"
		complete := decode[searchResult](t, t.get("owner", target))
		t.s.setFaults(Faults{IncompleteEvery: 2})
		for i := range 4 {
			t.wantStatus(t.get("owner", "/search/issues?q="), 422) // an invalid search is not counted by the fault
			w := t.get("owner", target)
			got := decode[searchResult](t, w)
			want := len(complete.Items)
			if i%2 == 1 {
				want /= 2
			}
			if w.Code != 200 || got.Incomplete != (i%2 == 1) || len(got.Items) != want || got.Total != want {
				t.Errorf("search %d: got %d, %d of %d items, incomplete %v", i+1, w.Code, len(got.Items), got.Total, got.Incomplete)
			}
			for _, item := range got.Items {
				if !slices.ContainsFunc(complete.Items, func(other searchItem) bool { return other.URL == item.URL }) {
					t.Errorf("search %d found %s, which the complete search did not find", i+1, item.URL)
				}
			}
			if !slices.IsSortedFunc(got.Items, func(a, b searchItem) int { return a.Number - b.Number }) {
				t.Errorf("search %d is not in order", i+1)
			}
		}
		t.wantStatus(t.do("", http.MethodPut, "/_service/faults", `{"incomplete_every":1}`), 200)
		if got := decode[searchResult](t, t.get("owner", "/search/users?q=acme-owner")); !got.Incomplete || len(got.Items) != 1 {
			t.Errorf("a single result: got %+v", got)
		}
		if w := t.do("", http.MethodPut, "/_service/faults", `{"incomplete_every":-1}`); w.Code != 400 || !strings.Contains(w.Body.String(), "incomplete_every: -1: must be 0 to ") {
			t.Errorf("incomplete_every -1: got %d %s, want 400", w.Code, w.Body)
		}
	})
}

// TestSearchBuildsItemsOfThePageOnly bounds the allocations per commit.
func TestSearchBuildsItemsOfThePageOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		commits := 0
		for _, r := range t.s.world.repositories {
			commits += len(r.commits)
		}
		for _, target := range []string{"/search/commits?q=turnip", "/search/commits?q=the&per_page=1"} {
			if each := testing.AllocsPerRun(1, func() { t.get("owner", target) }) / float64(commits); each > 4 {
				t.Errorf("%s: got %v allocations per commit", target, each)
			}
		}
	})
}

func FuzzSearchQuery(f *testing.F) {
	for _, q := range []string{"widget", "a OR b", "NOT", "-", `"x y" in:path`, "OR OR", "repo:acme/widgets -user:x", "in:", "é"} {
		f.Add(q)
	}
	d := document{properties: []property{{"file", "a Widget é"}, {"path", "x/y"}}, language: "Go"}
	f.Fuzz(func(t *testing.T, q string) {
		query := policy.ParseSearch(q)
		terms, in := alternatives(query), searchedProperties(query, d)
		if score := bestScore(terms, in); score < 0 || len(terms) == 0 || in == nil && score > 0 {
			t.Errorf("query %q has score %v", q, score)
		}
		textMatches(terms, "FileContent", "", in)
	})
}

func TestSearchConsidersAtMost4000Repositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		base := t.s.world.repositories[0]
		for i := range maxSearchedRepositories + 1 {
			r := *base
			r.id, r.name, r.issues = 100_000+i, fmt.Sprint("copy-", i), nil
			r.files = []file{{path: "a.txt", content: "needle"}, {path: "b.txt", content: "needle"}}
			t.s.world.repositories = append(t.s.world.repositories, &r)
		}
		last := fmt.Sprint(base.owner.login, "/copy-", maxSearchedRepositories)
		for _, c := range []struct {
			query string
			want  int
		}{
			{"needle", 2 * (maxSearchedRepositories - 1)}, // the first is acme/widgets, which does not contain the word
			{"needle+repo:" + last, 2},
		} {
			w := t.get("outsider", "/search/code?q="+c.query)
			if got := decode[jsonObject](t, w)["total_count"]; got != float64(c.want) {
				t.Errorf("%s: got %v, want %d", c.query, got, c.want)
			}
		}
	})
}
