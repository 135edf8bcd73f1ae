package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Collection is a group of responses that a write to one of them can change: all paths below one segment of a root, such
// as /repos/acme/widgets/issues. It identifies the granularity of invalidation: a write makes its whole collection stale.
// This costs revalidations, which are free for authenticated callers, and needs no rule for each operation.
type Collection struct {
	// Root is repo, org, user, me (the caller), enterprise, team or top (any other first segment).
	Root string
	// Name is the name of the root object, such as "acme/widgets". It is empty for me and top, "?" if the path has the
	// number of the object, and "*" or "acme/*" for all objects (see [Collection.Tags]).
	Name string
	// Family is the segment after the root object, or "." for the root object.
	Family string
}

// String returns the collection as a tag, such as "repo:acme/widgets/issues" or "me/repos".
func (c Collection) String() string {
	if c.Name == "" {
		return c.Root + "/" + c.Family
	}
	return c.Root + ":" + c.Name + "/" + c.Family
}

// roots are the first segments of paths with a root object.
var roots = map[string]string{
	"repos": "repo", "repositories": "repo", "orgs": "org", "organizations": "org", "users": "user", "user": "me",
	"enterprises": "enterprise", "teams": "team",
}

// Collection returns the collection of the request's target.
func (m *Match) Collection() Collection {
	segments := strings.Split(m.Path[1:], "/")
	first, rest := segments[0], segments[1:]
	c := Collection{Root: roots[first], Family: "."}
	switch {
	case c.Root == "", len(rest) == 0 && first != "user": // such as GET /organizations
		return Collection{Root: "top", Family: first}
	case first == "user" && len(rest) > 0 && isInteger(rest[0]):
		c.Root, c.Name, rest = "user", "?", rest[1:]
	case c.Root == "me":
	case first == "repos" && len(rest) < 2:
		return Collection{Root: "top", Family: first}
	case first == "repos":
		c.Name, rest = lower(rest[0])+"/"+lower(rest[1]), rest[2:]
	case c.Root != "team" && c.Root != "enterprise" && isInteger(rest[0]):
		c.Name, rest = "?", rest[1:]
	default:
		c.Name, rest = lower(rest[0]), rest[1:]
	}
	if len(rest) > 0 && rest[0] != "" {
		c.Family = rest[0]
	}
	return c
}

// Tags returns the tags of a response in the collection: the collection itself, the same family of all objects of the
// owner, and the same family of all objects. Writes whose object is known by number or owner only purge the wider tags.
func (c Collection) Tags() []string {
	tags := []string{c.String()}
	if c.Name == "" {
		return tags
	}
	if owner, _, ok := strings.Cut(c.Name, "/"); ok {
		tags = append(tags, Collection{c.Root, owner + "/*", c.Family}.String())
	}
	return append(tags, Collection{c.Root, "*", c.Family}.String())
}

// collections is the content of github/collections.yaml.
type collections struct {
	// Related lists, for each collection, the other collections that show its changes.
	Related map[string][]string `yaml:"related"`
	// Events lists, for each webhook event, the collections that show the change.
	Events map[string][]string `yaml:"events"`
}

// ChangedBy returns the tags that a successful write to a collection makes stale: the collection, the root object and
// the related collections of the catalogue.
func (c *Catalogue) ChangedBy(changed Collection) []string {
	names := []string{changed.Root + "/" + changed.Family}
	if changed.Root != "top" {
		names = append(names, changed.Root+"/.")
	}
	if c.collections != nil {
		names = append(names, c.collections.Related[names[0]]...)
	}
	return tagsOf(names, changed)
}

// ChangedByEvent returns the tags that a webhook event makes stale, for the repository ("owner/name", or empty) and the
// organization or user of the delivery. An event outside the catalogue makes all responses about the repository or the
// organization stale.
func (c *Catalogue) ChangedByEvent(event, repository, owner string) []string {
	if c.collections == nil {
		return nil
	}
	subject := Collection{Root: "org", Name: lower(owner)}
	if repository != "" {
		subject = Collection{Root: "repo", Name: lower(repository)}
	}
	names, ok := c.collections.Events[event]
	if !ok {
		return []string{subject.Root + ":" + subject.Name}
	}
	return tagsOf(names, subject)
}

// tagsOf returns the tags of the named collections, seen from a root object. The paths of some responses have the number
// of the object, so their collections with the name "?" are included.
func tagsOf(names []string, from Collection) (tags []string) {
	owner, _, _ := strings.Cut(from.Name, "/")
	for _, name := range names {
		root, family, _ := strings.Cut(name, "/")
		c := Collection{Root: root, Family: family}
		switch {
		case root == "me", root == "top":
			tags = append(tags, c.String())
			continue
		case from.Name == "?", from.Name == "", owner == "": // the object is unknown
			c.Name = "*"
		case root == from.Root:
			c.Name = from.Name
		case root == "repo":
			c.Name = owner + "/*"
		case root == "org", root == "user":
			c.Name = owner
		default: // an enterprise or a team by number
			c.Name = "*"
		}
		tags = append(tags, c.String())
		if c.Name != "*" {
			c.Name = "?"
			tags = append(tags, c.String())
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// check returns an error for each collection without an operation.
func (c *collections) check(operations []*Operation) (errs []error) {
	known := map[string]bool{}
	for _, op := range operations {
		m := Match{Path: strings.NewReplacer("{", "", "}", "").Replace(op.Path)}
		at := m.Collection()
		known[at.Root+"/"+at.Family] = true
	}
	for name, list := range c.Related {
		for _, n := range append([]string{name}, list...) {
			if !known[n] {
				errs = append(errs, fmt.Errorf("collections.yaml: related %s: no operation in collection %q", name, n))
			}
		}
	}
	for event, list := range c.Events {
		for _, n := range list {
			if !known[n] {
				errs = append(errs, fmt.Errorf("collections.yaml: event %s: no operation in collection %q", event, n))
			}
		}
	}
	return errs
}
