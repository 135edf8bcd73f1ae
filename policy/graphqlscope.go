package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

// nodeUse is a node ID of a call, with the content fields that the call selects from the object.
type nodeUse struct {
	id      string
	content contentSet
}

// Node is what the upstream shows for a node ID: a type of graphql.yaml, and the repository of the object. Both are empty for an ID
// without such an object.
type Node struct{ Type, Repository string }

// NodesOf returns the objects behind node IDs, in the same order. Errors of NodesOf are returned unchanged.
type NodesOf func(ids []string) ([]Node, error)

// NodesQuery returns the body of the GraphQL query for the objects behind node IDs. [ReadNodes] reads its response.
func NodesQuery(ids []string) []byte {
	body, _ := json.Marshal(map[string]any{"query": nodesQuery, "variables": map[string]any{"ids": ids}}) // strings have JSON
	return body
}

var nodesQuery = func() string {
	var query strings.Builder
	query.WriteString("query($ids:[ID!]!){nodes(ids:$ids){__typename ...on RepositoryNode{repository{nameWithOwner}} ...on Repository{nameWithOwner}")
	for _, name := range slices.Sorted(maps.Keys(reach.Nodes)) {
		if name != "Repository" && !slices.Contains(reach.RepositoryNodes, name) {
			query.WriteString(" ...on " + name + "{repository{nameWithOwner}}")
		}
	}
	return query.String() + "}}"
}()

var errNodes = errors.New("the response has no list of the nodes")

// ReadNodes reads the response to [NodesQuery] for a number of IDs.
func ReadNodes(body []byte, n int) ([]Node, error) {
	var answer struct {
		Data struct {
			Nodes []struct {
				Type          string `json:"__typename"`
				NameWithOwner string `json:"nameWithOwner"`
				Repository    struct {
					NameWithOwner string `json:"nameWithOwner"`
				} `json:"repository"`
			} `json:"nodes"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Data.Nodes) != n {
		return nil, errNodes
	}
	nodes := make([]Node, n)
	for i, shown := range answer.Data.Nodes {
		name := lower(cmp.Or(shown.NameWithOwner, shown.Repository.NameWithOwner))
		if reach.Nodes[shown.Type] != "" && isFullName(name) {
			nodes[i] = Node{shown.Type, name}
		}
	}
	return nodes, nil
}

// PermitsQuery returns a [*GraphQLError] if the scope does not allow the repositories and owners that a GraphQL call reaches. Followed
// are those of its names by a former name of which the upstream may also find a renamed or transferred repository.
func (s *Scope) PermitsQuery(c *GraphQLCall, nodesOf NodesOf) (followed []string, err error) {
	switch {
	case c.Kind == "":
		return nil, forbid("the body has no readable query to check")
	case c.outside != "":
		return nil, forbid("the field %.100q may reach other repositories; use repository(owner:, name:)", c.outside)
	case c.hidden != "":
		return nil, forbid("the field %.100q may be private; remove it, or use a field of a repository in the scope", c.hidden)
	}
	n := naming{}
	for _, name := range c.Repositories {
		if n.repository(name); n.err != nil || !s.allowsInQuery(lower(name)) {
			return nil, forbid("the repository %.100q is not allowed", name)
		}
	}
	n.Repositories = nil
	for _, text := range c.searches {
		n.searchQuery(text, named.Search["search/issues"])
	}
	followed = slices.Concat(c.followed, n.Repositories)
	for _, owner := range c.owners {
		if owner = lower(owner); !isOwner(owner) || !s.allowsOwner(owner) {
			n.fail("the organization or user %.100s is outside of its scope", owner)
		}
	}
	if n.err == nil && len(c.nodes) > 0 {
		err = s.permitsNodes(&n, c, nodesOf)
	}
	for _, owner := range n.Whole {
		if !s.allowsAllInQuery(owner) {
			n.fail("not all repositories of %.100s are in its scope", owner)
		}
	}
	for _, name := range n.Repositories {
		if !s.allowsInQuery(name) {
			n.fail("the repository %.150s is outside of its scope", name)
		}
	}
	if err == nil && n.err != nil {
		err = forbid("%s", n.err)
	}
	return followed, err
}

// permitsNodes judges the node IDs of a call, and the head branches of its pull requests, which may be those of a fork.
func (s *Scope) permitsNodes(n *naming, c *GraphQLCall, nodesOf NodesOf) error {
	var ids []string
	for _, use := range c.nodes {
		if !nodeIDText.MatchString(use.id) {
			return errNodeID(use.id)
		}
		if !slices.Contains(ids, use.id) {
			if ids = append(ids, use.id); len(ids) > MaxLookUps {
				return forbid("it has more than %d node IDs; send several requests", MaxLookUps)
			}
		}
	}
	nodes, err := nodesOf(ids)
	if err != nil {
		return err
	}
	owners := map[string]bool{}
	for i, node := range nodes {
		if node.Type == "" || !s.allowsInQuery(node.Repository) {
			return errNodeID(ids[i])
		}
		owner, _, _ := strings.Cut(node.Repository, "/")
		owners[owner] = true
	}
	for _, use := range c.nodes {
		kind := nodes[slices.Index(ids, use.id)].Type
		if other := use.content.without(contentBelow[reach.Nodes[kind]]); other != "" {
			return forbid("the field %.100q may reach other repositories; use repository(owner:, name:)", kind+"."+other)
		}
	}
	for _, head := range c.heads {
		if owner, _, _ := strings.Cut(head, ":"); len(owners) != 1 || !owners[lower(owner)] || strings.Count(head, ":") > 1 {
			n.head(head)
		}
	}
	return nil
}

// nodeIDText matches node IDs of all forms: GLOBAL_BASE64, and base64.
var nodeIDText = regexp.MustCompile(`^[A-Za-z0-9_+/=-]{1,250}$`)

// errNodeID returns the refusal for a node ID outside of the scope, and for an ID without an object, so that clients cannot
// distinguish them.
func errNodeID(id string) error {
	return forbid("the node ID %.60q names nothing in its scope", id)
}

// LimitsQueries reports whether the scope allows GraphQL calls about some repositories only.
func (s *Scope) LimitsQueries() bool {
	return s.LimitsNames() || s != nil && s.GraphQL != nil && len(s.GraphQL.Repositories) > 0
}

// allowsInQuery reports whether the scope and its [GraphQLRules] allow OWNER/NAME in lower case.
func (s *Scope) allowsInQuery(name string) bool {
	return (!s.LimitsNames() || s.allowsRepository(name)) && s.GraphQL.allowsRepository(name)
}

// allowsAllInQuery reports whether a query may reach all repositories of an owner.
func (s *Scope) allowsAllInQuery(owner string) bool {
	return (!s.LimitsNames() || s.allowsAll(owner)) && s.GraphQL.allowsRepository(owner+"/*")
}

// allowsRepository reports whether the rules allow OWNER/NAME in lower case. The API ignores the case of names.
func (r *GraphQLRules) allowsRepository(name string) bool {
	matches := func(pattern string) bool { return Glob(lower(pattern), name) }
	return r == nil || len(r.Repositories) == 0 || slices.ContainsFunc(r.Repositories, matches)
}

// setReach sets the members of the tally of a field that describe which repositories it may reach.
func (a *analysis) setReach(t *tally, f *ast.Field, sub tally) {
	owner, name := a.argument(f, "owner"), a.argument(f, "name")
	login := a.argument(f, "login")
	t.outside, t.hidden = sub.outside, sub.hidden
	public := func() {
		if sub.private != "" {
			t.hidden = cmp.Or(t.hidden, f.Name+"."+sub.private)
		}
	}
	within := func(below contentSet) {
		if other := sub.content.without(below); other != "" {
			t.outside = cmp.Or(t.outside, f.Name+"."+other)
		}
	}
	below, isContent := contentBelow[f.Name]
	switch {
	case len(f.SelectionSet) == 0:
		t.isPrivate = !slices.Contains(reach.Viewer, f.Name)
		if _, ok := publicIndex[f.Name]; !ok {
			t.private = f.Name
		}
		if slices.Contains(reach.Secrets, f.Name) {
			t.hidden = f.Name
		}
	case f.Name == "node" && a.argument(f, "id") != nil:
		a.useNodes(t, f, a.argument(f, "id"), sub)
	case f.Name == "nodes" && a.argument(f, "ids") != nil:
		a.useNodes(t, f, a.argument(f, "ids"), sub)
	case slices.Contains(reach.Structure, f.Name):
		t.content, t.isNested, t.isPrivate, t.private = sub.content, sub.isNested, sub.isPrivate, sub.private
	case f.Name == "repository" && owner != nil && name != nil:
		o, ok := a.value(owner).(string)
		n, also := a.value(name).(string)
		if !ok || !also || len(o)+len(n) > maxRepositoryName || !a.addRepository(o+"/"+n) {
			t.outside = "repository with an unknown owner or name"
		} else if follows := a.argument(f, "followRenames"); follows == nil || a.value(follows) != false {
			a.add(&a.call.followed, o+"/"+n)
		}
		within(below)
	case slices.Contains(reach.Owners, f.Name) && login != nil:
		text, ok := a.value(login).(string)
		if !ok || len(text) > maxRepositoryName {
			t.outside = f.Name
		}
		a.add(&a.call.owners, text)
		within(belowOwner)
		public()
	case f.Name == "viewer":
		if sub.isPrivate || sub.content != (contentSet{}) {
			t.outside = f.Name
		}
	case f.Name == "search":
		a.useSearch(t, f)
		within(contentBelow["issue"])
	case slices.Contains(reach.References, f.Name):
		if slices.ContainsFunc(f.Arguments, func(argument *ast.Argument) bool { return !slices.Contains(reach.Arguments, argument.Name) }) {
			t.outside = f.Name
		}
		t.content.add(f.Name)
		within(belowReference)
		public()
	case f.Name == "parent":
		t.content.add(f.Name)
		if within(belowParent); sub.isNested {
			t.outside = f.Name
		}
		public()
	case isContent:
		t.private = sub.private
		t.content.add(f.Name)
		within(below)
	case reach.Mutations[f.Name] != nil:
		within(belowMutation)
	case slices.Contains([]string{"rateLimit", "__type", "__schema"}, f.Name):
		t.outside = ""
	default:
		t.outside = f.Name
	}
	t.isNested = t.isNested || t.content != (contentSet{}) && sub.content != (contentSet{}) && !slices.Contains(reach.Structure, f.Name)
}

// useNodes adds the node IDs of a root field.
func (a *analysis) useNodes(t *tally, f *ast.Field, ids *ast.Value, sub tally) {
	list, ok := a.texts(ids)
	if !ok || len(a.call.nodes)+len(list) > maxNodeUses {
		t.outside = f.Name
		return
	}
	for _, id := range list {
		a.call.nodes = append(a.call.nodes, nodeUse{id, sub.content})
	}
}

// These constants bound the node IDs of a call.
const (
	maxNodeUses = 1000
	maxNodeIDs  = 32 << 10 // bytes of the JSON of a variable
)

// texts returns the strings of a value or of a list. It reports false for other values.
func (a *analysis) texts(v *ast.Value) ([]string, bool) {
	if a.listings++; a.listings > maxNodeUses {
		return nil, false
	}
	switch v.Kind {
	case ast.Variable:
		text, given := a.values[v.Raw]
		if !given {
			if value := a.defaults[v.Raw]; value != nil {
				return a.texts(value)
			}
			return nil, false
		}
		var list []string
		var one string
		switch {
		case len(text) > maxNodeIDs || string(text) == "null":
			return nil, false
		case json.Unmarshal(text, &one) == nil:
			return []string{one}, true
		}
		return list, json.Unmarshal(text, &list) == nil
	case ast.ListValue:
		var list []string
		for _, child := range v.Children {
			texts, ok := a.texts(child.Value)
			if !ok {
				return nil, false
			}
			list = append(list, texts...)
		}
		return list, true
	case ast.StringValue, ast.BlockValue:
		return []string{v.Raw}, true
	}
	return nil, false
}

// useSearch adds the text of a search.
func (a *analysis) useSearch(t *tally, f *ast.Field) {
	query, kind := a.argument(f, "query"), a.argument(f, "type")
	if query == nil || kind == nil {
		t.outside = f.Name
		return
	}
	of := kind.Raw
	if kind.Kind != ast.EnumValue {
		of, _ = a.value(kind).(string)
	}
	text, ok := a.value(query).(string)
	if !ok || !slices.Contains(reach.Searches, of) {
		t.outside = f.Name
		return
	}
	a.add(&a.call.searches, text)
}

// member checks the name of a member of the input of a mutation.
func (a *analysis) member(name string) {
	if name != "clientMutationId" && !slices.Contains(reach.Mutations[a.mutation], name) {
		a.leave(name)
	}
}

// number refuses a number as a node ID, which the upstream would read as a string.
func (a *analysis) number(name string) {
	if kindOf(name) == nodeID {
		a.leave(name)
	}
}

// leave marks a call with a mutation whose input may reach any repository.
func (a *analysis) leave(name string) {
	if a.mutation != "" {
		a.call.outside = cmp.Or(a.call.outside, a.mutation+"."+name)
	}
}
