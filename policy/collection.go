package policy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Collection is the unit of invalidation: all responses below one segment of a root, such as
// /repos/acme/widgets/issues. A write makes its whole collection stale. This costs revalidations, which are free for
// authenticated callers, and needs no rule for each operation.
type Collection struct {
	// Root is repo, org, user, me (the caller), enterprise, team or top (any other first segment).
	Root string
	// Name selects the root objects:
	//
	//	acme/widgets  this object
	//	?             an object whose number the path has instead of the name
	//	acme/*        all objects of an owner
	//	*             all objects
	//
	// Name is empty for me and top.
	Name string
	// Family is the segment after the root object, or "." for the root object. "*" is every family of a repository except
	// stats, because statistics change with the default branch only.
	Family string
}

// String returns the collection as a tag, such as "repo:acme/widgets/issues" or "me/repos".
func (c Collection) String() string {
	if c.Name == "" {
		return c.Root + "/" + c.Family
	}
	return c.Root + ":" + c.Name + "/" + c.Family
}

// allFamilies is the Family of a whole repository.
const allFamilies = "*"

// roots are the first segments of paths with a root object.
var roots = map[string]string{
	"repos": "repo", "repositories": "repo", "orgs": "org", "organizations": "org", "users": "user", "user": "me",
	"enterprises": "enterprise", "teams": "team",
}

// Collection returns the collection of the request's target. Root and family of a known operation are from its template,
// because the path may be an alias with numbers.
func (m *Match) Collection() Collection {
	path := strings.Split(m.Path[1:], "/")
	template := path
	if m.Operation.Known() {
		template = strings.Split(m.Operation.Path[1:], "/")
	}
	first := template[0]
	c := Collection{Root: roots[first], Family: "."}
	if first == "user" && len(template) > 1 && (template[1] == "{account_id}" || template[1] == "{user_id}") {
		c.Root = "user" // paths below /user/{number} are about another user
	}
	at := 2 // position of the family
	switch {
	case c.Root == "repo" && first == "repos":
		at = 3
	case c.Root == "me":
		at = 1
	}
	if c.Root == "" || len(template) < at { // such as GET /organizations
		return Collection{Root: "top", Family: first}
	}
	if len(template) > at && template[at] != "" {
		c.Family = strings.Trim(template[at], "{}")
	}
	isAlias := path[0] != first
	switch {
	case c.Root == "me":
	case isAlias, first == "user", isInteger(path[1]) && (path[0] == "repositories" || path[0] == "organizations"):
		c.Name = "?"
	default:
		c.Name = lower(strings.Join(path[1:at], "/"))
	}
	return c
}

// maxAbove bounds the result of Above, because a path of a repository's file may have any depth.
const maxAbove = 8

// Above returns the paths of the objects that contain the target: those above it in its path, from the root object down,
// such as /repos/acme/widgets for /repos/acme/widgets/issues, and the owner of a repository.
func (m *Match) Above() (paths []string) {
	first, _, _ := strings.Cut(m.Path[1:], "/")
	at := 2 // position of the first segment below the root object
	switch root := roots[first]; {
	case first == "repos":
		at = 3
	case root == "", root == "me":
		at = 1
	}
	for i := 1; i < len(m.Path) && len(paths) < maxAbove; i++ {
		if m.Path[i] != '/' {
			continue
		}
		if at--; at <= 0 {
			paths = append(paths, m.Path[:i])
		}
	}
	if owner, _, isRepo := strings.Cut(m.Collection().Name, "/"); isRepo {
		paths = append(paths, "/orgs/"+owner, "/users/"+owner)
	}
	return paths
}

// Tags returns the tags of a response in the collection: the collection itself, all families of the repository, the same
// family of all objects of the owner, and the same family of all objects. A write that knows only the number or the
// owner of the object purges the wider tags.
func (c Collection) Tags() []string {
	tags := []string{c.String()}
	if c.Name == "" {
		return tags
	}
	if c.Root == "repo" && c.Family != "stats" {
		tags = append(tags, Collection{c.Root, c.Name, allFamilies}.String())
	}
	if owner, _, ok := strings.Cut(c.Name, "/"); ok {
		tags = append(tags, Collection{c.Root, owner + "/*", c.Family}.String())
	}
	return append(tags, Collection{c.Root, "*", c.Family}.String())
}

// collections is the content of github/collections.yaml, with the rules of the documents' operations. Without the table, it has
// only the rules of the documents.
type collections struct {
	// Related lists, for each collection, the other collections that show its changes.
	Related map[string][]string `yaml:"related"`
	// Events lists, for each webhook event, the collections that show the change.
	Events map[string][]string `yaml:"events"`
	// Access lists the events that may end a caller's access to all objects of their repository or organization.
	Access []string `yaml:"access"`
	// Ends lists the operations that may end another caller's access to all objects of their repository or organization.
	Ends []string `yaml:"ends"`
	// Undelivered lists, for the root of a webhook (repo or org), the events that the webhook does not deliver.
	Undelivered map[string][]string `yaml:"undelivered"`
	// Decided lists the operations whose responses change with an event.
	Decided []string `yaml:"decided"`

	families  map[string][]string // of the operations, by root
	decidedBy map[string][]string // events by operation, for DecidedBy
	// documented are the collections that show the changes of an event, by the documents. A push counts only on the default branch.
	documented map[string][]string
}

// documentedCollections returns the rules of the documents' operations.
func documentedCollections(operations []*Operation) *collections {
	c := &collections{Related: map[string][]string{}}
	c.addDocumented(operations)
	return c
}

// addDocumented adds the rules of the documents' operations. The collection of each operation has its rules.
func (c *collections) addDocumented(operations []*Operation) {
	c.documented = map[string][]string{}
	names := map[string]string{} // of collections, by operation
	for _, op := range operations {
		at := collectionOf(op)
		names[op.ID] = at.Root + "/" + at.Family
	}
	for _, op := range operations {
		for _, id := range op.Invalidates {
			c.Related[names[op.ID]] = append(slices.Clip(c.Related[names[op.ID]]), names[id]) // collections.yaml repeats lists
		}
		for _, event := range op.StaleOn {
			c.documented[event] = append(c.documented[event], names[op.ID])
		}
	}
}

// ChangedBy returns the tags that a successful write makes stale: its collection, the root object and the related
// collections of the catalogue. A read by POST makes nothing stale, and neither does an unknown route without a root
// object, because nothing is known about the meaning of its segments.
func (c *Catalogue) ChangedBy(m Match) []string {
	changed, repository := m.Collection(), ""
	if m.Operation.ReadsOnly || changed.Root == "top" && !m.Operation.Known() {
		return nil
	}
	if owner, repo := m.Params.Get("owner"), m.Params.Get("repo"); owner != "" && repo != "" {
		repository = owner + "/" + repo // the path may name a repository below another root object
	}
	names := []string{changed.Root + "/" + changed.Family}
	if changed.Root != "top" {
		names = append(names, changed.Root+"/.")
	}
	names = append(names, c.collections().Related[names[0]]...)
	return c.tagsOf(names, changed, repository)
}

// ChangedByEvent returns the tags that a webhook event makes stale, for the repository ("owner/name", or empty) and the
// organization or user of the delivery. An event that may end access, or that is not in the catalogue, makes all responses
// about the repository or the organization stale. all is set if such an event names neither, and makes all responses stale.
// otherBranch marks a push to another branch than the default branch.
func (c *Catalogue) ChangedByEvent(event, repository, owner string, otherBranch bool) (tags []string, all bool) {
	subject := Collection{Root: "org", Name: lower(owner)}
	if repository != "" {
		subject = Collection{Root: "repo", Name: lower(repository)}
	}
	unnamed := "" // repository
	if !isFullName(subject.Name) && !isOwner(subject.Name) {
		subject.Name, unnamed = "?", "?"
	}
	rules := c.collections()
	names, known := rules.Events[event]
	tags = c.tagsOf(names, subject, "")
	if !otherBranch {
		tags = append(tags, c.tagsOf(rules.documented[event], subject, unnamed)...)
	}
	switch {
	case rules.Events == nil, known && !slices.Contains(rules.Access, event):
	case repository != "", owner != "": // the owner may be a user
		tags = append(tags, subject.accessTags()...)
	default:
		return nil, true
	}
	return tags, false
}

// accessTags returns the tags of all responses that depend on the access to a repository or an owner.
func (c Collection) accessTags() []string {
	if c.Root == "repo" {
		return []string{"repo:" + c.Name, "repo:?"}
	}
	return []string{"org:" + c.Name, "org:?", "user:" + c.Name, "user:?", "repo:?"}
}

// EndedBy returns the tags of the responses to other callers whose access a successful write may have ended.
func (c *Catalogue) EndedBy(m Match) []string {
	if !slices.Contains(c.collections().Ends, m.Operation.ID) {
		return nil
	}
	return m.Collection().accessTags()
}

// EventsOf returns the webhook events that make responses in a collection stale, sorted.
func (c *Catalogue) EventsOf(at Collection) []string {
	events := c.collections().eventsOf(at)
	if at.Root == "repo" || at.Root == "org" || at.Root == "user" {
		events = slices.Concat(events, c.collections().Access)
	}
	slices.Sort(events)
	return slices.Compact(events)
}

// DecidedBy returns the webhook events that report the changes of an operation's responses, sorted. Webhooks of the
// repository or the organization deliver all these events. The result is empty if the responses also change without an
// event.
func (c *Catalogue) DecidedBy(op *Operation) []string {
	return c.collections().decidedBy[op.ID]
}

func (c *collections) eventsOf(at Collection) (events []string) {
	for _, rules := range []map[string][]string{c.Events, c.documented} {
		for event, names := range rules {
			all := at.Root == "repo" && at.Family != "stats" && slices.Contains(names, "repo/"+allFamilies)
			if all || slices.Contains(names, at.Root+"/"+at.Family) {
				events = append(events, event)
			}
		}
	}
	slices.Sort(events)
	return slices.Compact(events)
}

// decide sets decidedBy from the other fields.
func (c *collections) decide(operations []*Operation) {
	c.decidedBy = map[string][]string{}
	for _, op := range operations {
		if slices.Contains(c.Decided, op.ID) {
			at := collectionOf(op)
			undelivered := func(event string) bool { return slices.Contains(c.Undelivered[at.Root], event) }
			c.decidedBy[op.ID] = slices.DeleteFunc(c.eventsOf(at), undelivered)
		}
	}
}

// tagsOf expands names of collections.yaml, such as repo/issues, to tags of the object that changed. subject is the root
// object of the change. repository is the repository that the path names, or empty. Paths of some responses have the
// number of the object, so the tags with the name "?" are included.
func (c *Catalogue) tagsOf(names []string, subject Collection, repository string) (tags []string) {
	owner, _, _ := strings.Cut(subject.Name, "/")
	isKnown := subject.Name != "" && subject.Name != "?"
	for _, name := range names {
		root, family, _ := strings.Cut(name, "/")
		root, all := strings.CutSuffix(root, ":*")
		at := Collection{Root: root, Family: family}
		switch {
		case root == "me", root == "top":
			tags = append(tags, at.String())
			continue
		case all:
			at.Name = "*"
		case root == "repo" && repository != "":
			at.Name = repository
		case isKnown && root == subject.Root:
			at.Name = subject.Name
		case isKnown && root == "org" && subject.Root == "repo":
			at.Name = owner
		case isKnown && root == "repo" && (subject.Root == "org" || subject.Root == "user"):
			at.Name = owner + "/*"
		default: // all objects, such as the users that watch a repository
			at.Name = "*"
		}
		families := []string{family}
		if family == allFamilies && strings.HasSuffix(at.Name, "*") {
			families = c.collections().families[root] // no tag covers all families of several repositories
		}
		for _, f := range families {
			if family == allFamilies && f == "stats" {
				continue
			}
			at.Family = f
			tags = append(tags, at.String())
			if at.Name != "*" {
				tags = append(tags, Collection{root, "?", f}.String())
			}
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// familiesOf returns the families of the operations, by root.
func familiesOf(operations []*Operation) map[string][]string {
	families := map[string][]string{"repo": {allFamilies}}
	for _, op := range operations {
		at := collectionOf(op)
		families[at.Root] = append(families[at.Root], at.Family)
	}
	for root, list := range families {
		slices.Sort(list)
		families[root] = slices.Compact(list)
	}
	return families
}

// collectionOf returns the collection of an operation. The names of its path parameters replace their values.
func collectionOf(op *Operation) Collection {
	m := Match{Operation: op, Path: strings.NewReplacer("{", "", "}", "").Replace(op.Path)}
	return m.Collection()
}

// SameObject returns the paths of the operations that read the object of a request: those in its collection with exactly its
// path parameters, such as /repos/acme/widgets/pulls/7 and /repos/acme/widgets/pulls/7/files for the merge of a pull request.
func (c *Catalogue) SameObject(m *Match) (paths []string) {
	collection := m.Collection()
	for _, op := range c.Operations() {
		if op.Method != http.MethodGet || strings.Count(op.Path, "{") != len(m.Params) {
			continue
		}
		path, missing := op.Path, false
		for _, p := range m.Params {
			name := "{" + p.Name + "}"
			missing = missing || !strings.Contains(path, name)
			path = strings.Replace(path, name, (&url.URL{Path: p.Value}).EscapedPath(), 1)
		}
		if missing {
			continue
		}
		if read, err := c.Classify(http.MethodGet, path, ""); err == nil && read.Operation == op && read.Collection() == collection {
			paths = append(paths, read.Path)
		}
	}
	return paths
}
