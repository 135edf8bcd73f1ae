// Package tags names the responses to questions, so that [cache.Store.Purge] finds the responses that a change makes stale.
package tags

import (
	"cmp"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/secrets"
)

// Question is the part of a request on which the tags depend.
type Question struct {
	Match   *policy.Match
	GraphQL *policy.GraphQLCall // nil for a REST request
	Caller  *policy.Caller      // with the credential
}

// Tags returns the tags of the stored response to the question. The last column lists the causes of a purge of the tag.
// Operators may purge any tag.
//
//	Format                Responses                                          Purged by
//	op:ID                 of an operation                                    writes, events
//	url:PATH              of a path, with any query                          writes
//	repo:OWNER/REPO       of a repository; org:, user: likewise              unlisted events
//	repo:?                of repositories by number; org:?, user:? likewise  unlisted events, purges of operators
//	repo:OWNER/REPO/F     of a collection, and its wider forms such as       writes, events
//	                      repo:?/F, repo:*/F, me/F, top/F
//	                      ([policy.Collection.Tags])
//	repo:*/F@ACCOUNT      of a collection of all objects, to an account;     uncertain writes
//	                      likewise me/F@ACCOUNT, top/F@ACCOUNT
//	account:ACCOUNT       to an account                                      mutations, uncertain writes
//	credential:CLASS      to a security class                                refusals of its credential
//	credential:CLASS@PATH of a path, to a security class                     denials of the path
//	credential:CLASS@PATH/ of all objects inside the object of a path        denials of the path
//	credential:CLASS@?/   of objects by number, or that a query does not name denials of root objects
//
// GraphQL queries also have these tags ([Question.queryTags]):
//
//	op:graphql@OWNER/REPO of a query that names a repository; @OWNER likewise  writes, events
//	op:graphql@?          of a query that may reach unnamed objects            writes, events
//	node:ID               of a query that names or returns a node              mutations
//	class:CLASS           to a security class                                  mutations and writes of the class
//
// Responses about unfinished states also have the tag "unfinished", which nothing but operators purges.
func (q Question) Tags() []string {
	if q.GraphQL != nil {
		return q.queryTags()
	}
	m := q.Match
	tags := []string{"op:" + m.Operation.ID, URL(m.Path)}
	c := m.Collection()
	tags = append(tags, c.Tags()...)
	if c.Name != "" {
		tags = append(tags, c.Root+":"+c.Name)
	}
	owner, _, isRepo := strings.Cut(c.Name, "/")
	if isRepo {
		tags = append(tags, "org:"+owner)
	} else if name, repo := m.Params.Get("owner"), m.Params.Get("repo"); name != "" && repo != "" {
		tags = append(tags, "repo:"+name+"/"+repo, "org:"+name) // such as the repository of a team
	}
	if account := q.Caller.Account; m.Operation.Cache.Class != policy.Shared {
		tags = append(tags, "account:"+account, ofAccount(widest(c), account))
	}
	if q.DependsOnAccess() {
		own := Credential(q.Caller.Class)
		tags = append(tags, own, own+"@"+inTag(m.Path))
		for _, path := range m.Above() {
			tags = append(tags, own+"@"+inTag(path)+"/")
		}
		if c.Name == "?" {
			tags = append(tags, own+ofUnnamed)
		}
	}
	return tags
}

// Stored returns the tags of a response with a status. A denial is no access that could end.
func (q Question) Stored(status int) []string {
	tags := q.Tags()
	if status < http.StatusBadRequest {
		return tags
	}
	prefix := Credential(q.Caller.Class) + "@"
	return slices.DeleteFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) })
}

// DependsOnAccess reports whether the responses to the question depend on the access of a credential.
func (q Question) DependsOnAccess() bool {
	return q.Caller.Kind != policy.Unauthenticated && q.Match.Operation.Cache.Class != policy.Shared
}

// IsQuery reports whether the question is a GraphQL query, which changes nothing. A request with a URL query string returns
// false, because the string may contain a mutation.
func (q Question) IsQuery() bool {
	return q.GraphQL != nil && q.GraphQL.Kind == policy.GraphQLQuery && q.Match.Query == ""
}

// Credential returns the tag of the responses to a security class.
func Credential(class string) string { return "credential:" + class }

// ofUnnamed ends the tag of the responses to a security class that may be about any object.
const ofUnnamed = "@?/"

// OfDenial returns the tags of the responses that depend on the access to the path of a question: those of the path, and those
// of all objects inside its object. A denial of a query, such as one for an unknown commit, concerns the path alone.
//
// A path may have the number of a root object instead of the name, so the denial of a name also concerns all responses by number.
//
// The denial of a query concerns the repositories that it names.
func (q Question) OfDenial() []string {
	c, own := q.Match.Collection(), Credential(q.Caller.Class)
	if q.GraphQL != nil {
		return append(ofRepositories(q.GraphQL, own), own+ofUnnamed)
	}
	isRoot := c.Family == "."
	tags := []string{own + "@" + inTag(q.Match.Path)}
	if isRoot || q.Match.Query == "" {
		tags = append(tags, tags[0]+"/")
	}
	if isRoot && c.Name != "" && c.Name != "?" {
		tags = append(tags, own+ofUnnamed)
	}
	return tags
}

// widest returns the tag of the responses of a collection about any object.
func widest(c policy.Collection) string {
	if c.Name != "" {
		c.Name = "*"
	}
	return c.String()
}

// ofAccount returns the tag of the responses to one account that have a widest tag.
func ofAccount(widest, account string) string { return widest + "@" + account }

// OfOperator returns the tags to purge for a tag that an operator named. Names of repositories, organizations and
// users are not case sensitive. The result includes the responses whose path has the number of the object instead of its
// name, because the number of the named object is unknown.
func OfOperator(tag string) []string {
	root, name, _ := strings.Cut(tag, ":")
	if root == "url" {
		return []string{URL(name)}
	}
	named := map[string]int{"repo": 2, "org": 1, "user": 1}[root] // segments of the object's name
	segments := strings.Split(name, "/")
	if named == 0 || len(segments) < named {
		return []string{tag}
	}
	for i := range named {
		segments[i] = strings.ToLower(segments[i])
	}
	rest := segments[named:]
	tags := []string{root + ":" + strings.Join(segments, "/"), root + ":" + strings.Join(append([]string{"?"}, rest...), "/")}
	if root == "org" && len(rest) == 0 { // responses about the repositories of the organization
		tags = append(tags, "repo:?")
	}
	return tags
}

// OfName returns the tags of all responses about a name that appeared or ended, and of the lists that show it. The name is
// "owner/name" of a repository, or that of an organization or a user.
func OfName(catalogue *policy.Catalogue, name string) []string {
	tags := []string{queriesOf(name), queriesOf(anyObject), "repo:?"}
	if owner, _, ok := strings.Cut(name, "/"); ok {
		return slices.Concat(tags, []string{"repo:" + name, queriesOf(owner)}, OfEvent(catalogue, "repository", name, owner, false))
	}
	return append(tags, "org:"+name, "user:"+name, "org:?", "user:?")
}

// OfChange returns the tags that a successful unsafe request makes stale. several means that the client has several credentials. The
// tags cover the request's target (RFC 9111 section 4.4), the collections that show the change, and GraphQL queries. A GraphQL query makes nothing stale. No request makes reference
// data (class Shared) stale.
func OfChange(catalogue *policy.Catalogue, q Question, several bool) []string {
	tags := queriesChangedBy(catalogue, q, several)
	if q.GraphQL != nil {
		return tags
	}
	if q.Match.Path == "/installation/token" { // the caller has revoked its token
		tags = append(tags, Credential(q.Caller.Class))
	}
	return slices.Concat(tags, OfPath(catalogue, q.Match.Path), catalogue.ChangedBy(*q.Match), catalogue.EndedBy(*q.Match))
}

// MaxUncertain bounds the tags that a mutation with an unknown result purges one by one.
const MaxUncertain = 200

// OfUncertain returns the tags that an unsafe request with an unknown result makes stale: the responses about the objects that the
// request names. Related responses about no named object, such as /user/issues, become stale only for the accounts of own, the
// callers with the credentials of the client.
func OfUncertain(catalogue *policy.Catalogue, q Question, own []policy.Caller) (tags []string) {
	m := q.Match
	for _, c := range own {
		tags = append(tags, Class(c.Class))
	}
	if call := q.GraphQL; call != nil {
		if many := len(call.Repositories)+len(call.NodeIDs) > MaxUncertain; many || len(call.Repositories) == 0 || len(call.NodeIDs) > 0 {
			for _, c := range own {
				tags = append(tags, "account:"+c.Account)
			}
			if many {
				return tags
			}
		}
		return append(tags, ofNames(call)...)
	}
	at := m.Collection()
	if at.Root != "me" && !m.Operation.Personal { // otherwise the path names another object for each caller
		tags = append(tags, OfPath(catalogue, m.Path)...)
	}
	if name := repositoryOrOwner(m); name != "" {
		tags = append(tags, queriesOf(name))
	}
	for _, tag := range append(catalogue.ChangedBy(*m), widest(at)) {
		wide, unnamed := widestOf(tag)
		if !unnamed {
			tags = append(tags, tag)
			continue
		}
		for _, c := range own {
			tags = append(tags, ofAccount(wide, c.Account))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// OfObject returns the tags of the responses to the client about the object of an unsafe request that failed with a status. A failed
// validation concerns only the target, if it can be read. A denial also concerns the root object, such as an archived repository, or
// if it may be a loss of access, all objects inside the object.
func OfObject(catalogue *policy.Catalogue, q Question, own []policy.Caller, status int) (tags []string) {
	m := q.Match
	switch {
	case m.Operation.ReadsOnly, q.IsQuery(), !q.DependsOnAccess():
		return nil
	case q.GraphQL != nil:
		return ofObjects(q.GraphQL, own, status)
	}
	paths := []string{m.Path}
	if read, err := catalogue.Classify(http.MethodGet, m.Path, ""); status != http.StatusUnprocessableEntity || err != nil || !read.Operation.Known() {
		paths = append(paths, catalogue.SameObject(m)...)
	}
	if above := m.Above(); status == http.StatusForbidden && len(above) > 0 && strings.HasPrefix(m.Path, above[0]) {
		paths = append(paths, above[0])
	}
	isDenial := status == http.StatusNotFound || status == http.StatusGone || status == http.StatusUnavailableForLegalReasons
	for _, caller := range own {
		for _, path := range paths {
			tag := Credential(caller.Class) + "@" + inTag(path)
			if tags = append(tags, tag); isDenial {
				tags = append(tags, tag+"/")
			}
		}
		if status != http.StatusForbidden && status != http.StatusUnprocessableEntity { // a query costs points again
			tags = append(tags, Class(caller.Class))
		}
	}
	return tags
}

// widestOf returns the widest form of the tag of a collection. unnamed reports whether the tag concerns no object that the
// request names. No object has the name * or ?.
func widestOf(tag string) (wide string, unnamed bool) {
	root, name, _ := strings.Cut(tag, ":")
	switch {
	case strings.HasPrefix(tag, "me/"), strings.HasPrefix(tag, "top/"):
		return tag, true
	case strings.HasPrefix(name, "*/"), strings.HasPrefix(name, "?/"):
		return root + ":*" + name[1:], true
	}
	return "", false
}

// OfPath returns the tag of a path, or none for the path of reference data.
func OfPath(catalogue *policy.Catalogue, path string) []string {
	if m, err := catalogue.Classify(http.MethodGet, path, ""); err == nil && m.Operation.Cache.Class == policy.Shared {
		return nil
	}
	return []string{URL(path)}
}

// URL returns the tag of a path.
func URL(path string) string { return "url:" + inTag(path) }

// inTag returns a path as a part of a tag, in lower case, because names of objects are not case sensitive. The hash of a path that
// may contain a credential replaces the path, because purges send tags to the shared cache.
func inTag(path string) string {
	lower := strings.ToLower(path)
	if !secrets.In(path, nil) {
		return lower
	}
	key := cache.NewKey(lower)
	return "/" + hex.EncodeToString(key[:8])
}

// OfEvent returns the tags that a webhook event makes stale: those of [policy.Catalogue.ChangedByEvent], and of all GraphQL queries
// about the repository ("owner/name") or otherwise the organization.
func OfEvent(catalogue *policy.Catalogue, event, repository, organization string, otherBranch bool) []string {
	owner, _, _ := strings.Cut(repository, "/")
	changed, all := catalogue.ChangedByEvent(event, repository, cmp.Or(organization, owner), otherBranch)
	if all {
		return All(catalogue)
	}
	return append(changed, queriesOf(cmp.Or(repository, organization, anyObject)), queriesOf(anyObject))
}
