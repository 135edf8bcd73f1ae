package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// walkActor is an identity. Several clients may have it.
type walkActor struct {
	name string
	// authorization is what the client sends to the gateway, and token what the gateway sends to the service.
	authorization, token string
	login                string // of the token's user; empty without a user
	member               bool   // sees the private repository
	madeUp               bool   // each request has another token
}

// walkers is the number of clients.
const walkers = 22

var walkActors = []walkActor{
	{name: "builds", authorization: "Bearer key-of-builds", token: "tok-owner", login: "acme-owner", member: true},
	{name: "agents", authorization: "Bearer key-of-agents", token: "tok-owner", login: "acme-owner", member: true},
	{name: "bots", authorization: "Bearer key-of-bots", token: "tok-app", member: true},
	{name: "member", authorization: "Bearer tok-member", token: "tok-member", login: "acme-member", member: true},
	{name: "outsider", authorization: "token tok-outsider", token: "tok-outsider", login: "outsider"},
	{name: "security", authorization: "Bearer tok-security-manager", token: "tok-security-manager", login: "builder-01", member: true},
	{name: "enterprise", authorization: basic("builder-02:tok-enterprise"), token: "tok-enterprise", login: "builder-02", member: true},
	{name: "workflow", authorization: "Bearer tok-workflow", token: "tok-workflow"},
	{name: "oauth", authorization: basic("oauth-app:oauth-secret"), token: "oauth-app:oauth-secret"},
	{name: "anonymous"},
	{name: "made-up", madeUp: true},
}

func basic(pair string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) }

// walkClient sends one request after the other.
type walkClient struct {
	*walk
	*walkActor
	random  *rand.Rand
	recent  []string          // targets of reads
	tags    map[string]string // ETags by target
	created []createdObject   // issues
	// comments are by the path of their list.
	comments map[string][]createdObject
}

type createdObject struct {
	number int
	at     time.Time
}

func (w *walk) client(a *walkActor, random *rand.Rand) *walkClient {
	return &walkClient{walk: w, walkActor: a, random: random, tags: map[string]string{}, comments: map[string][]createdObject{}}
}

// walkMoves are what clients do. A move with a name is traffic that shows an open defect.
var walkMoves = []struct {
	weight int
	only   string
	do     func(c *walkClient)
}{
	{30, "", (*walkClient).readAgain},
	{14, "", (*walkClient).readAny},
	{12, "", (*walkClient).readPrivate},
	{6, "", (*walkClient).readOwn},
	{6, "", (*walkClient).write},
	{5, "", (*walkClient).createAndList},
	{3, "", (*walkClient).list},
	{6, "", (*walkClient).comment},
	{5, "", (*walkClient).query},
	{2, "", (*walkClient).mutate},
	{3, "", (*walkClient).search},
	{2, "", (*walkClient).statistics},
	{2, "", (*walkClient).oldName},
	{2, "", (*walkClient).download},
	{2, "", (*walkClient).unknown},
	{1, "", (*walkClient).event},
	{1, "", (*walkClient).oldVersion},
	{1, "", (*walkClient).rateLimit},
	{2, "", (*walkClient).vendorField},
	{2, "", (*walkClient).trailer},
	{2, "", (*walkClient).overtaken},
	{2, "", (*walkClient).herd},
	{1, "", (*walkClient).formerName},
}

// walk makes random moves until all requests of the walk are sent.
func (c *walkClient) run() {
	total := 0
	for _, m := range walkMoves {
		total += m.weight
	}
	for c.sent.Load() < c.requests {
		pick, i := c.random.IntN(total), 0
		for ; pick >= walkMoves[i].weight; i++ {
			pick -= walkMoves[i].weight
		}
		if m := walkMoves[i]; m.only == "" || c.traffic[m.only] {
			m.do(c)
		}
		sleepFor(context.Background(), c.random, time.Second)
	}
}

// message is a request of a client.
type message struct {
	method, target, body string
	fields               []string          // name, value
	trailer              string            // the name of a field after the body
	replica              http.RoundTripper // nil selects any
}

// reply is a response, or an error.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// do sends a request and passes the result to the oracle. Some clients leave before the end. After a refusal, the client
// waits as long as the response demands, but at most for 15 seconds.
func (c *walkClient) do(m message) (r reply) {
	c.sent.Add(1)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	leaves := c.random.IntN(20) == 0
	if leaves {
		defer time.AfterFunc(time.Duration(c.random.Int64N(int64(400*time.Millisecond))), leave).Stop()
	}
	req := must(http.NewRequestWithContext(ctx, m.method, c.origin()+m.target, strings.NewReader(m.body)))(c)
	if m.body == "" {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(m.fields); i += 2 {
		req.Header.Set(m.fields[i], m.fields[i+1])
	}
	if c.token != "" {
		req.Header.Set("Authorization", c.upstreamAuthorization())
	}
	if m.trailer != "" {
		req.Trailer, req.ContentLength, req.Body = http.Header{m.trailer: {"walk"}}, -1, io.NopCloser(strings.NewReader(m.body))
	}
	asClient := roundTripper(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		switch {
		case c.madeUp:
			req.Header.Set("Authorization", fmt.Sprintf("Bearer made-up-%d", c.random.Uint64()))
		case c.authorization != "":
			req.Header.Set("Authorization", c.authorization)
		}
		if m.replica != nil {
			return m.replica.RoundTrip(req)
		}
		return c.walk.clients[c.random.IntN(len(c.walk.clients))].RoundTrip(req)
	})
	began := time.Now()
	transport := http.RoundTripper(asClient)
	if !c.madeUp {
		transport = c.judge.Transport(c.account(), asClient)
	}
	resp, err := transport.RoundTrip(req)
	if r.err = err; err == nil {
		r.status, r.header = resp.StatusCode, resp.Header
		r.body, r.err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	c.check(c.walkActor, m, r, began, leaves && ctx.Err() != nil)
	if after, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil && r.status >= 400 {
		sleepFor(context.Background(), c.random, min(15*time.Second, time.Duration(after)*time.Second))
	}
	return r
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// upstreamAuthorization returns the Authorization field that the service gets.
func (a *walkActor) upstreamAuthorization() string {
	if strings.Contains(a.token, ":") {
		return basic(a.token)
	}
	return "Bearer " + a.token
}

// account returns the account that the service counts against.
func (a *walkActor) account() string {
	switch {
	case a.madeUp:
		return "made-up"
	case a.token == "":
		return "anonymous"
	}
	return a.token
}

// sharesAccount reports whether other clients have the same account.
func (a *walkActor) sharesAccount() bool {
	return slices.ContainsFunc(walkActors, func(b walkActor) bool { return b.name != a.name && b.account() == a.account() })
}

// read sends a GET request, half of the time with the ETag of the last response.
func (c *walkClient) read(target string, fields ...string) reply {
	c.recent = append(c.recent[max(0, len(c.recent)-15):], target)
	tag := c.tags[target]
	if tag != "" && c.random.IntN(2) == 0 {
		fields = append(fields, "If-None-Match", tag)
	}
	r := c.do(message{method: http.MethodGet, target: target, fields: fields})
	if tag := r.header.Get("Etag"); tag != "" && r.status == http.StatusOK && r.err == nil {
		c.tags[target] = tag
	}
	return r
}

func (c *walkClient) readAgain() {
	if len(c.recent) > 0 {
		c.read(c.recent[c.random.IntN(len(c.recent))])
	}
}

// accessChanges are operations that change the access of users, or delete comments. The oracle does not follow such changes, so clients send
// no samples of them.
var accessChanges = regexp.MustCompile(`member|collaborator|outside|teams/|enterprise|invit|repos/(delete|update|transfer|create)$|visib|block|repos/create-(in|for|using)|migrations/|installation|delete-comment`)

// sample returns a request for a random operation.
func (c *walkClient) sample(reads bool) message {
	operations := c.operations
	for {
		op := operations[c.random.IntN(len(operations))]
		if (op.Method == http.MethodGet) != reads || !reads && accessChanges.MatchString(op.ID) || op.ID == "meta/root" {
			continue
		}
		method, target, body := c.service.Sample(op.ID, c.random)
		return message{method: method, target: target, body: string(body)}
	}
}

func (c *walkClient) readAny() { c.read(c.sample(true).target) }

func (c *walkClient) write() { c.do(c.sample(false)) }

var privatePaths = []string{"", "/pulls", "/commits", "/contents/README.md", "/readme", "/issues", "/branches", "/pulls/1", "/subscribers"}

func (c *walkClient) readPrivate() {
	c.read("/repos/acme/secret" + privatePaths[c.random.IntN(len(privatePaths))])
}

// readOwn reads what depends on the caller.
func (c *walkClient) readOwn() {
	r := c.read([]string{"/user", "/user/orgs", "/user/repos", "/user/emails", "/users/acme-owner", "/gitignore/templates/Go"}[c.random.IntN(6)])
	if path := c.recent[len(c.recent)-1]; path == "/user" && r.status == http.StatusOK && r.err == nil {
		c.want(c.login, bodyOf[struct{ Login string }](r.body).Login, "GET /user as "+c.name)
	}
}

func bodyOf[T any](body []byte) (v T) {
	_ = json.Unmarshal(body, &v) // another body has no members
	return v
}

// createAndList creates an issue, or reads one without creating after the first ten. Later lists must contain it. Before, the
// client reads an issue that may not exist yet.
func (c *walkClient) createAndList() {
	if len(c.created) > 0 {
		issue := c.created[c.random.IntN(len(c.created))]
		c.readObject(fmt.Sprintf("/repos/acme/widgets/issues/%d", issue.number), issue.at)
		c.read(fmt.Sprintf("/repos/acme/widgets/issues/%d", c.created[len(c.created)-1].number+1+c.random.IntN(3)))
	}
	if len(c.created) == 10 { // longer lists would take all requests
		return
	}
	r := c.do(message{method: http.MethodPost, target: "/repos/acme/widgets/issues", body: `{"title":"walk"}`})
	if n := bodyOf[struct{ Number int }](r.body).Number; r.status == http.StatusCreated && r.err == nil {
		c.created = append(c.created, createdObject{n, time.Now()})
		c.read(fmt.Sprintf("/repos/acme/widgets/issues/%d", n))
	}
	c.list()
}

// readObject reads an object that the client has created.
func (c *walkClient) readObject(target string, created time.Time) {
	age := time.Since(created)
	if r := c.read(target); r.status == http.StatusNotFound && r.err == nil && age > c.lag {
		c.wrong("no %s for %s, which exists for %v: %s", target, c.name, age, r.header.Get("Cache-Status"))
	}
}

// comment adds a comment to an issue, and reads the short pages of its comments, which must contain it after the lag.
func (c *walkClient) comment() {
	target := fmt.Sprintf("/repos/acme/widgets/issues/%d/comments", 1+c.random.IntN(3))
	began, ids := time.Now(), c.pages(target+"?per_page=2", 20)
	for _, x := range c.comments[target] {
		if ids != nil && x.at.Before(began.Add(-c.lag)) && !ids[x.number] {
			c.wrong("%s as %s lacks comment %d, created %v before; it has %d", target, c.name, x.number, began.Sub(x.at), len(ids))
			return
		}
	}
	if len(c.comments[target]) == 3 {
		return
	}
	r := c.do(message{method: http.MethodPost, target: target, body: `{"body":"walk"}`})
	if id := bodyOf[struct{ ID int }](r.body).ID; r.status == http.StatusCreated && r.err == nil {
		c.comments[target] = append(c.comments[target], createdObject{id, time.Now()})
	}
}

var nextPage = regexp.MustCompile(`<([^>]*)>; rel="next"`)

// list reads all pages of a list, and checks that the issues that this client created are in it.
func (c *walkClient) list() {
	began := time.Now()
	target := fmt.Sprintf("/repos/acme/widgets/issues?state=all&sort=created&direction=asc&per_page=%d", []int{30, 100}[c.random.IntN(2)])
	numbers := c.pages(target, 50)
	for _, issue := range c.created {
		if numbers != nil && issue.at.Before(began.Add(-c.lag)) && !numbers[issue.number] {
			c.wrong("a list of all issues as %s lacks issue %d, created %v before; it has %d issues", c.name, issue.number, began.Sub(issue.at), len(numbers))
			return
		}
	}
}

// pages returns the numbers or IDs in all pages of a list, or nil if a page cannot be read.
func (c *walkClient) pages(target string, most int) map[int]bool {
	found := map[int]bool{}
	for range most {
		r := c.do(message{method: http.MethodGet, target: target})
		if r.status != http.StatusOK || r.err != nil {
			return nil
		}
		for _, item := range bodyOf[[]struct{ Number, ID int }](r.body) {
			found[cmp.Or(item.Number, item.ID)] = true
		}
		next := nextPage.FindStringSubmatch(r.header.Get("Link"))
		if next == nil {
			return found
		}
		u := must(url.Parse(next[1]))(c)
		if u.Scheme+"://"+u.Host != c.origin() {
			c.wrong("%s: the next page is at another host: %s", target, next[1])
			return nil
		}
		target = u.RequestURI()
	}
	return nil
}

// call sends a GraphQL call.
func (c *walkClient) call(query string) reply {
	body := must(json.Marshal(map[string]string{"query": query}))(c)
	return c.do(message{method: http.MethodPost, target: "/graphql", body: string(body)})
}

func (c *walkClient) query() {
	repository := []string{"widgets", "secret"}[c.random.IntN(2)]
	r := c.call(fmt.Sprintf(`{ viewer { login } repository(owner: "acme", name: %q) { nameWithOwner issues(first: %d) { nodes { title } } } }`,
		repository, 1+c.random.IntN(100)))
	answer := bodyOf[struct {
		Data struct{ Viewer struct{ Login string } }
	}](r.body)
	if login := answer.Data.Viewer.Login; login != "" {
		c.want(c.login, login, "the viewer of "+c.name)
	}
}

func (c *walkClient) mutate() {
	c.call(fmt.Sprintf(`mutation { addComment(input: {subjectId: "I_1001%06d", body: "walk"}) { subject { id } } }`, 1+c.random.IntN(30)))
}

func (c *walkClient) search() {
	c.read([]string{
		"/search/issues?q=repo:acme/widgets+gear", "/search/code?q=gear+repo:acme/widgets", "/search/repositories?q=acme",
		"/search/code?q=vault+repo:acme/secret",
	}[c.random.IntN(4)])
}

func (c *walkClient) statistics() {
	c.read("/repos/acme/widgets/stats/" + []string{"punch_card", "contributors", "commit_activity"}[c.random.IntN(3)])
}

// oldName reads or writes by the former name of a repository.
func (c *walkClient) oldName() {
	m := message{method: http.MethodGet, target: "/repos/acme/gadgets/issues/3"}
	if c.random.IntN(4) == 0 {
		m.method, m.body = http.MethodPost, `{"body":"walk"}`
		m.target += "/comments"
	}
	c.redirected(m)
}

// redirected sends a request and follows a redirect within the API.
func (c *walkClient) redirected(m message) {
	r := c.do(m)
	location := r.header.Get("Location")
	if r.status/100 != 3 || location == "" {
		return
	}
	u := must(url.Parse(location))(c)
	switch {
	case u.Host == "api.test":
		c.wrong("%s %s: the redirect leads past the gateway: %s", m.method, m.target, location)
	case u.Scheme+"://"+u.Host == c.origin():
		m.target = u.RequestURI()
		c.do(m)
	}
}

func (c *walkClient) download() {
	c.redirected(message{method: http.MethodGet, target: "/repos/acme/" + []string{"widgets", "secret"}[c.random.IntN(2)] + "/tarball/main"})
}

// unknown calls a route that neither the gateway nor the service knows.
func (c *walkClient) unknown() {
	target := []string{"/repos/acme/widgets/future/things", "/future", "/repos/acme/secret/future"}[c.random.IntN(3)]
	c.do(message{method: http.MethodGet, target: target})
}

// vendorField sends a field of a vendor to an unknown route. The service must get it.
func (c *walkClient) vendorField() {
	c.do(message{method: http.MethodGet, target: "/future/tools", fields: []string{"X-Mcp-Readonly", "true"}})
}

// trailer sends a credential in a trailer. The service must not get it.
func (c *walkClient) trailer() {
	c.do(message{method: http.MethodPost, target: "/repos/acme/widgets/issues/3/comments", body: `{"body":"walk"}`, trailer: "Cookie"})
}

// event lets something happen outside of the gateway, which the service announces with a webhook.
func (c *walkClient) event() {
	w := sendTo(c.service, http.MethodPost, "/_service/events", `{"event":"push","repository":"acme/widgets","commits":1}`)
	c.want(fmt.Sprint(http.StatusAccepted), fmt.Sprint(w.Code), "create an event")
}

func (c *walkClient) oldVersion() {
	c.read("/repos/acme/widgets/labels", "X-GitHub-Api-Version", "2021-01-01")
}

func (c *walkClient) rateLimit() { c.do(message{method: http.MethodGet, target: "/rate_limit"}) }

// outside lets a program that does not use the gateway send a request to the service, which announces no event in acme-labs. It
// reports whether the request succeeded. The program sends seldom, so it exceeds no limit.
func (c *walkClient) outside(method, target, body string) (ok bool) {
	c.mu.Lock()
	soon := time.Now().Before(c.nextOutside)
	if !soon {
		c.nextOutside = time.Now().Add(2 * time.Minute) // a response that is aborted or refused may be a limit error
	}
	c.mu.Unlock()
	if soon {
		return false
	}
	defer func() { _ = recover() }() // a quirk aborts the response
	code := sendTo(c.service, method, target, body, "Authorization: Bearer tok-enterprise-app").Code
	if code < 400 || code == http.StatusNotFound {
		c.mu.Lock()
		c.nextOutside = time.Now().Add(10 * time.Second)
		c.mu.Unlock()
	}
	return code < 300
}

// overtaken reads a label, which another program deletes, and changes it. The next read must not show it.
func (c *walkClient) overtaken() {
	const labels = "/repos/acme-labs/spare-0/labels"
	name := fmt.Sprintf("walk-%d", c.random.Uint32())
	c.do(message{method: http.MethodPost, target: labels, body: fmt.Sprintf(`{"name":%q}`, name)})
	time.Sleep(c.lag + time.Second)
	if c.read(labels+"/"+name).status != http.StatusOK {
		return
	}
	time.Sleep(5 * time.Second) // more than the precision of Age
	if c.outside(http.MethodDelete, labels+"/"+name, "") {
		c.do(message{method: http.MethodPatch, target: labels + "/" + name, body: `{"color":"ff0000"}`})
		c.read(labels + "/" + name)
	}
}

// herd reads a missing object several times at once. The clients of a replica must share its calls. A change during the reads
// needs another call, so three herds in a row must fail.
func (c *walkClient) herd() {
	if c.madeUp || c.token == "" {
		return
	}
	var found []string
	for range 3 {
		target := fmt.Sprintf("/repos/acme/widgets/labels/none-%d", c.random.Uint32())
		var group sync.WaitGroup
		replica := c.clients[c.random.IntN(len(c.clients))]
		replies := make([]string, 10)
		for i := range replies {
			member := c.client(c.walkActor, rand.New(rand.NewPCG(c.random.Uint64(), 0)))
			group.Go(func() {
				r := member.do(message{method: http.MethodGet, target: target, replica: replica})
				replies[i] = fmt.Sprintf("%d %v %s", r.status, r.err, r.header.Get("Cache-Status"))
			})
		}
		group.Wait()
		got := c.sentTo(c.account(), target)
		if len(got) <= len(replies)/2 || slices.ContainsFunc(got, func(status int) bool { return status != http.StatusNotFound }) {
			return
		}
		found = append(found, fmt.Sprintf("%d parallel reads of %s as %s took %d calls: %s", len(replies), target, c.name, len(got), strings.Join(replies, "; ")))
	}
	c.wrong("%s", strings.Join(found, "\n"))
}

// formerName reads a repository and renames it without an event. After a redirect, its other responses must not be used.
func (c *walkClient) formerName() {
	repository := fmt.Sprintf("acme-labs/spare-%d", c.spare.Add(1))
	if c.read("/repos/"+repository).status != http.StatusOK || c.read("/repos/"+repository+"/labels").status != http.StatusOK {
		return
	}
	c.mu.Lock()
	c.oldNames[repository] = "acme-labs/spare-0"
	renamed := sendTo(c.service, http.MethodPut, "/_service/quirks", string(must(json.Marshal(map[string]any{"old_names": c.oldNames}))(c)))
	c.mu.Unlock()
	c.want(fmt.Sprint(http.StatusOK), fmt.Sprint(renamed.Code), "rename "+repository)
	if c.do(message{method: http.MethodGet, target: "/repos/" + repository, fields: []string{"Cache-Control", "no-cache"}}).status/100 != 3 {
		return
	}
	if r := c.read("/repos/" + repository + "/labels"); r.status == http.StatusOK {
		c.wrong("%s was renamed, but %s gets its labels: %s", repository, c.name, r.header.Get("Cache-Status"))
	}
}
