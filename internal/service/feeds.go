package service

import (
	"maps"
	"net/http"
	"slices"
	"strings"
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
	sub := r.subscriptions.forUser(user)
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

// feedURLs returns the URL of a feed, or one URL for each organization of the user.
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

// feedRequest is a feed with the user and the organization of the requested path. The user and the organization may be
// nil.
type feedRequest struct {
	feed
	user, organization *account
}

// getFeed returns a feed as JSON, or as Atom if the request accepts Atom (Document B section 4.4).
func getFeed(s *Service, req *request) response {
	feed := s.findFeed(req)
	if feed == nil {
		return notFound()
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

// findFeed returns the feed that a request names, or nil.
func (s *Service) findFeed(req *request) *feedRequest {
	at := slices.IndexFunc(feeds, func(f feed) bool { return f.path == req.op.Path })
	feed := &feedRequest{feeds[at], s.world.accounts[req.params["user"]], s.world.accounts[req.params["organization"]]}
	_, ofUser := req.params["user"]
	_, ofOrganization := req.params["organization"]
	if ofUser && (feed.user == nil || feed.user.members != nil) || ofOrganization && feed.organization == nil {
		return nil
	}
	return feed
}

// authorizeReader returns an error response if the caller may not read a private feed. The caller needs the token of
// the feed, or basic authentication as its user. A feed of an organization exists only for its members.
func (s *Service) authorizeReader(req *request, feed *feedRequest) *response {
	if !feed.private {
		return nil
	}
	token := req.query.Get("token")
	_, _, basic := req.BasicAuth()
	var p response
	switch {
	case token == "" && !basic:
		p = fail(http.StatusUnauthorized, "Requires the token of the feed or basic authentication")
	case token != "" && token != feedToken(feed.user), token == "" && req.caller.login != feed.user.login,
		feed.organization != nil && feed.organization.members[feed.user.login] == nil:
		p = notFound()
	default:
		return nil
	}
	return &p
}
