package service

import (
	"cmp"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// feedSize is the maximum number of entries in a feed.
	feedSize = 30
	atomType = "application/atom+xml"
)

// feed describes one feed of the index (Document B section 2.5). The documents define no paths for feeds. The service
// uses paths below /feeds/, which the catalogue does not use.
type feed struct {
	name        string // in the index
	path        string // below the base URL; {user} and {organization} are placeholders
	title       string // has the same placeholders
	perUser     bool   // the index lists the URL of the calling user
	private     bool   // only {user} may read the feed
	ownActivity bool   // only the activities of {user}
	// advisoriesOnly selects security advisories instead of activities.
	advisoriesOnly bool
	// selects reports whether the feed covers a repository. A feed without selects covers all repositories that the caller
	// may see.
	selects func(r *repository, user, organization *account) bool
}

// organizationFeed is the name of the feed that exists once per organization of a user.
const organizationFeed = "current_user_organization"

var feeds = []feed{
	{name: "timeline", path: "/feeds/timeline", title: "Public timeline"},
	{name: "user", path: "/feeds/users/{user}", title: "Public timeline of {user}", ownActivity: true},
	{name: "current_user_public", path: "/feeds/users/{user}", title: "Public timeline of {user}", perUser: true, ownActivity: true},
	{name: "current_user", path: "/feeds/users/{user}/private", title: "Private timeline of {user}", perUser: true, private: true, selects: followed},
	{name: "current_user_actor", path: "/feeds/users/{user}/actor", title: "Activity of {user}", perUser: true, private: true, ownActivity: true},
	{
		name: organizationFeed, path: "/feeds/users/{user}/organizations/{organization}", title: "Activity in {organization} for {user}",
		perUser: true, private: true, selects: func(r *repository, _, organization *account) bool { return r.owner == organization },
	},
	{name: "security_advisories", path: "/feeds/security-advisories", title: "Security advisories", advisoriesOnly: true},
}

// followed reports whether a user watches a repository or is a member of its owner.
func followed(r *repository, user, _ *account) bool {
	sub := r.subscriptions[user]
	return r.owner.members[user.login] != nil || sub != nil && sub.subscribed
}

// feedToken returns the token with which programs without another credential read a user's private feeds.
func feedToken(user *account) string { return "feed-" + user.login }

// listFeeds returns the feed index. Feeds of the calling user require a user. Private feeds also require basic
// authentication (Document B section 5.4) and scope repo. The index omits the feeds that the caller may not read.
func listFeeds(s *Service, req *request) response {
	user := s.world.user(req.caller)
	_, _, basic := req.BasicAuth()
	index, links := object{}, object{}
	for _, f := range feeds {
		if f.perUser && user == nil || f.private && (!basic || !req.caller.hasScope("repo")) {
			continue
		}
		urls := s.feedURLs(req, f, user)
		first := append(urls, "")[0]
		index, links = append(index, field{f.name + "_url", first}), append(links, field{f.name, feedLink(first)})
		if f.name == organizationFeed {
			index, links = append(index, field{f.name + "_urls", urls}), append(links, field{f.name + "s", renderAll(urls, feedLink)})
		}
	}
	return respond(append(index, field{"_links", links}))
}

func feedLink(url string) object { return object{{"href", url}, {"type", atomType}} }

// feedURLs returns the URL of a feed, or one URL for each organization of the user.
func (s *Service) feedURLs(req *request, f feed, user *account) []string {
	if !f.perUser {
		return []string{req.base + f.path}
	}
	url := req.base + inserted(f.path, user, nil)
	if f.private {
		url += "?token=" + feedToken(user)
	}
	if f.name != organizationFeed {
		return []string{url}
	}
	urls := []string{}
	for _, a := range s.world.byID {
		if a.members[user.login] != nil {
			urls = append(urls, inserted(url, nil, a))
		}
	}
	return urls
}

// inserted returns a path or a title of a feed with a user and an organization, unless they are nil.
func inserted(template string, user, organization *account) string {
	for name, a := range map[string]*account{"{user}": user, "{organization}": organization} {
		if a != nil {
			template = strings.ReplaceAll(template, name, a.login)
		}
	}
	return template
}

// getFeed returns a feed as JSON, or as Atom if the request accepts Atom (Document B section 4.4). Private feeds need
// the token of the feed, or basic authentication as its user. A feed of an organization exists only for its members.
func getFeed(s *Service, req *request) response {
	f := feeds[slices.IndexFunc(feeds, func(f feed) bool { return f.path == req.op.Path })]
	user, organization := s.world.accounts[req.params["user"]], s.world.accounts[req.params["organization"]]
	if strings.Contains(f.path, "{user}") && (user == nil || user.members != nil) || strings.Contains(f.path, "{organization}") && organization == nil {
		return notFound()
	}
	var reader caller
	if f.private {
		token := req.query.Get("token")
		if _, _, basic := req.BasicAuth(); token == "" && !basic {
			return fail(http.StatusUnauthorized, "Requires the token of the feed or basic authentication")
		}
		if reader = req.caller; token != "" {
			reader = caller{login: user.login}
		}
		if token != "" && token != feedToken(user) || reader.login != user.login || organization != nil && organization.members[user.login] == nil {
			return notFound()
		}
	}
	var all []activity
	for _, r := range s.world.visible(reader) {
		if f.selects == nil || f.selects(r, user, organization) {
			all = append(all, f.activities(r, user)...)
		}
	}
	page := newFeedPage(req, inserted(f.title, user, organization), all)
	resp := response{status: http.StatusOK, private: f.private, body: page}
	if slices.Contains(acceptedTypes(req), atomType) {
		resp.text, resp.kind = page.atom(), atomType+"; charset=utf-8"
	}
	return resp
}

// activity is an action that appears as a feed entry.
type activity struct {
	author      signer
	description string // the text after the author's name
	path        string // of the page, below the base URL
}

// activities returns the activities of a repository that may be among the newest entries of the feed.
func (f feed) activities(r *repository, user *account) (all []activity) {
	add := func(by signer, did, path string) {
		if !f.ownActivity || by.email == user.email {
			all = append(all, activity{by, did + " " + r.fullName(), "/" + r.fullName() + path})
		}
	}
	if f.advisoriesOnly {
		for _, a := range r.advisories {
			add(signer{r.owner.name, r.owner.email, a.published}, "announced: "+a.summary+" in", "/security/advisories/"+a.id)
		}
		return all
	}
	for _, c := range slices.Backward(r.history()) {
		if len(all) == feedSize {
			break
		}
		subject, _, _ := strings.Cut(c.message, "\n")
		add(signer{c.author.name, c.author.email, c.at}, `committed "`+subject+`" to`, "/commit/"+c.sha)
	}
	for _, t := range r.git.tags {
		add(t.tagger, "tagged "+t.name+" of", "/releases/tag/"+t.sha)
	}
	for u, sub := range r.subscriptions {
		if sub.subscribed {
			add(signer{u.name, u.email, sub.created}, "watches", "/watchers/"+u.login)
		}
	}
	return all
}

// feedPage is a feed document: Atom (RFC 4287), or JSON with the same members. The URLs of a feed contain no token. The
// identifiers contain no host.
type feedPage struct {
	XMLName xml.Name    `xml:"http://www.w3.org/2005/Atom feed" json:"-"`
	ID      string      `xml:"id" json:"id"`
	Title   string      `xml:"title" json:"title"`
	Updated string      `xml:"updated" json:"updated"`
	Link    pageLink    `xml:"link" json:"link"`
	Entries []pageEntry `xml:"entry" json:"entries"`
}

type pageEntry struct {
	ID      string     `xml:"id" json:"id"`
	Title   string     `xml:"title" json:"title"`
	Updated string     `xml:"updated" json:"updated"`
	Author  pageAuthor `xml:"author" json:"author"`
	Link    pageLink   `xml:"link" json:"link"`
}

type pageAuthor struct {
	Name string `xml:"name" json:"name"`
}

type pageLink struct {
	Rel  string `xml:"rel,attr" json:"rel"`
	Type string `xml:"type,attr" json:"type"`
	Href string `xml:"href,attr" json:"href"`
}

// atom returns the page as XML. Characters that XML cannot represent are replaced.
func (p feedPage) atom() []byte {
	text, err := xml.Marshal(p)
	if err != nil {
		panic(err) // a feedPage always encodes
	}
	return append([]byte(xml.Header), text...)
}

// newFeedPage returns a page of the newest activities. A feed without activities has the Unix epoch as its update time.
func newFeedPage(req *request, title string, activities []activity) feedPage {
	id := func(path string) string { return "tag:example.com,2022:" + path } // RFC 4151
	page := feedPage{
		ID: id(req.path), Title: title, Updated: timestamp(time.Unix(0, 0)), Link: pageLink{"self", atomType, req.base + req.path}, Entries: []pageEntry{},
	}
	slices.SortFunc(activities, func(a, b activity) int {
		return cmp.Or(b.author.at.Compare(a.author.at), strings.Compare(a.path, b.path))
	})
	for _, a := range activities[:min(len(activities), feedSize)] {
		page.Entries = append(page.Entries, pageEntry{
			ID: id(a.path), Title: a.author.name + " " + a.description, Updated: timestamp(a.author.at),
			Author: pageAuthor{a.author.name}, Link: pageLink{"alternate", "text/html", req.base + a.path},
		})
	}
	if len(page.Entries) > 0 {
		page.Updated = page.Entries[0].Updated
	}
	return page
}
