package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/tags"
)

// tagged returns the part of the question on which the tags of its response depend.
func (q *question) tagged() tags.Question {
	return tags.Question{Match: &q.match, GraphQL: q.graphQL, Caller: q.caller}
}

// tags returns the tags of the stored response to the question.
func (q *question) tags() []string { return q.tagged().Tags() }

// endAccess makes the responses stale that depend on the access to a path, after the upstream has denied the path to a
// credential: those of the path, and those of all objects inside its object. A denial of a query, such as one for an unknown
// commit, concerns the path alone. The stored response to the question itself is replaced or deleted. Other replicas may have
// responses that this one does not know.
//
// A path may have the number of a root object instead of the name. So the denial of a name also concerns all responses by number, and the
// denial of a number whose responses are stored concerns all responses to the credential.
func (g *Gateway) endAccess(a *attempt, status int) {
	if status < http.StatusBadRequest || !a.match.Operation.Safe() || !a.dependsOnAccess() || !a.replacesStored(status) || isFeed(a.match.Path) {
		return // a feed may be denied to a scheme of the credential
	}
	c, denied := a.match.Collection(), a.tagged().OfDenial()
	isRoot := c.Family == "."
	self, stored := 0, 0
	if a.stale != nil && a.stale.Status < http.StatusBadRequest {
		self = 1
	}
	for _, tag := range denied {
		stored += g.Cache.Count(tag)
	}
	byNumber := isRoot && c.Name == "?" && stored > 0
	if byNumber {
		denied = append(denied, tags.Credential(a.caller.Class))
	}
	arriving := func(c *coalesce.Call) bool { // its response may be from before the denial, and is stored at its end
		return c != a.call && c.Account == a.caller.Account && (isRoot || strings.HasPrefix(strings.ToLower(c.Path), strings.ToLower(a.match.Path)+"/"))
	}
	if stored > self || byNumber || g.Cache.IsShared() && (isRoot || self > 0) || g.Background.calls.Any(arriving) {
		g.Cache.Purge(a.detach(), denied...)
	}
}

// endQueried makes the responses about the only repository that a query names stale, if the upstream has denied the repository to the
// credential.
func (g *Gateway) endQueried(a *attempt, resp *http.Response) {
	if !a.isQuery() || len(a.graphQL.Repositories) != 1 || !a.dependsOnAccess() {
		return
	}
	if body, ok := bodies.Whole(resp); !ok || !policy.DeniesRepository(body) {
		return
	}
	denied := a.tagged().OfDenial()
	if g.Cache.IsShared() || slices.ContainsFunc(denied, func(tag string) bool { return g.Cache.Count(tag) > 0 }) {
		g.Cache.Purge(a.detach(), denied...)
	}
}

// TagOf returns the tag of a target for a purge by an operator. The target is a path, or a URL of the upstream or the
// gateway. The tag covers the target with any query.
func (g *Gateway) TagOf(target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "", err
	}
	path, ok := g.urls.Path(u)
	if rest, local := strings.CutPrefix(path, names.EnterprisePrefix); !ok && local && strings.HasPrefix(rest, "/") {
		path = rest
	}
	m, err := g.Catalogue.Classify(http.MethodGet, path, u.RawQuery)
	if target := (*policy.TargetError)(nil); errors.As(err, &target) && target.Status == http.StatusMethodNotAllowed {
		m, err = g.Catalogue.Classify(http.MethodPost, path, u.RawQuery)
	}
	if err != nil {
		return "", err
	}
	return tags.URL(m.Path), nil
}

// tagsOfResponse returns the tags that the response to an unsafe request makes stale. The status is below 400. result is that of a
// mutation.
func (g *Gateway) tagsOfResponse(a *attempt, resp *http.Response, result policy.MutationResult) []string {
	switch {
	case resp.StatusCode >= http.StatusMultipleChoices:
		// The upstream may redirect before it checks the credential. The target becomes stale in any case (RFC 9111
		// section 4.4).
		return append(g.tagsOfUncertain(a.question), tags.OfPath(g.Catalogue, a.match.Path)...)
	case result == policy.MutationUncertain:
		return g.tagsOfUncertain(a.question)
	}
	return slices.Concat(g.tagsOfChange(a.question), g.tagsOfLocation(a, resp.Header), g.tagsOfName(a, resp))
}

// presentName matches the name of a repository in a response. The first one is that of the repository itself.
var presentName = regexp.MustCompile(`"full_name"\s*:\s*"([^"/]+/[^"/]+)"`)

// tagsOfName returns the tags of the present name of a repository that a write has created or renamed. Responses about that name
// may be those of an earlier repository, or a 404.
func (g *Gateway) tagsOfName(a *attempt, resp *http.Response) []string {
	if !a.match.Operation.MayName() {
		return nil
	}
	name := presentName.FindSubmatch(bodies.PeekText(resp))
	if name == nil || strings.EqualFold(string(name[1]), a.match.Collection().Name) {
		return nil
	}
	return tags.OfName(g.Catalogue, strings.ToLower(string(name[1])))
}

// EndName makes all responses about a former name stale and ends its coverage by webhooks, because the name may mean another
// object.
func (g *Gateway) EndName(ctx context.Context, name string) {
	root := "org:"
	if strings.Contains(name, "/") {
		root = "repo:"
	}
	g.shown.Forget(name)
	g.Cache.EndCoverage(ctx, root+name, tags.OfName(g.Catalogue, name)...)
}

// endRedirected ends the name of the object of a path, if a response about the path was stored and the upstream now redirects
// the path permanently. The upstream does so after a rename or a transfer.
func (g *Gateway) endRedirected(a *attempt, status int) {
	moved := status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect
	if !moved || !a.match.Operation.Safe() || a.stale == nil || a.stale.Status >= http.StatusMultipleChoices {
		return
	}
	if c := a.match.Collection(); slices.Contains([]string{"repo", "org", "user"}, c.Root) && c.Name != "" {
		g.EndName(a.detach(), c.Name)
	}
}

// tagsOfChange returns the tags that a successful unsafe request makes stale.
func (g *Gateway) tagsOfChange(q *question) []string {
	return tags.OfChange(g.Catalogue, q.tagged(), q.identity.Pool != nil)
}

// tagsOfUncertain returns the tags that an unsafe request with an unknown result makes stale. A caller makes stale only the
// responses that the caller could have changed:
//
//   - A caller without a credential changes nothing.
//   - A caller whose credential the upstream has not accepted makes only the responses to its own account stale.
//   - Any other caller makes the responses stale about the objects that the request names. Related responses about no named
//     object, such as /user/issues, become stale only for the accounts of the client.
func (g *Gateway) tagsOfUncertain(q *question) []string {
	caller := *q.caller
	switch {
	case q.isQuery(), q.match.Operation.ReadsOnly, caller.Kind == policy.Unauthenticated:
		return nil
	case q.identity.Credential == nil && !g.tokens.Has(caller.Class, false):
		return []string{tags.Class(caller.Class), "account:" + caller.Account}
	}
	return tags.OfUncertain(g.Catalogue, q.tagged(), g.ownCallers(q))
}

// ownCallers returns the callers with which the client of a question may read its change: one caller for each credential.
func (g *Gateway) ownCallers(q *question) []policy.Caller {
	own := []policy.Caller{*q.caller}
	if q.identity.Pool == nil {
		return own
	}
	r := q.credentialRequest(nil)
	for {
		r.Except = append(r.Except, own[len(own)-1].Class)
		next := q.identity.Pool.Pick(r, time.Now())
		if next == nil {
			return own
		}
		own = append(own, next.Caller)
	}
}

// tagsOfLocation returns the tags of the targets in Location and Content-Location of a response to an unsafe request.
// Targets on other hosts are ignored (RFC 9111 section 4.4).
func (g *Gateway) tagsOfLocation(a *attempt, h http.Header) (list []string) {
	target := g.urls.Target(a.match)
	for _, name := range names.URLFields {
		u, err := target.Parse(h.Get(name))
		if err != nil || h.Get(name) == "" {
			continue
		}
		path, ok := g.urls.Path(u)
		if m, err := g.Catalogue.Classify(http.MethodGet, path, u.RawQuery); ok && err == nil {
			list = append(list, tags.OfPath(g.Catalogue, m.Path)...)
		}
	}
	return list
}
