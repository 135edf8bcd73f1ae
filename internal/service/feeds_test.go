package service

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func basicAuth(user, token string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token))
}

// TestFeedIndexDependsOnTheCaller covers Document B sections 2.5 and 5.4.
func TestFeedIndexDependsOnTheCaller(t *testing.T) {
	const base = "http://api.test/feeds/"
	public := jsonObject{"timeline_url": base + "timeline", "user_url": base + "users/{user}", "security_advisories_url": base + "security-advisories"}
	of := func(user string, private ...string) jsonObject {
		o := maps.Clone(public)
		o["current_user_public_url"] = base + "users/" + user
		if private == nil {
			return o
		}
		own, token := base+"users/"+user, "?token=feed-"+user
		o["current_user_url"], o["current_user_actor_url"] = own+"/private"+token, own+"/actor"+token
		first, all := "", []any{}
		for _, organization := range private[1:] {
			all = append(all, own+"/organizations/"+organization+token)
			first = all[0].(string)
		}
		o["current_user_organization_url"], o["current_user_organization_urls"] = first, all
		return o
	}
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			name, credential string
			fields           []string
			want             jsonObject
		}{
			{"no credential", "", nil, public},
			{"user with token", "owner", nil, of("acme-owner")},
			{"installation", "app", nil, public},
			{"OAuth app with its secret", "oauth", nil, public},
			{"user with basic authentication", "basic user", nil, of("acme-owner", "and", "acme", "acme-labs")},
			{"user without organization", "", []string{basicAuth("outsider", "tok-outsider")}, of("outsider", "and")},
		} {
			w := t.get(c.credential, "/feeds", c.fields...)
			t.wantStatus(w, 200)
			got := decode[jsonObject](t, w)
			links := got["_links"].(jsonObject)
			delete(got, "_links")
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: want (-), got (+):\n%s", c.name, diff)
			}
			for name, url := range c.want { // _links contains each URL
				link := links[strings.NewReplacer("_urls", "s", "_url", "").Replace(name)]
				if urls, ok := url.([]any); ok {
					if len(link.([]any)) != len(urls) {
						t.Errorf("%s: got %d links of %s", c.name, len(link.([]any)), name)
					}
					continue
				}
				if diff := cmp.Diff(any(jsonObject{"href": url, "type": "application/atom+xml"}), link); diff != "" {
					t.Errorf("%s, %s: want (-), got (+):\n%s", c.name, name, diff)
				}
			}
			if len(links) != len(c.want) {
				t.Errorf("%s: got %d links of %d URLs", c.name, len(links), len(c.want))
			}
		}
	})
}

// TestFeedsHaveTheSameContentInJSONAndAtom reads every URL of the feed index in both
// formats.
func TestFeedsHaveTheSameContentInJSONAndAtom(t *testing.T) {
	runWithService(t, func(t *tester) {
		index := decode[jsonObject](t, t.get("basic user", "/feeds"))
		delete(index, "_links")
		delete(index, "current_user_organization_urls") // the first is current_user_organization_url
		for _, name := range slices.Sorted(maps.Keys(index)) {
			target := strings.NewReplacer("http://api.test", "", "{user}", "acme-owner").Replace(index[name].(string))
			plain, atom := t.get("", target), t.get("", target, "Accept: text/html;q=0.1, Application/Atom+XML; charset=utf-8")
			t.wantStatus(plain, 200)
			t.wantStatus(atom, 200)
			if kind := atom.Header().Get("Content-Type"); kind != "application/atom+xml; charset=utf-8" || plain.Header().Get("Content-Type") != "application/json; charset=utf-8" {
				t.Errorf("%s: got Content-Type %s", target, kind)
			}
			got, want := readAtom(t, atom.Body.Bytes()), feedPage{}
			if err := json.Unmarshal(plain.Body.Bytes(), &want); err != nil {
				t.Fatal(err)
			}
			got.XMLName = want.XMLName
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: JSON (-), Atom (+):\n%s", target, diff)
			}
			if strings.Contains(plain.Body.String(), "token") || len(got.Entries) == 0 {
				t.Errorf("%s: a feed without entries or with a token: %s", target, plain.Body)
			}
			if t.get("", target, "Accept: */*").Body.String() != plain.Body.String() {
				t.Errorf("%s: Accept: */* gets a different body", target)
			}
		}
	})
}

// readAtom decodes a feed and checks the requirements of RFC 4287. Sections 4.1.1 and
// 4.1.2 require some members. Section 4.2.6 requires absolute and unique IDs.
func readAtom(t *tester, text []byte) feedPage {
	t.Helper()
	var page feedPage
	if err := xml.Unmarshal(text, &page); err != nil {
		t.Fatalf("decode feed %s: %v", text, err)
	}
	ids := map[string]bool{}
	check := func(id, title, updated string, link pageLink) {
		if _, err := time.Parse(time.RFC3339, updated); err != nil || !strings.HasPrefix(id, "tag:") || ids[id] || title == "" || !strings.HasPrefix(link.Href, "http://api.test/") {
			t.Errorf("invalid feed or entry: id %q, title %q, updated %q, link %v", id, title, updated, link)
		}
		ids[id] = true
	}
	check(page.ID, page.Title, page.Updated, page.Link)
	for i, e := range page.Entries {
		check(e.ID, e.Title, e.Updated, e.Link)
		if e.Author.Name == "" || e.Updated > page.Updated || i > 0 && e.Updated > page.Entries[i-1].Updated {
			t.Errorf("got entry %v in a feed updated at %s", e, page.Updated)
		}
	}
	return page
}

func TestPrivateFeedsRequireFeedTokenOrBasicAuthentication(t *testing.T) {
	const own, inAcme = "/feeds/users/acme-owner/private", "/feeds/users/acme-owner/organizations/acme"
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			name, credential, target string
			status                   int
			control                  string
		}{
			{"own feed token", "", own + "?token=feed-acme-owner", 200, "private"},
			{"own feed token, sent by another user", "outsider", own + "?token=feed-acme-owner", 200, "private"},
			{"basic authentication", "basic user", own, 200, "private"},
			{"feed token of another user", "", own + "?token=feed-outsider", 404, "no-cache"},
			{"feed token of another user, with basic authentication", "basic user", own + "?token=feed-outsider", 404, "no-cache"},
			{"API token as feed token", "", own + "?token=tok-owner", 404, "no-cache"},
			{"no credential", "", own, 401, "no-cache"},
			{"API token only", "owner", own, 401, "no-cache"},
			{"feed of another user, with basic authentication", "basic user", "/feeds/users/outsider/private", 404, "no-cache"},
			{"app with basic authentication", "oauth", own, 404, "no-cache"},
			{"organization of the user", "", inAcme + "?token=feed-acme-owner", 200, "private"},
			{"organization of the user, no credential", "", inAcme, 401, "no-cache"},
			{"organization without the user", "", "/feeds/users/outsider/organizations/acme?token=feed-outsider", 404, "no-cache"},
			{"organization without the user, no credential", "", "/feeds/users/outsider/organizations/acme", 401, "no-cache"},
			{"user account as organization", "basic user", "/feeds/users/acme-owner/organizations/outsider", 404, "no-cache"},
			{"unknown organization", "basic user", "/feeds/users/acme-owner/organizations/none", 404, "no-cache"},
			{"unknown user", "", "/feeds/users/none/private", 404, "no-cache"},
			{"feed of an organization", "", "/feeds/users/acme", 404, "no-cache"},
			{"unknown feed", "owner", "/feeds/users", 404, "no-cache"},
			{"public feed", "", "/feeds/users/acme-owner", 200, "public"},
			{"public feed, requested by a user", "owner", "/feeds/users/acme-owner", 200, "private"},
		} {
			w := t.get(c.credential, c.target)
			if w.Code != c.status || !strings.HasPrefix(w.Header().Get("Cache-Control"), c.control) {
				t.Errorf("%s, %s: got %d %s %s, want %d %s", c.name, c.target, w.Code, w.Header().Get("Cache-Control"), w.Body, c.status, c.control)
			}
		}
		t.wantStatus(t.do("owner", http.MethodPost, "/feeds/timeline", "{}"), 404)
		head, get := t.do("", http.MethodHead, "/feeds/timeline", ""), t.get("", "/feeds/timeline")
		if head.Code != 200 || head.Header().Get("ETag") != get.Header().Get("ETag") {
			t.Errorf("HEAD: got %d %v", head.Code, head.Header())
		}
		t.wantStatus(t.get("", "/feeds/timeline", "If-None-Match: "+get.Header().Get("ETag")), 304)
	})
}

func TestActionsAppearInTheirFeedsOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		head := t.s.world.repositories[1].head()
		t.wantStatus(t.do("member", http.MethodPost, "/repos/acme/secret/git/tags", `{"tag":"s\ufffe<1>","message":"m","object":"`+head+`","type":"commit"}`), 201)
		time.Sleep(time.Minute)
		t.wantStatus(t.do("member", http.MethodPut, "/repos/acme/monolith/subscription", `{"subscribed":true}`), 200)
		t.wantStatus(t.do("outsider", http.MethodPut, "/repos/acme/empty/subscription", `{"ignored":true}`), 200)
		const watched, tagged = "Member of Acme watches acme/monolith", "Member of Acme tagged s\uFFFD<1> of acme/secret"
		for target, want := range map[string][]string{
			"/feeds/timeline":          {watched},
			"/feeds/users/acme-member": {watched},
			"/feeds/users/acme-member/private?token=feed-acme-member":            {watched, tagged},
			"/feeds/users/acme-member/actor?token=feed-acme-member":              {watched, tagged},
			"/feeds/users/acme-member/organizations/acme?token=feed-acme-member": {watched, tagged},
			"/feeds/users/acme-owner/private?token=feed-acme-owner":              {watched, tagged},
			"/feeds/users/acme-owner/actor?token=feed-acme-owner":                nil,
			"/feeds/users/outsider":                                              nil,
			"/feeds/users/outsider/private?token=feed-outsider":                  nil,
			"/feeds/security-advisories":                                         nil,
		} {
			page := readAtom(t, t.get("", target, "Accept: application/atom+xml").Body.Bytes())
			var got []string
			for _, e := range page.Entries {
				if strings.HasPrefix(e.Title, "Member of Acme watches") || strings.Contains(e.Title, "tagged s") || strings.Contains(e.Title, "Outsider") {
					got = append(got, e.Title)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: want (-), got (+):\n%s", target, diff)
			}
			public := !strings.Contains(target, "token")
			if text := string(encode(page)); public && strings.Contains(text, "secret") || len(page.Entries) > feedSize {
				t.Errorf("%s: a public feed names acme/secret, or a feed is too long: %s", target, text)
			}
		}
		if page := decode[feedPage](t, t.get("", "/feeds/users/outsider")); len(page.Entries) != 0 || page.Updated != "1970-01-01T00:00:00Z" {
			t.Errorf("got feed %v, want an empty feed", page)
		}
	})
}

func TestFeedEntriesDescribeTheirEvents(t *testing.T) {
	runWithService(t, func(t *tester) {
		advisories := decode[feedPage](t, t.get("", "/feeds/security-advisories"))
		want := pageEntry{
			ID: "tag:example.com,2022:/acme/widgets/security/advisories/adv-1001-1", Title: "Acme announced: The gear turns without its key in acme/widgets",
			Updated: timestamp(time.Now().AddDate(0, 0, -10)), Author: pageAuthor{"Acme"},
			Link: pageLink{"alternate", "text/html", "http://api.test/acme/widgets/security/advisories/adv-1001-1"},
		}
		if diff := cmp.Diff(want, advisories.Entries[0]); diff != "" || len(advisories.Entries) != 2 {
			t.Errorf("got %d advisories; want (-), got (+):\n%s", len(advisories.Entries), diff)
		}
		r := t.s.world.repositories[3]
		last := r.commits[len(r.commits)-1]
		timeline := decode[feedPage](t, t.get("", "/feeds/timeline"))
		want = pageEntry{
			ID: "tag:example.com,2022:/acme/monolith/commit/" + last.sha, Title: last.author.name + ` committed "` + last.message + `" to acme/monolith`,
			Updated: timestamp(last.at), Author: pageAuthor{last.author.name}, Link: pageLink{"alternate", "text/html", "http://api.test/acme/monolith/commit/" + last.sha},
		}
		if !slices.Contains(timeline.Entries, want) || len(timeline.Entries) != feedSize {
			t.Errorf("entry %v is missing in %v", want, timeline.Entries)
		}
		oldest := timeline.Entries[feedSize-1].Updated
		for _, c := range r.commits[len(r.commits)-10:] {
			if timestamp(c.at) > oldest && !strings.Contains(string(encode(timeline)), c.sha) {
				t.Errorf("the feed lacks commit %s of %s", c.sha, timestamp(c.at))
			}
		}
		own := decode[feedPage](t, t.get("", "/feeds/users/watcher-01"))
		if len(own.Entries) != 1 || own.Entries[0].Title != "Watcher 1 watches acme/widgets" || own.Title != "Public timeline of watcher-01" {
			t.Errorf("got feed %v", own)
		}
	})
}
