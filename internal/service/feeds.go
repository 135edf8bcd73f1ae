package service

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// feed is one row of the index (Document B section 2.5), and what stands behind
// its URL. The documents show no paths for them: these are below /feeds/, where
// the catalogue has none.
type feed struct {
	name        string // in the index
	path        string // below the base URL; {user} and {organization} vary
	title       string // the same vary
	perUser     bool   // the index tells it for the caller's own {user}
	private     bool   // for {user} alone
	ownActivity bool   // only of what {user} did
	// advisories tells it from the feeds of activity.
	advisoriesOnly bool
	// of chooses among the repositories that the reader sees; nil takes all.
	selects func(r *repository, user, organization *account) bool
}

// organizationFeed is that of one of the user's organizations.
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

// followed are the repositories that a user watches or belongs to.
func followed(r *repository, user, _ *account) bool {
	sub := r.subscriptions.forUser(user)
	return r.owner.members[user.login] != nil || sub != nil && sub.subscribed
}

// feedToken lets programs that have no other credential read a user's private
// feeds.
func feedToken(user *account) string { return "feed-" + user.login }

// listFeeds answers the index. What is of a user is told to users, and what is
// private to those who come with basic authentication (Document B section 5.4), with
// a token that sees all of it; to anyone else it is not there.
func listFeeds(s *Service, req *request) response {
	user := s.world.user(req.caller)
	_, _, basic := req.BasicAuth()
	index, links := object{}, object{}
	for _, f := range feeds {
		if f.perUser && user == nil || f.private && (!basic || !req.caller.hasScope("repo")) {
			continue
		}
		urls := s.feedURLs(req, f, user)
		first, all := "", []object{}
		for _, url := range urls {
			all = append(all, feedLink(url))
		}
		if len(urls) > 0 {
			first = urls[0]
		}
		index, links = append(index, field{f.name + "_url", first}), append(links, field{f.name, feedLink(first)})
		if f.name == organizationFeed {
			index, links = append(index, field{f.name + "_urls", urls}), append(links, field{f.name + "s", all})
		}
	}
	return response{status: http.StatusOK, body: append(index, field{"_links", links})}
}

func feedLink(url string) object { return object{{"href", url}, {"type", atomType}} }

// feedURLs are where a user finds a feed: one URL, or one for each organization.
func (s *Service) feedURLs(req *request, f feed, user *account) []string {
	if !f.perUser {
		return []string{req.base + f.path}
	}
	url := req.base + strings.ReplaceAll(f.path, "{user}", user.login)
	if f.private {
		url += "?token=" + feedToken(user)
	}
	if f.name != organizationFeed {
		return []string{url}
	}
	urls := []string{}
	for _, login := range slices.Sorted(maps.Keys(s.world.accounts)) {
		if s.world.accounts[login].members[user.login] != nil {
			urls = append(urls, strings.ReplaceAll(url, "{organization}", login))
		}
	}
	return urls
}

// reading is a feed with whom its path names; nil where it names nobody.
type feedRequest struct {
	feed
	user, organization *account
}

// getFeed answers what stands behind a URL of the index: JSON, or Atom where the
// request accepts it (Document B section 4.4).
func getFeed(s *Service, req *request) response {
	feed := s.findFeed(req.match.Path)
	if feed == nil {
		return s.notFound()
	}
	if problem := s.authorizeReader(req, feed); problem != nil {
		return *problem
	}
	page := s.feedPage(req, feed)
	resp := response{status: http.StatusOK, private: feed.private, body: page}
	if slices.Contains(acceptedTypes(req), atomType) {
		resp.text, resp.kind = page.atom(), atomType+"; charset=utf-8"
	}
	return resp
}

// findFeed finds the feed at a path; nil for none.
func (s *Service) findFeed(path string) *feedRequest {
	for _, f := range feeds {
		named, ok := matchFeedPath(f.path, path)
		if !ok {
			continue
		}
		feed := &feedRequest{f, s.world.accounts[named["{user}"]], s.world.accounts[named["{organization}"]]}
		_, ofUser := named["{user}"]
		_, ofOrganization := named["{organization}"]
		if ofUser && (feed.user == nil || feed.user.members != nil) || ofOrganization && feed.organization == nil {
			return nil
		}
		return feed
	}
	return nil
}

// bindFeed returns what varies in a path, by its name in the template.
func matchFeedPath(template, path string) (named map[string]string, ok bool) {
	names, segments := strings.Split(template, "/"), strings.Split(path, "/")
	if len(names) != len(segments) {
		return nil, false
	}
	named = map[string]string{}
	for i, name := range names {
		if strings.HasPrefix(name, "{") {
			named[name] = segments[i]
		} else if name != segments[i] {
			return nil, false
		}
	}
	return named, true
}

// refuseReader refuses who reads a private feed without its token and without
// basic authentication as its user. Who does not belong to an organization has no
// feed of it, which only they are told.
func (s *Service) authorizeReader(req *request, feed *feedRequest) *response {
	if !feed.private {
		return nil
	}
	token := req.query.Get("token")
	_, _, basic := req.BasicAuth()
	var p response
	switch {
	case token == "" && !basic:
		p = s.problem(http.StatusUnauthorized, "Requires the token of the feed or basic authentication")
	case token != "" && token != feedToken(feed.user), token == "" && req.caller.login != feed.user.login,
		feed.organization != nil && feed.organization.members[feed.user.login] == nil:
		p = s.notFound()
	default:
		return nil
	}
	return &p
}
