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
	name    string // in the index
	path    string // below the base URL; {user} and {organization} vary
	title   string // the same vary
	current bool   // the index tells it for the caller's own {user}
	private bool   // for {user} alone
	own     bool   // only of what {user} did
	// advisories tells it from the feeds of activity.
	advisories bool
	// of chooses among the repositories that the reader sees; nil takes all.
	of func(r *repository, user, organization *account) bool
}

// organizationFeed is that of one of the user's organizations.
const organizationFeed = "current_user_organization"

var feeds = []feed{
	{name: "timeline", path: "/feeds/timeline", title: "Public timeline"},
	{name: "user", path: "/feeds/users/{user}", title: "Public timeline of {user}", own: true},
	{name: "current_user_public", path: "/feeds/users/{user}", title: "Public timeline of {user}", current: true, own: true},
	{name: "current_user", path: "/feeds/users/{user}/private", title: "Private timeline of {user}", current: true, private: true, of: followed},
	{name: "current_user_actor", path: "/feeds/users/{user}/actor", title: "Activity of {user}", current: true, private: true, own: true},
	{
		name: organizationFeed, path: "/feeds/users/{user}/organizations/{organization}", title: "Activity in {organization} for {user}",
		current: true, private: true, of: func(r *repository, _, organization *account) bool { return r.owner == organization },
	},
	{name: "security_advisories", path: "/feeds/security-advisories", title: "Security advisories", advisories: true},
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
		if f.current && user == nil || f.private && (!basic || !req.caller.scoped("repo")) {
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
	if !f.current {
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
type reading struct {
	feed
	user, organization *account
}

// getFeed answers what stands behind a URL of the index: JSON, or Atom where the
// request accepts it (Document B section 4.4).
func getFeed(s *Service, req *request) response {
	read := s.findFeed(req.match.Path)
	if read == nil {
		return s.notFound()
	}
	if problem := s.refuseReader(req, read); problem != nil {
		return *problem
	}
	page := s.feedPage(req, read)
	resp := response{status: http.StatusOK, private: read.private, body: page}
	if slices.Contains(acceptedTypes(req), atomType) {
		resp.text, resp.kind = page.atom(), atomType+"; charset=utf-8"
	}
	return resp
}

// findFeed finds the feed at a path; nil for none.
func (s *Service) findFeed(path string) *reading {
	for _, f := range feeds {
		named, ok := bindFeed(f.path, path)
		if !ok {
			continue
		}
		read := &reading{f, s.world.accounts[named["{user}"]], s.world.accounts[named["{organization}"]]}
		_, ofUser := named["{user}"]
		_, ofOrganization := named["{organization}"]
		if ofUser && (read.user == nil || read.user.members != nil) || ofOrganization && read.organization == nil {
			return nil
		}
		return read
	}
	return nil
}

// bindFeed returns what varies in a path, by its name in the template.
func bindFeed(template, path string) (named map[string]string, ok bool) {
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
func (s *Service) refuseReader(req *request, read *reading) *response {
	if !read.private {
		return nil
	}
	token := req.query.Get("token")
	_, _, basic := req.BasicAuth()
	var p response
	switch {
	case token == "" && !basic:
		p = s.problem(http.StatusUnauthorized, "Requires the token of the feed or basic authentication")
	case token != "" && token != feedToken(read.user), token == "" && req.caller.login != read.user.login,
		read.organization != nil && read.organization.members[read.user.login] == nil:
		p = s.notFound()
	default:
		return nil
	}
	return &p
}
