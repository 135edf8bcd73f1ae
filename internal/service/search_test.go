package service

import (
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

func TestSearch(t *testing.T) {
	run(t, func(t *tester) {
		total := func(who, target string) int {
			w := t.get(who, target)
			if w.Code != 200 || w.Header().Get("ETag") == "" || w.Header().Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: %d %v %s", target, w.Code, w.Header(), w.Body)
			}
			time.Sleep(7 * time.Second) // within ten a minute
			return int(decode[jsonObject](t, w)["total_count"].(float64))
		}
		widgets := total("outsider", "/search/code?q=widget")
		for _, c := range []struct {
			who, target string
			want        int
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
			{"member", "/search/code?q=svg+in:path", 0}, // 400 KB are not searched
			{"", "/search/repositories?q=widgets", 1},
			{"", "/search/users?q=acme", 4},
		} {
			if got := total(c.who, c.target); got != c.want {
				t.Errorf("%s as %q: %d, want %d", c.target, c.who, got, c.want)
			}
		}
		if total("", "/search/issues?q=widget+state:open+label:bug")+total("", "/search/issues?q=widget+state:open+label:enhancement") != 16 {
			t.Error("state and label")
		}
		t.wantStatus(t.get("", "/search/topics?q=x"), 404)
	})
}

func TestSearchResults(t *testing.T) {
	run(t, func(t *tester) {
		w := t.get("owner", "/search/commits?q=gear&sort=author-date&order=asc&per_page=100&page=11")
		if got := decode[jsonObject](t, w); len(got["items"].([]any)) != 0 || got["total_count"].(float64) < 1000 {
			t.Errorf("beyond 1,000 results: %v", got["total_count"])
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
				t.Errorf("%+v", m)
			}
			at, err := time.Parse("2006-01-02T15:04:05.000-07:00", item.Commit.Author.Date)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				if before, _ := time.Parse("2006-01-02T15:04:05.000-07:00", got.Items[i-1].Commit.Author.Date); before.After(at) {
					t.Errorf("item %d is out of order", i)
				}
			}
		}
		if len(got.Items) != 30 {
			t.Errorf("%d items", len(got.Items))
		}
	})
}

func TestSearchRules(t *testing.T) {
	run(t, func(t *tester) {
		for _, c := range []struct {
			who, target string
			status      int
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
			t.wantStatus(t.get(c.who, c.target), c.status)
		}
	})
}

func FuzzEvaluate(f *testing.F) {
	for _, q := range []string{"widget", "a OR b", "NOT", "-", `"x y" in:path`, "OR OR", "repo:acme/widgets -user:x", "in:", "é"} {
		f.Add(q)
	}
	d := document{properties: []property{{"file", "a Widget é"}, {"path", "x/y"}}, language: "Go"}
	f.Fuzz(func(t *testing.T, q string) {
		query := policy.ParseSearch(q)
		if score := evaluate(query, d); score < 0 {
			t.Errorf("%q scores %v", q, score)
		}
		textMatches(query, "FileContent", d)
	})
}
