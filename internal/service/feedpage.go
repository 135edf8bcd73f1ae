package service

import (
	"cmp"
	"encoding/xml"
	"slices"
	"strings"
	"time"
)

// feedSize is the maximum number of entries in a feed.
const feedSize = 30

const atomType = "application/atom+xml"

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

// activity is an action that appears as a feed entry.
type activity struct {
	author      signer
	description string // the text after the author's name
	path        string // of the page, below the base URL
}

// feedPage builds a feed from its newest activities. A feed without activities has the Unix epoch as its update time.
func (s *Service) feedPage(req *request, feed *feedRequest) feedPage {
	var reader caller
	switch {
	case feed.private && req.query.Has("token"):
		reader.login = feed.user.login
	case feed.private:
		reader = req.caller
	}
	var activities []activity
	for _, r := range s.world.repositories {
		if s.world.isVisible(r, reader) && (feed.selects == nil || feed.selects(r, feed.user, feed.organization)) {
			activities = append(activities, feed.activities(r)...)
		}
	}
	slices.SortFunc(activities, func(a, b activity) int {
		return cmp.Or(b.author.at.Compare(a.author.at), strings.Compare(a.path, b.path))
	})
	page := feedPage{
		ID: feedID(req.path), Title: feed.heading(), Updated: timestamp(time.Unix(0, 0)),
		Link: pageLink{"self", atomType, req.base + req.path}, Entries: []pageEntry{},
	}
	for _, a := range activities[:min(len(activities), feedSize)] {
		page.Entries = append(page.Entries, pageEntry{
			ID: feedID(a.path), Title: a.author.name + " " + a.description, Updated: timestamp(a.author.at),
			Author: pageAuthor{a.author.name}, Link: pageLink{"alternate", "text/html", req.base + a.path},
		})
	}
	if len(page.Entries) > 0 {
		page.Updated = page.Entries[0].Updated
	}
	return page
}

// heading returns the title with the names of the user and the organization.
func (feed *feedRequest) heading() string {
	title := feed.title
	if feed.user != nil {
		title = strings.ReplaceAll(title, "{user}", feed.user.login)
	}
	if feed.organization != nil {
		title = strings.ReplaceAll(title, "{organization}", feed.organization.login)
	}
	return title
}

// feedID returns the permanent identifier of the feed or entry at a path (RFC 4151).
func feedID(path string) string { return "tag:example.com,2022:" + path }

// activities returns the activities of a repository that may be among the newest entries of the feed.
func (feed *feedRequest) activities(r *repository) []activity {
	if feed.advisoriesOnly {
		return advisoryActivities(r)
	}
	var activities []activity
	add := func(by signer, did, path string) {
		if !feed.ownActivity || by.email == feed.user.email {
			activities = append(activities, activity{by, did + " " + r.fullName(), "/" + r.fullName() + path})
		}
	}
	for _, c := range slices.Backward(r.history()) {
		if len(activities) == feedSize {
			break
		}
		subject, _, _ := strings.Cut(c.message, "\n")
		add(signer{c.author.name, c.author.email, c.at}, `committed "`+subject+`" to`, "/commit/"+c.sha)
	}
	for _, t := range r.git.tags {
		add(t.tagger, "tagged "+t.name+" of", "/releases/tag/"+t.sha)
	}
	for _, sub := range r.subscriptions {
		if sub.subscribed {
			add(signer{sub.user.name, sub.user.email, sub.created}, "watches", "/watchers/"+sub.user.login)
		}
	}
	return activities
}

func advisoryActivities(r *repository) []activity {
	var activities []activity
	for _, a := range r.advisories {
		by := signer{r.owner.name, r.owner.email, a.published}
		activities = append(activities, activity{by, "announced: " + a.summary + " in " + r.fullName(), "/" + r.fullName() + "/security/advisories/" + a.id})
	}
	return activities
}
