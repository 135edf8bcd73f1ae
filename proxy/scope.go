package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
	"github.com/weirgate/weir/proxy/tags"
)

// authorizeNames refuses a question that reaches repositories or owners outside of the scope of the client. The scope is that of
// the client, and not of one of its credentials.
func (g *Gateway) authorizeNames(ex *exchange, q *question, scope *policy.Scope) error {
	if g.Host != "" {
		n, ok, err := policy.NamedByFile(q.match.Path, q.sendsCredential(), g.Host, g.Upstream.Hostname())
		if !ok {
			return nil
		}
		if err == nil {
			err = scope.Permits(q.match.Operation, n)
		}
		return refusedByScope(q, err)
	}
	if q.graphQL != nil {
		return g.authorizeQuery(ex, q, scope)
	}
	var body []byte
	if q.match.NamesInBody() && ex.body != nil {
		var err error
		if body, err = g.wholeSmallBody(ex); err != nil {
			return err
		}
	}
	n, err := q.match.Named(body, func(kind policy.IDs, id string) (string, error) { return g.nameOf(ex, q, kind, id) })
	if refusal := scope.PermitsNumbers(n); refusal != nil {
		err = refusal
	}
	if err == nil {
		err = scope.Permits(q.match.Operation, n)
	}
	if err == nil {
		err = g.refuseFormer(ex, q, n.Followed)
	}
	if err == nil && len(n.Repositories) == 1 && strings.HasPrefix(q.match.Path, "/repos/") {
		q.named = n.Repositories[0]
	}
	return refusedByScope(q, err)
}

// authorizeQuery refuses a GraphQL call that reaches repositories or owners outside of the scope of the client.
func (g *Gateway) authorizeQuery(ex *exchange, q *question, scope *policy.Scope) error {
	if q.match.Query != "" {
		return errQueryInURL
	}
	followed, err := scope.PermitsQuery(q.graphQL, func(ids []string) ([]policy.Node, error) { return g.nodesOf(ex, q, ids) })
	if err != nil {
		return refusedByRules(err)
	}
	return g.refuseFormer(ex, q, followed)
}

// refusedByRules returns the refusal for a [policy.GraphQLError].
func refusedByRules(err error) error {
	var forbidden *policy.GraphQLError
	if !errors.As(err, &forbidden) {
		return err
	}
	return &refusal.Error{Status: http.StatusForbidden, GraphQL: forbidden, Message: forbidden.Message, Detail: "scope"}
}

// refuseFormer refuses a call with a former name of a repository, because the upstream would answer for the repository that has
// another name or owner now. REST redirects former names.
func (g *Gateway) refuseFormer(ex *exchange, q *question, names []string) error {
	refuse := func(reason string) error {
		if q.graphQL == nil {
			return refusedByScope(q, &policy.ScopeError{Reason: reason})
		}
		return refusedByRules(&policy.GraphQLError{Type: "FORBIDDEN", Message: "check GraphQL query: " + reason})
	}
	if len(names) > policy.MaxLookUps {
		return refuse(fmt.Sprintf("it names more than %d repositories; send several requests", policy.MaxLookUps))
	}
	for _, name := range names {
		current := ""
		if tags.FullName.MatchString(name) {
			var err error
			if current, err = g.shownName(ex, q, policy.RepositoryNames, strings.ToLower(name)); err != nil {
				return err
			}
		}
		if !strings.EqualFold(current, name) {
			return refuse(fmt.Sprintf("the upstream shows no repository that has the name %.150q now; use its current name", name))
		}
	}
	return nil
}

// namesOutside reports whether a target names repositories or owners outside of a scope. Bodies and the names behind numbers are
// unknown, and count as permitted.
func namesOutside(scope *policy.Scope, m policy.Match) bool {
	if !scope.LimitsNames() || m.NamesInBody() || m.Operation.Resource == policy.GraphQL {
		return false
	}
	var reason *policy.ScopeError
	n, err := m.Named(nil, func(policy.IDs, string) (string, error) { return "", errUnknownName })
	if err == nil {
		err = scope.Permits(m.Operation, n)
	}
	return errors.As(err, &reason)
}

var errUnknownName = errors.New("the name behind a number is unknown")

var errQueryInURL = &refusal.Error{
	Status: http.StatusForbidden, Detail: "scope",
	Message: "Forbidden: send the GraphQL query in the body; this client may not have a query in the URL",
}

// refusedByScope returns the refusal for a [policy.ScopeError]. The status is 403 and not 404, because a program takes a 404 as
// proof that the object does not exist, and may create it again. The refusal does not depend on the existence of the object.
func refusedByScope(q *question, err error) error {
	var reason *policy.ScopeError
	if !errors.As(err, &reason) {
		return err
	}
	return &refusal.Error{
		Status: http.StatusForbidden, Detail: "scope", Cause: reason,
		Message: fmt.Sprintf("Forbidden: this gateway does not let its client %q call %s %s: %s",
			q.caller.Client, record.MethodLabel(q.method), q.match.Operation.ID, reason.Reason),
	}
}

// sendsCredential reports whether the request upstream has a credential.
func (q *question) sendsCredential() bool {
	return q.identity.Credential != nil || q.identity.Passed
}

// wholeSmallBody reads the request body. A body above maxUploadBuffer yields an unreadable text, so that the scope refuses it.
func (g *Gateway) wholeSmallBody(ex *exchange) ([]byte, error) {
	body, err := g.bufferBody(ex)
	switch {
	case err == nil && ex.lacksMemory():
		return nil, errBodyMemory
	case err == nil && !ex.wholeBody:
		body = []byte("{")
	}
	return body, err
}

// lacksMemory reports whether a body was not read to its end because of the memory budget.
func (ex *exchange) lacksMemory() bool {
	return ex.buffered != nil && !ex.wholeBody && len(ex.buffered.Data) <= maxUploadBuffer
}

// errBodyMemory refuses a request whose body decides about its scope, because the body cannot be read now.
var errBodyMemory = &refusal.Error{
	Status: http.StatusServiceUnavailable, Detail: "overload", RetryAfter: refusal.UnknownRetry, Closes: true,
	Message: "Service Unavailable: this gateway has no memory left to read the body",
}

// numberedLink matches the number of a repository in a link to a page.
var numberedLink = regexp.MustCompile(`/repositories/([0-9]{1,19})/[^>]*>\s*;[^,]*rel="?(?:next|prev|first|last)\b`)

// learnNumber remembers the number of the repository that a question names, which the links of lists contain.
func (g *Gateway) learnNumber(q *question, h http.Header) {
	for _, link := range h["Link"] {
		if m := numberedLink.FindStringSubmatch(link); m != nil {
			g.shown.Add(string(policy.RepositoryIDs)+m[1], learned.Name{Text: q.named})
			return
		}
	}
}

// nameOf returns the name behind a number, from an earlier response or from a request with the credential of the client. That
// request takes the journey of every request: it needs a permit, uses the cache and has a record. The name is empty if the upstream
// shows none. Only the same client with the same credential uses that result, because others may see the object.
func (g *Gateway) nameOf(ex *exchange, q *question, kind policy.IDs, id string) (string, error) {
	if id = strings.TrimLeft(id, "0"); id == "" {
		return "", &policy.ScopeError{Reason: "0 is not the number of a repository"}
	}
	return g.shownName(ex, q, kind, id)
}

// shownName is [Gateway.nameOf] for a number without leading zeros, or for a name.
func (g *Gateway) shownName(ex *exchange, q *question, kind policy.IDs, id string) (string, error) {
	path := string(kind) + id
	if shown, ok := g.shown.Known(q.caller, path); ok {
		return shown.Text, nil
	}
	name, final := "", false
	err := g.lookUp(ex, q, http.MethodGet, path, nil, func(a *attempt, resp *http.Response) (err error) {
		name, final, err = g.readName(a, resp, kind, id)
		return err
	})
	switch {
	case err != nil:
	case name != "":
		g.shown.Add(path, learned.Name{Text: name})
	case final:
		g.shown.AddAbsent(q.caller, path)
	}
	return name, err
}

// nodePath precedes node IDs in [learned.Names].
const nodePath = "node "

// nodesOf returns the objects behind node IDs, as [Gateway.nameOf] does for numbers. One query requests all that are unknown.
func (g *Gateway) nodesOf(ex *exchange, q *question, ids []string) ([]policy.Node, error) {
	nodes := make([]policy.Node, len(ids))
	var unknown []string
	var at []int
	for i, id := range ids {
		shown, ok := g.shown.Known(q.caller, nodePath+id)
		nodes[i] = policy.Node{Type: shown.Kind, Repository: shown.Text}
		if !ok {
			unknown, at = append(unknown, id), append(at, i)
		}
	}
	if len(unknown) == 0 {
		return nodes, nil
	}
	return nodes, g.lookUp(ex, q, http.MethodPost, q.match.Path, policy.NodesQuery(unknown), func(a *attempt, resp *http.Response) error {
		shown, _ := bodies.Peek(resp, maxNodes)
		found, err := policy.ReadNodes(contentcoding.Decode(resp.Header.Get("Content-Encoding"), shown, maxNodes), len(unknown))
		if resp.StatusCode != http.StatusOK || err != nil || a.result.limited != policy.NotLimited {
			return g.scopeUnknown(a, "the repositories of node IDs", resp.StatusCode)
		}
		for i, node := range found {
			path := nodePath + unknown[i]
			if nodes[at[i]] = node; node.Type != "" {
				g.shown.Add(path, learned.Name{Text: node.Repository, Kind: node.Type})
			} else if !a.unclear {
				g.shown.AddAbsent(q.caller, path)
			}
		}
		return nil
	})
}

// maxNodes bounds the response with the repositories of 100 node IDs and their errors.
const maxNodes = 64 << 10

// scopeUnknown returns the refusal if the upstream does not show a name now. It is that of the client's request if the upstream
// would refuse this request, too, because of the credential or a limit.
func (g *Gateway) scopeUnknown(a *attempt, object string, status int) error {
	if a.result.limited != policy.NotLimited {
		a.hasAlternative = true // the ledger knows the end of the limit, so the wait is short
		permit, err := g.queue(a, *a.caller)
		if err != nil {
			return err
		}
		_, _ = g.Limiter.Settle(a.detach(), *permit, limits.Outcome{}) // the limit does not concern the next request
	} else if status == http.StatusUnauthorized {
		return errBadCredentials
	}
	return &refusal.Error{
		Status: http.StatusServiceUnavailable, Detail: "scope", RetryAfter: refusal.IdentityRetry,
		Message: fmt.Sprintf("Service Unavailable: the upstream does not show %s now (status %d), so the scope is unknown", object, status),
	}
}

// errLookUp is the result of a look-up after a panic.
var errLookUp = &refusal.Error{Status: http.StatusInternalServerError, Message: "Internal Server Error"}

// lookUp sends a request with the credential of the client, and passes its response to read.
func (g *Gateway) lookUp(ex *exchange, q *question, method, path string, body []byte, read func(*attempt, *http.Response) error) error {
	if err := g.shed(q.caller.Priority); err != nil {
		return err
	}
	defer g.Shedder.Leave()
	in, err := http.NewRequestWithContext(ex.in.Context(), method, path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if len(body) > 0 {
		in.Header.Set("Content-Type", "application/json")
	}
	sub := g.openBackground(in, ex.trace.Context())
	sub.address, sub.prefer, sub.waitingSince = ex.address, ex.prefer, ex.waitingSince
	sub.pass = passNothing
	sub.record.Account, sub.record.Client, sub.record.Tag = ex.record.Account, ex.record.Client, ex.record.Tag
	err = errLookUp // after a panic
	func() {
		defer g.finish(sub)
		defer func() { sub.record.Background = true }() // the client did not send this request
		err = g.sendLookUp(sub, q, read)
	}()
	return err
}

// sendLookUp sends the request of [Gateway.lookUp].
func (g *Gateway) sendLookUp(sub *exchange, q *question, read func(*attempt, *http.Response) error) error {
	asked, err := g.parse(sub, q.identity)
	if err != nil {
		return err
	}
	asked.authorization = q.authorization
	g.setCredential(sub, asked, g.chooseCredential(asked, q.identity, nil))
	a := g.newAttempt(sub, asked)
	var resp *http.Response
	if e := g.usableEntry(a); e != nil && !a.mayBeHidden(e.Status) {
		resp = g.useHit(a, e)
	} else {
		a.hidden = e
		target := g.urls.Target(asked.match)
		out := &http.Request{Method: asked.method, URL: &target, Header: a.sentHeader(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
		if sub.body != nil {
			out.Body, out.ContentLength = sub.in.Body, sub.in.ContentLength
		}
		a, resp, err = g.answerWithAny(a, out.WithContext(a.ctx))
	}
	a.publish()
	if err != nil {
		return err
	}
	sub.answer = resp.Body
	defer func() { bodies.Discard(resp.Body) }()
	sub.w.WriteHeader(resp.StatusCode)
	return read(a, resp)
}

// readName returns the name in a response about an object with a number, or the current name of a repository. The name is empty if the
// response shows none. final is false if the upstream may show one soon.
func (g *Gateway) readName(a *attempt, resp *http.Response, kind policy.IDs, id string) (name string, final bool, err error) {
	shown := bodies.PeekText(resp)
	switch status := resp.StatusCode; {
	case a.result.limited == policy.NotLimited && status >= 300 && status < 500 && status != http.StatusUnauthorized:
		return "", !a.unclear, nil
	case status != http.StatusOK:
		return "", false, g.scopeUnknown(a, "the name of "+string(kind)+id, status)
	}
	member := "login"
	if kind == policy.RepositoryIDs || kind == policy.RepositoryNames {
		member = "full_name"
	}
	name, _ = field(shown, member).(string)
	number, _ := field(shown, "id").(json.Number)
	switch {
	case kind == policy.RepositoryNames:
		name = cmp.Or(name, id) // a former name has a redirect
	case number.String() != id:
		name = ""
	}
	return name, true, nil
}
