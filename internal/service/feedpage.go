package service

import (
	"cmp"
	"encoding/xml"
	"slices"
	"strings"
	"time"
)

// feedSize is how many entries a feed has: the newest.
const feedSize = 30

const atomType = "application/atom+xml"

// feedPage is a feed as it is written: an Atom feed document (RFC 4287), or JSON
// with the same members. Its URLs hold no token, its identifiers no host.
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

// atom writes the page as XML; what XML cannot hold is replaced.
func (p feedPage) atom() []byte {
	text, err := xml.Marshal(p)
	if err != nil {
		panic(err) // our own shape
	}
	return append([]byte(xml.Header), text...)
}

// event is something that somebody did.
type event struct {
	by   signer
	did  string // follows the name
	path string // of its page below the base URL
}

// feedPage gathers the newest events of a feed. One without any was updated when
// nothing was.
func (s *Service) feedPage(req *request, read *reading) feedPage {
	var reader caller
	switch {
	case read.private && req.query.Has("token"):
		reader.login = read.user.login
	case read.private:
		reader = req.caller
	}
	var events []event
	for _, r := range s.world.repositories {
		if s.world.visible(r, reader) && (read.of == nil || read.of(r, read.user, read.organization)) {
			events = append(events, read.events(r)...)
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(b.by.at.Compare(a.by.at), strings.Compare(a.path, b.path))
	})
	page := feedPage{
		ID: feedID(req.match.Path), Title: read.heading(), Updated: timestamp(time.Unix(0, 0)),
		Link: pageLink{"self", atomType, req.base + req.match.Path}, Entries: []pageEntry{},
	}
	for _, e := range events[:min(len(events), feedSize)] {
		page.Entries = append(page.Entries, pageEntry{
			ID: feedID(e.path), Title: e.by.name + " " + e.did, Updated: timestamp(e.by.at),
			Author: pageAuthor{e.by.name}, Link: pageLink{"alternate", "text/html", req.base + e.path},
		})
	}
	if len(page.Entries) > 0 {
		page.Updated = page.Entries[0].Updated
	}
	return page
}

// heading is the title with the names of whom it is about.
func (read *reading) heading() string {
	title := read.title
	if read.user != nil {
		title = strings.ReplaceAll(title, "{user}", read.user.login)
	}
	if read.organization != nil {
		title = strings.ReplaceAll(title, "{organization}", read.organization.login)
	}
	return title
}

// feedID names something for ever (RFC 4151).
func feedID(path string) string { return "tag:example.com,2022:" + path }

// events are those of a repository that belong into the feed: all that can be
// among the newest.
func (read *reading) events(r *repository) []event {
	if read.advisories {
		return advisoryEvents(r)
	}
	var events []event
	add := func(by signer, did, path string) {
		if !read.own || by.email == read.user.email {
			events = append(events, event{by, did + " " + r.fullName(), "/" + r.fullName() + path})
		}
	}
	for _, c := range slices.Backward(r.commits) {
		if len(events) == feedSize {
			break
		}
		subject, _, _ := strings.Cut(c.message, "\n")
		add(signer{c.author.name, c.author.email, c.at}, `committed "`+subject+`" to`, "/commit/"+c.sha)
	}
	for _, t := range r.tags {
		add(t.tagger, "tagged "+t.name+" of", "/releases/tag/"+t.sha)
	}
	for _, sub := range r.subscriptions {
		if sub.subscribed {
			add(signer{sub.user.name, sub.user.email, sub.created}, "watches", "/watchers/"+sub.user.login)
		}
	}
	return events
}

func advisoryEvents(r *repository) []event {
	var events []event
	for _, a := range r.advisories {
		by := signer{r.owner.name, r.owner.email, a.published}
		events = append(events, event{by, "announced: " + a.summary + " in " + r.fullName(), "/" + r.fullName() + "/security/advisories/" + a.id})
	}
	return events
}
