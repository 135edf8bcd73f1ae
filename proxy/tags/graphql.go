package tags

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

const (
	// maxResponseIDs bounds the node IDs of one response that become tags.
	maxResponseIDs = 100
	// maxNodeID is the length of the longest node ID that becomes a tag.
	maxNodeID = 256
)

// responseID matches the field id in JSON. A quotation mark inside a string is escaped, so the text of a string does not
// match.
var responseID = regexp.MustCompile(`"id"\s*:\s*"([^"\\]{1,256})"`)

// OfNodes returns the tags of the nodes in the body of a response.
func OfNodes(body []byte) (tags []string) {
	for _, id := range responseID.FindAllSubmatch(body, maxResponseIDs) {
		tags = append(tags, nodeTag(string(id[1])))
	}
	return tags
}

// The parts of the tags of GraphQL queries.
const (
	graphQLOperation = "graphql"
	allQueries       = "op:" + graphQLOperation
	// anyObject replaces the name of a repository or an organization that a query may reach without naming it.
	anyObject = "?"
)

func nodeTag(id string) string { return "node:" + id }

// Class returns the tag of the GraphQL queries of a security class.
func Class(class string) string { return "class:" + class }

// queriesOf returns the tag of the queries that name a repository or an organization.
func queriesOf(name string) string { return allQueries + "@" + strings.ToLower(name) }

// queryTags returns the tags of the response to a GraphQL query.
func (q Question) queryTags() []string {
	call, caller := q.GraphQL, q.Caller
	tags := []string{allQueries, URL(q.Match.Path), "account:" + caller.Account, Class(caller.Class), Credential(caller.Class)}
	for _, name := range call.Repositories {
		name = strings.ToLower(name)
		owner, _, _ := strings.Cut(name, "/")
		tags = append(tags, queriesOf(name), queriesOf(owner), "repo:"+name, "org:"+owner)
		for _, path := range []string{"/repos/" + name, "/orgs/" + owner, "/users/" + owner} {
			tags = append(tags, Credential(caller.Class)+"@"+path+"/")
		}
	}
	if call.ReachesUnnamed() {
		tags = append(tags, queriesOf(anyObject), "repo:?", "org:?", Credential(caller.Class)+ofUnnamed)
	}
	for _, id := range call.NodeIDs {
		if len(id) <= maxNodeID { // a change of a longer ID makes all queries stale
			tags = append(tags, nodeTag(id))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// MaxChanged bounds the tags that a mutation purges one by one.
const MaxChanged = 100

// queriesChangedBy returns the tags that a successful unsafe request purges for GraphQL queries. The tags of a mutation also
// reach REST responses.
//
//   - A mutation purges the queries of its caller, and everything about the repositories and nodes in its arguments. A node may
//     be anywhere, so a mutation of nodes also purges the other responses to its account. With more than MaxChanged names or a
//     long node ID, it purges all queries, and with more than MaxChanged repositories all responses.
//   - A REST write purges the queries of its caller, the queries that name the repository or organization of its path, and the
//     queries that may reach unnamed objects. If the path does not show the name, it purges all queries.
//   - If the client has several credentials, all queries are purged instead of those of the caller.
func queriesChangedBy(catalogue *policy.Catalogue, q Question, several bool) []string {
	op, own := q.Match.Operation, Class(q.Caller.Class)
	if several {
		own = allQueries
	}
	if call := q.GraphQL; call != nil {
		switch {
		case q.IsQuery():
			return nil
		case len(call.Repositories) > MaxChanged:
			return All(catalogue)
		}
		tags := []string{own}
		if len(call.Repositories) == 0 || len(call.NodeIDs) > 0 {
			tags = append(tags, "account:"+q.Caller.Account)
		}
		long := func(id string) bool { return len(id) > maxNodeID }
		if len(call.Repositories)+len(call.NodeIDs) > MaxChanged || slices.ContainsFunc(call.NodeIDs, long) {
			tags = append(tags, allQueries)
		}
		return append(tags, ofNames(call)...)
	}
	at, name := q.Match.Collection(), repositoryOrOwner(q.Match)
	switch {
	case op.ReadsOnly:
		return nil
	case name != "":
		return []string{queriesOf(name), queriesOf(anyObject), own}
	case at.Root == "repo" || at.Root == "org":
		return []string{allQueries}
	}
	return []string{own, queriesOf(anyObject)}
}

// repositoryOrOwner returns the repository or the organization that a path names, or an empty string.
func repositoryOrOwner(m *policy.Match) string {
	at := m.Collection()
	owner, repo := m.Params.Get("owner"), m.Params.Get("repo")
	switch {
	case (at.Root == "repo" || at.Root == "org") && at.Name != anyObject:
		return at.Name
	case at.Root != "repo" && at.Root != "org" && owner != "" && repo != "":
		return owner + "/" + repo
	}
	return ""
}

// FullName is the form of a repository's name. The tags of other texts may mean many repositories.
var FullName = regexp.MustCompile(`^[\w.-]+/[\w.-]+$`)

// ofNames returns the tags of the nodes and repositories that a mutation names.
func ofNames(call *policy.GraphQLCall) (tags []string) {
	for _, id := range call.NodeIDs {
		if len(id) <= maxNodeID {
			tags = append(tags, nodeTag(id))
		}
	}
	for _, name := range call.Repositories {
		if FullName.MatchString(name) {
			tags = append(tags, "repo:"+strings.ToLower(name))
		}
	}
	return tags
}

// ofObjects is [OfObject] for a mutation. A node may be anywhere, so a conflict concerns all responses to the client.
func ofObjects(call *policy.GraphQLCall, own []policy.Caller, status int) (tags []string) {
	anywhere := len(call.NodeIDs) > 0 && (status == http.StatusConflict || status == http.StatusUnprocessableEntity)
	for _, c := range own {
		tags = append(tags, Class(c.Class))
		if anywhere || len(call.Repositories) > MaxChanged {
			tags = append(tags, Credential(c.Class))
			continue
		}
		tags = append(tags, ofRepositories(call, Credential(c.Class))...)
	}
	return tags
}

// ofRepositories returns the tags of the REST responses to a credential about the repositories that a call names, and of the
// responses about all objects inside them.
func ofRepositories(call *policy.GraphQLCall, credential string) (tags []string) {
	for _, name := range call.Repositories {
		path := credential + "@" + inTag("/repos/"+name)
		tags = append(tags, path, path+"/")
	}
	return tags
}

// All returns tags of which every response has one, except reference data. Their number is that of the operations.
func All(catalogue *policy.Catalogue) []string {
	tags := []string{"op:" + policy.UnknownID}
	for _, op := range catalogue.Operations() {
		if op.Cache.Class != policy.Shared {
			tags = append(tags, "op:"+op.ID)
		}
	}
	return tags
}
