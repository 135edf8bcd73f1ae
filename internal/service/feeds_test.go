package service

import (
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

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
			as   string
			want jsonObject
		}{
			{"", public},
			{"owner", of("acme-owner")},
			{"app", public},
			{"oauth", public},
			{"basic user", of("acme-owner", "and", "acme", "acme-labs")},
			{"basic outsider", of("outsider", "and")}, // in no organization
		} {
			got := decode[jsonObject](t, t.call(c.as, "GET /feeds", 200, ""))
			links := got["_links"].(jsonObject)
			delete(got, "_links")
			t.wantEqual(c.as, c.want, got)
			for name, url := range c.want { // _links contains each URL
				link := links[strings.NewReplacer("_urls", "s", "_url", "").Replace(name)]
				if urls, ok := url.([]any); ok {
					if len(link.([]any)) != len(urls) {
						t.Errorf("%q: got %d links of %s", c.as, len(link.([]any)), name)
					}
					continue
				}
				t.wantEqual(c.as+" "+name, any(jsonObject{"href": url, "type": "application/atom+xml"}), link)
			}
			t.wantEqual("links", len(c.want), len(links))
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
			plain := t.call("", "GET "+target, 200, "Content-Type: application/json; charset=utf-8")
			atom := t.call("\nAccept: text/html;q=0.1, Application/Atom+XML; charset=utf-8", "GET "+target, 200,
				"Content-Type: application/atom+xml; charset=utf-8")
			got, want := readAtom(t, atom.Body.Bytes()), decode[feedPage](t, plain)
			got.XMLName = want.XMLName
			t.wantEqual(target, want, got)
			failIf(t, strings.Contains(plain.Body.String(), "token") || len(got.Entries) == 0, "%s: a feed without entries or with a token: %s", target, plain.Body)
			t.call("\nAccept: */*", "GET "+target, 200, "="+plain.Body.String())
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
		_, err := time.Parse(time.RFC3339, updated)
		failIf(t, err != nil || !strings.HasPrefix(id, "tag:") || ids[id] || title == "" || !strings.HasPrefix(link.Href, "http://api.test/"), "invalid feed or entry: id %q, title %q, updated %q, link %v", id, title, updated, link)
		ids[id] = true
	}
	check(page.ID, page.Title, page.Updated, page.Link)
	for i, e := range page.Entries {
		check(e.ID, e.Title, e.Updated, e.Link)
		failIf(t, e.Author.Name == "" || e.Updated > page.Updated || i > 0 && e.Updated > page.Entries[i-1].Updated, "got entry %v in a feed updated at %s", e, page.Updated)
	}
	return page
}

func TestPrivateFeedsRequireFeedTokenOrBasicAuthentication(t *testing.T) {
	const own, inAcme = "/feeds/users/acme-owner/private", "/feeds/users/acme-owner/organizations/acme"
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			as, target string
			status     int
			control    string
		}{
			{"", own + "?token=feed-acme-owner", 200, "private"},         // own feed token
			{"outsider", own + "?token=feed-acme-owner", 200, "private"}, // own feed token, sent by another user
			{"basic user", own, 200, "private"},
			{"", own + "?token=feed-outsider", 404, "no-cache"},           // feed token of another user
			{"basic user", own + "?token=feed-outsider", 404, "no-cache"}, // feed token of another user, with basic authentication
			{"", own + "?token=tok-owner", 404, "no-cache"},               // API token as feed token
			{"", own, 401, "no-cache"},
			{"owner", own, 401, "no-cache"},
			{"basic user", "/feeds/users/outsider/private", 404, "no-cache"}, // feed of another user, with basic authentication
			{"oauth", own, 404, "no-cache"},                                  // app with basic authentication
			{"", inAcme + "?token=feed-acme-owner", 200, "private"},          // organization of the user
			{"", inAcme, 401, "no-cache"},
			{"", "/feeds/users/outsider/organizations/acme?token=feed-outsider", 404, "no-cache"}, // organization without the user
			{"", "/feeds/users/outsider/organizations/acme", 401, "no-cache"},                     // organization without the user, no credential
			{"basic user", "/feeds/users/acme-owner/organizations/outsider", 404, "no-cache"},     // user account as organization
			{"basic user", "/feeds/users/acme-owner/organizations/none", 404, "no-cache"},         // unknown organization
			{"", "/feeds/users/none/private", 404, "no-cache"},
			{"", "/feeds/users/acme", 404, "no-cache"}, // feed of an organization
			{"owner", "/feeds/users", 404, "no-cache"}, // unknown feed
			{"", "/feeds/users/acme-owner", 200, "public"},
			{"owner", "/feeds/users/acme-owner", 200, "private"},
		} {
			t.call(c.as, "GET "+c.target, c.status, "Cache-Control: "+c.control+"...")
		}
		etag := t.get("", "/feeds/timeline").Header().Get("ETag")
		t.calls([]call{
			{"owner", "POST /feeds/timeline {}", 404, ""},
			{"", "HEAD /feeds/timeline", 200, "ETag: " + etag},
			{"\nIf-None-Match: " + etag, "GET /feeds/timeline", 304, ""},
		})
	})
}

func TestActionsAppearInTheirFeedsOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		head := t.s.world.repositories[1].head()
		t.call("member", `POST /repos/acme/secret/git/tags {"tag":"s\ufffe<1>","message":"m","object":"`+head+`","type":"commit"}`, 201, "")
		time.Sleep(time.Minute)
		t.call("member", `PUT /repos/acme/monolith/subscription {"subscribed":true}`, 200, "")
		t.call("outsider", `PUT /repos/acme/empty/subscription {"ignored":true}`, 200, "")
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
			page := readAtom(t, t.get("\nAccept: application/atom+xml", target).Body.Bytes())
			var got []string
			for _, e := range page.Entries {
				if strings.HasPrefix(e.Title, "Member of Acme watches") || strings.Contains(e.Title, "tagged s") || strings.Contains(e.Title, "Outsider") {
					got = append(got, e.Title)
				}
			}
			t.wantEqual(target, want, got)
			public := !strings.Contains(target, "token")
			text := string(encode(page))
			failIf(t, public && strings.Contains(text, "secret") || len(page.Entries) > feedSize, "%s: a public feed names acme/secret, or a feed is too long: %s", target, text)
		}
		t.call("", "GET /feeds/users/outsider", 200, `{"entries":[],"updated":"1970-01-01T00:00:00Z"}`)
	})
}

func TestFeedEntriesDescribeTheirEvents(t *testing.T) {
	runWithService(t, func(t *tester) {
		const advisory = "/acme/widgets/security/advisories/adv-1001-1"
		t.call("", "GET /feeds/security-advisories", 200, fmt.Sprintf(`{"entries":[{"id":"tag:example.com,2022:%s",
			"title":"Acme announced: The gear turns without its key in acme/widgets","updated":%q,"author":{"name":"Acme"},
			"link":{"rel":"alternate","type":"text/html","href":"http://api.test%[1]s"}},{}]}`, advisory, timestamp(time.Now().AddDate(0, 0, -10))))
		r := t.s.world.repositories[3]
		last := r.history()[len(r.history())-1]
		timeline := decode[feedPage](t, t.get("", "/feeds/timeline"))
		want := pageEntry{
			ID: "tag:example.com,2022:/acme/monolith/commit/" + last.sha, Title: last.author.name + ` committed "` + last.message + `" to acme/monolith`,
			Updated: timestamp(last.at), Author: pageAuthor{last.author.name},
			Link: pageLink{"alternate", "text/html", "http://api.test/acme/monolith/commit/" + last.sha},
		}
		failIf(t, !slices.Contains(timeline.Entries, want) || len(timeline.Entries) != feedSize, "entry %v is missing in %v", want, timeline.Entries)
		oldest := timeline.Entries[feedSize-1].Updated
		for _, c := range r.history()[len(r.history())-10:] {
			failIf(t, timestamp(c.at) > oldest && !strings.Contains(string(encode(timeline)), c.sha), "the feed lacks commit %s of %s", c.sha, timestamp(c.at))
		}
		t.call("", "GET /feeds/users/watcher-01", 200,
			`{"title":"Public timeline of watcher-01","entries":[{"title":"Watcher 1 watches acme/widgets"}]}`)
	})
}
