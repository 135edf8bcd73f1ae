package proxy

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// tags returns the tags of the stored response to the question. The last column lists the causes of a purge of the tag.
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
// GraphQL queries also have these tags ([question.queryTags]):
//
//	op:graphql@OWNER/REPO of a query that names a repository; @OWNER likewise  writes, events
//	op:graphql@?          of a query that may reach unnamed objects            writes, events
//	node:ID               of a query that names or returns a node              mutations
//	class:CLASS           to a security class                                  mutations and writes of the class
//
// Responses about unfinished states also have the tag "unfinished", which nothing but operators purges.
//
// Operations of the documents also have these tags, because the documents say which operations a call changes:
//
//	ID/VALUE/VALUE        of an operation and its path parameters            writes
//	ID/?                  of an operation, parameters unknown                writes, events
//	op:ID@OWNER/REPO      of an operation in a repository                    events
//	op:ID@OWNER           of an operation in an organization                 events
func (q *question) tags() []string {
	if q.graphQL != nil {
		return q.queryTags()
	}
	m := q.match
	tags := []string{"op:" + m.Operation.ID, urlTag(m.Path)}
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
	if m.Operation.Documented() {
		tags = append(tags, scope(m.Operation, &m.Params))
		if c.Root == "repo" || c.Root == "org" {
			tags = append(tags, at(m.Operation, c.Name))
		}
		if isRepo {
			tags = append(tags, at(m.Operation, owner))
		}
	}
	if account := q.identity.Caller.Account; m.Operation.Cache.Class != policy.Shared {
		tags = append(tags, "account:"+account, ofAccount(widest(c), account))
	}
	if q.hasAccess() {
		own := credentialTag(q.identity.Caller.Class)
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

// storedTags returns the tags of a response with a status. A denial is no access that could end.
func (q *question) storedTags(status int) []string {
	tags := q.tags()
	if status < http.StatusBadRequest {
		return tags
	}
	prefix := credentialTag(q.identity.Caller.Class) + "@"
	return slices.DeleteFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, prefix) })
}

// hasAccess reports whether the responses to the question depend on the access of a credential.
func (q *question) hasAccess() bool {
	return q.identity.Caller.Kind != policy.Unauthenticated && q.match.Operation.Cache.Class != policy.Shared
}

func credentialTag(class string) string { return "credential:" + class }

// ofUnnamed ends the tag of the responses to a security class that may be about any object.
const ofUnnamed = "@?/"

// endAccess makes the responses stale that depend on the access to a path, after the upstream has denied the path to a
// credential: those of the path, and those of all objects inside its object. A denial of a query, such as one for an unknown
// commit, concerns the path alone. The stored response to the question itself is replaced or deleted. Other replicas may have
// responses that this one does not know.
//
// A path may have the number of a root object instead of the name. So the denial of a name also concerns all responses by number, and the
// denial of a number whose responses are stored concerns all responses to the credential.
func (g *Gateway) endAccess(a *attempt, status int) {
	if status < http.StatusBadRequest || !a.match.Operation.Safe() || !a.hasAccess() || !a.replacesStored(status) || isFeed(a.match.Path) {
		return // a feed may be denied to a scheme of the credential
	}
	c, own := a.match.Collection(), credentialTag(a.identity.Caller.Class)
	isRoot := c.Family == "."
	tags := []string{own + "@" + inTag(a.match.Path)}
	if isRoot || a.match.Query == "" {
		tags = append(tags, tags[0]+"/")
	}
	if isRoot && c.Name != "" && c.Name != "?" {
		tags = append(tags, own+ofUnnamed)
	}
	self, stored := 0, 0
	if a.stale != nil && a.stale.Status < http.StatusBadRequest {
		self = 1
	}
	for _, tag := range tags {
		stored += g.Cache.Count(tag)
	}
	byNumber := isRoot && c.Name == "?" && stored > 0
	if byNumber {
		tags = append(tags, own)
	}
	if stored > self || byNumber || g.Cache.IsShared() && (isRoot || self > 0) {
		g.Cache.Purge(a.detach(), tags...)
	}
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

// TagsOfOperator returns the tags to purge for a tag that an operator named. Names of repositories, organizations and
// users are not case sensitive. The result includes the responses whose path has the number of the object instead of its
// name, because the number of the named object is unknown.
func TagsOfOperator(tag string) []string {
	root, name, _ := strings.Cut(tag, ":")
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

// TagOf returns the tag of a target for a purge by an operator. The target is a path, or a URL of the upstream or the
// gateway. The tag covers the target with any query.
func (g *Gateway) TagOf(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	path, ok := g.pathOf(u)
	if rest, local := strings.CutPrefix(path, EnterprisePrefix); !ok && local && strings.HasPrefix(rest, "/") {
		path = rest
	}
	m, err := g.Catalogue.Classify(http.MethodGet, path, u.RawQuery)
	if target := (*policy.TargetError)(nil); errors.As(err, &target) && target.Status == http.StatusMethodNotAllowed {
		m, err = g.Catalogue.Classify(http.MethodPost, path, u.RawQuery)
	}
	if err != nil {
		return "", err
	}
	return urlTag(m.Path), nil
}

// tagsOfResponse returns the tags that the response to an unsafe request makes stale. The status is below 400.
func (g *Gateway) tagsOfResponse(a *attempt, resp *http.Response) []string {
	switch {
	case resp.StatusCode >= http.StatusMultipleChoices:
		// The upstream may redirect before it checks the credential. The target becomes stale in any case (RFC 9111
		// section 4.4).
		return append(g.tagsOfUncertain(a.question), g.tagsOfPath(a.match.Path)...)
	case a.graphQL != nil && !a.isQuery():
		switch resultOfMutation(resp) {
		case failed:
			return nil
		case uncertain:
			return g.tagsOfUncertain(a.question)
		}
	}
	return slices.Concat(g.tagsOfChange(a.question), g.tagsOfLocation(a, resp.Header), tagsOfRename(a, resp))
}

// presentName matches the name of a repository in a response. The first one is that of the repository itself.
var presentName = regexp.MustCompile(`"full_name"\s*:\s*"([^"/]+/[^"/]+)"`)

// tagsOfRename returns the tags of the present name of a repository that a write has renamed. Responses about that name may be
// those of an earlier repository, or a 404.
func tagsOfRename(a *attempt, resp *http.Response) []string {
	if !a.match.Operation.MayRename() {
		return nil
	}
	name := presentName.FindSubmatch(peekText(resp))
	if name == nil || strings.EqualFold(string(name[1]), a.match.Collection().Name) {
		return nil
	}
	return tagsOfName(strings.ToLower(string(name[1])))
}

// tagsOfName returns the tags of all responses about a name: "owner/name" of a repository, or the name of an organization or
// a user.
func tagsOfName(name string) []string {
	tags := []string{queriesOf(name), queriesOf(anyObject), "repo:?"}
	if strings.Contains(name, "/") {
		return append(tags, "repo:"+name)
	}
	return append(tags, "org:"+name, "user:"+name, "org:?", "user:?")
}

// EndName makes all responses about a former name stale and ends its coverage by webhooks, because the name may mean another
// object.
func (g *Gateway) EndName(ctx context.Context, name string) {
	root := "org:"
	if strings.Contains(name, "/") {
		root = "repo:"
	}
	g.shown.forget(name)
	g.Cache.EndCoverage(ctx, root+name, tagsOfName(name)...)
}

// endRedirected ends the name of the object of a path, if a response about the path was stored and the upstream now redirects
// the path permanently. The upstream does so after a rename or a transfer.
func (g *Gateway) endRedirected(a *attempt, status int) {
	moved := status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect
	if c := a.match.Collection(); moved && a.match.Operation.Safe() && a.stale != nil && a.stale.Status < http.StatusMultipleChoices &&
		slices.Contains([]string{"repo", "org", "user"}, c.Root) && c.Name != "" {
		g.EndName(a.detach(), c.Name)
	}
}

// tagsOfChange returns the tags that a successful unsafe request makes stale. The tags cover the request's target (RFC
// 9111 section 4.4) and the operations that the catalogue lists, for the same path parameters. They also cover the
// collections that show the change, and GraphQL queries. A GraphQL query makes nothing stale. No request makes reference
// data (class Shared) stale.
func (g *Gateway) tagsOfChange(q *question) []string {
	tags, m := g.queriesChangedBy(q), q.match
	if q.graphQL != nil {
		return tags
	}
	tags = append(tags, g.tagsOfPath(m.Path)...)
	for _, id := range m.Operation.Invalidates {
		op := g.Catalogue.Operation(id)
		tag := scope(op, &m.Params)
		tags = append(tags, tag, scope(op, &policy.Params{}))
		if strings.HasSuffix(tag, unknownScope) {
			// The path has the number of the repository. The name is unknown, so all responses of the operation become
			// stale.
			tags = append(tags, "op:"+id)
		}
	}
	return append(tags, g.Catalogue.ChangedBy(m)...)
}

// maxUncertain bounds the tags that a mutation with an unknown result purges one by one.
const maxUncertain = 200

// tagsOfUncertain returns the tags that an unsafe request with an unknown result makes stale. A caller makes stale only the
// responses that the caller could have changed:
//
//   - A caller without a credential changes nothing.
//   - A caller whose credential the upstream has not accepted makes only the responses to its own account stale.
//   - Any other caller makes the responses stale about the objects that the request names. Related responses about no named
//     object, such as /user/issues, become stale only for the accounts of the client.
func (g *Gateway) tagsOfUncertain(q *question) (tags []string) {
	caller, m := q.identity.Caller, q.match
	switch {
	case q.isQuery(), m.Operation.ReadsOnly, caller.Kind == policy.Unauthenticated:
		return nil
	case !q.identity.Held && !g.tokens.Has(caller.Class, false):
		return []string{classTag(caller.Class), "account:" + caller.Account}
	}
	own := g.ownCallers(q)
	for _, c := range own {
		tags = append(tags, classTag(c.Class))
	}
	if call := q.graphQL; call != nil {
		if many := len(call.Repositories)+len(call.NodeIDs) > maxUncertain; many || len(call.Repositories) == 0 || len(call.NodeIDs) > 0 {
			for _, c := range own {
				tags = append(tags, "account:"+c.Account)
			}
			if many {
				return tags
			}
		}
		return append(tags, tagsOfNames(call)...)
	}
	at := m.Collection()
	if at.Root != "me" && !m.Operation.Personal { // otherwise the path names another object for each caller
		tags = append(tags, g.tagsOfPath(m.Path)...)
	}
	if name := repositoryOrOwner(&m); name != "" {
		tags = append(tags, queriesOf(name))
	}
	related := append(g.Catalogue.ChangedBy(m), widest(at))
	for _, id := range m.Operation.Invalidates {
		op := g.Catalogue.Operation(id)
		if tag := scope(op, &m.Params); tag != op.ID && !strings.HasSuffix(tag, unknownScope) {
			tags = append(tags, tag)
		}
		shown := policy.Match{Operation: op, Path: op.Path}
		related = append(related, widest(shown.Collection()))
	}
	for _, tag := range related {
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

// tagsOfObject returns the tags of the responses to the client about the object of an unsafe request. If targetOnly is set and
// the target can be read, the tags are those of the target.
func (g *Gateway) tagsOfObject(q *question, targetOnly bool) (tags []string) {
	if q.graphQL != nil || q.match.Operation.ReadsOnly || !q.hasAccess() {
		return nil
	}
	m := q.match
	paths := []string{m.Path}
	if read, err := g.Catalogue.Classify(http.MethodGet, m.Path, ""); !targetOnly || err != nil || !read.Operation.Known() {
		paths = append(paths, g.Catalogue.SameObject(&m)...)
	}
	for _, caller := range g.ownCallers(q) {
		for _, path := range paths {
			tags = append(tags, credentialTag(caller.Class)+"@"+inTag(path))
		}
	}
	return tags
}

// ownCallers returns the callers with which the client of a question may read its change: one caller for each credential.
func (g *Gateway) ownCallers(q *question) []policy.Caller {
	own := []policy.Caller{q.identity.Caller}
	if q.identity.Pick == nil {
		return own
	}
	r := CredentialRequest{Operation: q.match.Operation, Resource: q.resource, Path: q.match.Path, Target: targetOf(q.match.Path)}
	for {
		r.Except = append(r.Except, own[len(own)-1].Class)
		next, ok := q.identity.Pick(r)
		if !ok {
			return own
		}
		own = append(own, next.Caller)
	}
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

// tagsOfPath returns the tag of a path, or none for the path of reference data.
func (g *Gateway) tagsOfPath(path string) []string {
	if m, err := g.Catalogue.Classify(http.MethodGet, path, ""); err == nil && m.Operation.Cache.Class == policy.Shared {
		return nil
	}
	return []string{urlTag(path)}
}

// tagsOfLocation returns the tags of the targets in Location and Content-Location of a response to an unsafe request.
// Targets on other hosts are ignored (RFC 9111 section 4.4).
func (g *Gateway) tagsOfLocation(a *attempt, h http.Header) (tags []string) {
	for _, name := range []string{"Location", "Content-Location"} {
		u, err := g.target(a.match).Parse(h.Get(name))
		if err != nil || h.Get(name) == "" {
			continue
		}
		path, ok := g.pathOf(u)
		if m, err := g.Catalogue.Classify(http.MethodGet, path, u.RawQuery); ok && err == nil {
			tags = append(tags, g.tagsOfPath(m.Path)...)
		}
	}
	return tags
}

// unknownScope marks the scope of a response whose path has the number of the repository instead of the name. Every
// change to the operation makes such a response stale.
const unknownScope = "/?"

// scope returns the tag of an operation with the values of the operation's path parameters.
func scope(op *policy.Operation, params *policy.Params) string {
	var b strings.Builder
	b.WriteString(op.ID)
	for segment := range strings.SplitSeq(op.Path, "/") {
		if !strings.HasPrefix(segment, "{") {
			continue
		}
		value := params.Get(strings.Trim(segment, "{}"))
		if value == "" {
			return op.ID + unknownScope
		}
		b.WriteByte('/')
		b.WriteString(value)
	}
	return b.String()
}

func urlTag(path string) string { return "url:" + inTag(path) }

// inTag returns a path as a part of a tag. The hash of a path that may contain a credential replaces the path, because purges send
// tags to the shared cache.
func inTag(path string) string {
	if !isSecret(path, nil) {
		return path
	}
	key := cache.NewKey(path)
	return "/" + hex.EncodeToString(key[:8])
}

// at returns the tag of an operation's responses in one repository or organization.
func at(op *policy.Operation, where string) string { return "op:" + op.ID + "@" + where }

// TagsOfEvent returns the tags that a webhook event makes stale (design section 6.5). The tags cover the operations
// and the collections that the catalogue lists for the event, in the repository ("owner/name") or otherwise in the
// organization.
// A push to another branch than the default branch does not change responses of the documents' operations. Each event
// makes all GraphQL queries about the repository or the organization stale.
func (g *Gateway) TagsOfEvent(event, repository, organization string, otherBranch bool) (tags []string) {
	for _, op := range g.Catalogue.Operations() {
		if otherBranch || !slices.Contains(op.StaleOn, event) {
			continue
		}
		switch {
		case strings.Contains(op.Path, "{owner}") && repository != "":
			tags = append(tags, at(op, repository), scope(op, &policy.Params{}))
		case strings.Contains(op.Path, "{owner}"), strings.Contains(op.Path, "{org}"):
			tags = append(tags, at(op, organization), scope(op, &policy.Params{}))
		default:
			tags = append(tags, "op:"+op.ID)
		}
	}
	tags = append(tags, queriesOf(cmp.Or(repository, organization, anyObject)), queriesOf(anyObject))
	owner, _, _ := strings.Cut(repository, "/")
	changed, all := g.Catalogue.ChangedByEvent(event, repository, cmp.Or(organization, owner))
	if all {
		return g.allResponses()
	}
	return append(tags, changed...)
}
