package proxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/contentcoding"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// answer is a response of the upstream.
type answer struct {
	status int
	fields []string // "Name: value"
	body   string
}

// moody is an upstream with one window for each API, and plenty of quota. The next requests get the answers of next, in
// their order, and all others succeed.
type moody struct {
	mu   sync.Mutex
	next []answer
	used map[string]int
	// silent leaves out the rate fields of the answers in next.
	silent bool
	delay  time.Duration
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(m.delay)
	m.mu.Lock()
	defer m.mu.Unlock()
	resource := "core"
	if r.URL.Path == "/graphql" {
		resource = "graphql"
	}
	if m.used == nil {
		m.used = map[string]int{}
	}
	m.used[resource]++
	h := w.Header()
	planned := len(m.next) > 0
	if !planned || !m.silent {
		h.Set("X-RateLimit-Limit", "5000")
		h.Set("X-RateLimit-Used", strconv.Itoa(m.used[resource]))
		h.Set("X-RateLimit-Remaining", strconv.Itoa(5000-m.used[resource]))
		h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Truncate(moodyWindow).Add(moodyWindow).Unix(), 10))
		h.Set("X-RateLimit-Resource", resource)
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	if !planned {
		_, _ = fmt.Fprint(w, `{"data":{"viewer":{"login":"octocat"}}}`)
		return
	}
	a := m.next[0]
	m.next = m.next[1:]
	for _, f := range a.fields {
		name, value, _ := strings.Cut(f, ": ")
		if value == "" {
			h.Del(name)
		} else {
			h.Set(name, value)
		}
	}
	w.WriteHeader(a.status)
	_, _ = fmt.Fprint(w, a.body)
}

// moodyWindow is the length of the windows of moody. Virtual time starts with a window.
const moodyWindow = time.Hour

func asGitHub(c *Config) {
	d, err := policy.LoadDialect("github")
	if err != nil {
		panic(err)
	}
	c.Dialect, c.Catalogue = d, policy.CatalogueOf("github")
}

// Requests of the tests. Each read has another question.
const (
	reads   = "read"
	heads   = "head"
	queries = "query"
	creates = "create"
	mutates = "mutate"
)

// send sends a request that does not wait. n makes reads and queries different.
func (w *world) send(kind string, n int) got {
	w.Helper()
	fields := []string{"Authorization: Bearer a", "Prefer: wait=0"}
	switch kind {
	case reads:
		return w.get(fmt.Sprintf("/repos/acme/widgets/issues?page=%d", n), fields...)
	case heads:
		return w.do(http.MethodHead, fmt.Sprintf("/repos/acme/widgets/issues?page=%d", n), nil, fields...)
	case queries:
		return w.ask(fmt.Sprintf(`{"query":"query{viewer{login a%d:id}}"}`, n), fields...)
	case creates:
		return w.do(http.MethodPost, "/repos/acme/widgets/issues", strings.NewReader(`{"title":"a"}`), fields...)
	case mutates:
		body := `{"query":"mutation{createIssue(input:{repositoryId:\"R_1\",title:\"a\"}){issue{id}}}"}`
		return w.ask(body, fields...)
	}
	panic(kind)
}

const (
	docs          = "https://docs.github.com/rest/overview/resources-in-the-rest-api#"
	secondaryText = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	blockedText   = "You have exceeded a secondary rate limit and have been temporarily blocked from content creation. Please retry your request again later."
	abuseText     = "You have triggered an abuse detection mechanism. Please wait a few minutes before you try again."
	primaryText   = "API rate limit exceeded for user ID 1234."
	alreadyText   = "API rate limit already exceeded for user ID 1234."
	quicklyText   = "was submitted too quickly"
)

// problem returns the body of an error of REST.
func problem(message, documentation string) string {
	return fmt.Sprintf(`{"message":%q,"documentation_url":%q,"status":"403"}`, message, documentation)
}

// failedQuery returns the body of a GraphQL response without data, with one error.
func failedQuery(fields string) string { return `{"data":null,"errors":[{` + fields + `}]}` }

// judged is a response of the upstream, and the limit that it reports by the documents and public threads. The rows are
// written from these sources, and not from the table of the product.
type judged struct {
	name    string
	request string
	answer  answer
	want    policy.LimitKind
	wait    time.Duration // of the refusals, unless zero
	silent  bool          // no rate fields
}

var judgedAnswers = []judged{
	// REST: 403 and 429 for both kinds (Document B section 7).
	{"primary, 403, nothing remains", reads, answer{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"primary, 429, nothing remains", reads, answer{429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"primary, 403, much remains", reads, answer{403, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, time.Hour, false},
	{"primary, 429, much remains", reads, answer{429, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, time.Hour, false},
	{"primary, already exceeded", reads, answer{403, nil, problem(alreadyText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"primary of an installation", reads, answer{403, nil, problem("API rate limit exceeded for installation ID 77.", docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"primary without headers", reads, answer{403, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, time.Hour, true},
	{"primary, no text, nothing remains", reads, answer{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, `{"message":"Forbidden"}`}, policy.LimitPrimary, 0, false},
	{"primary, no text, 429", reads, answer{429, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, ""}, policy.LimitPrimary, 0, false},
	{"primary, text/plain", reads, answer{403, []string{"Content-Type: text/plain"}, primaryText}, policy.LimitPrimary, 0, false},
	{"primary, other spelling", reads, answer{403, nil, problem("api rate LIMIT exceeded", "")}, policy.LimitPrimary, 0, false},
	{"primary of the service", reads, answer{403, nil, problem("API rate limit exceeded.", "https://docs.example.com/rest/rate-limits")}, policy.LimitPrimary, 0, false},
	{"primary by HEAD", heads, answer{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, ""}, policy.LimitPrimary, 0, false},
	{"secondary, 403, retry-after", reads, answer{403, []string{"Retry-After: 30"}, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 31 * time.Second, false},
	{"secondary, 429, retry-after", reads, answer{429, []string{"Retry-After: 30"}, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 31 * time.Second, false},
	{"secondary, no retry-after", reads, answer{403, nil, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, time.Minute, false},
	{"secondary, 429, no retry-after", reads, answer{429, nil, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, time.Minute, false},
	{"secondary, retry-after is a date", reads, answer{403, []string{"Retry-After: Sat, 01 Jan 2000 00:01:00 GMT"}, problem(secondaryText, "")}, policy.LimitSecondary, 61 * time.Second, false},
	{"secondary, nothing remains", reads, answer{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"secondary, nothing remains, retry-after", reads, answer{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000", "Retry-After: 30"}, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"secondary without headers", reads, answer{403, nil, problem(secondaryText, "")}, policy.LimitSecondary, time.Minute, true},
	{"secondary, blocked from content creation", creates, answer{403, []string{"Retry-After: 60"}, problem(blockedText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 61 * time.Second, false},
	{"secondary, abuse detection", reads, answer{403, []string{"Retry-After: 60"}, problem(abuseText, docs+"abuse-rate-limits")}, policy.LimitSecondary, 0, false},
	{"secondary by the documentation", reads, answer{403, nil, problem("Please slow down.", docs+"secondary-rate-limits")}, policy.LimitSecondary, 0, false},
	{"secondary by the older documentation", reads, answer{403, nil, problem("Please slow down.", "https://developer.github.com/v3/#abuse-rate-limits")}, policy.LimitSecondary, 0, false},
	{"secondary by retry-after alone", reads, answer{403, []string{"Retry-After: 5"}, `{"message":"Forbidden"}`}, policy.LimitSecondary, 6 * time.Second, false},
	{"secondary by 429 alone", reads, answer{429, nil, ""}, policy.LimitSecondary, time.Minute, true},
	{"secondary, 429 as HTML", reads, answer{429, []string{"Content-Type: text/html"}, "<html><title>Too many requests</title></html>"}, policy.LimitSecondary, time.Minute, true},
	{"secondary, 403 as HTML with the text", reads, answer{403, []string{"Content-Type: text/html"}, "<!DOCTYPE html><title>Whoa there!</title><p>You have exceeded a secondary rate limit."}, policy.LimitSecondary, time.Minute, true},
	{"secondary, older HTML", reads, answer{403, []string{"Content-Type: text/html"}, "<html><p>You have triggered an abuse detection mechanism.</p></html>"}, policy.LimitSecondary, 0, true},
	{"secondary by HEAD", heads, answer{429, []string{"Retry-After: 9"}, ""}, policy.LimitSecondary, 10 * time.Second, false},
	{"secondary, failed log-ins", reads, answer{403, nil, problem("Maximum number of login attempts exceeded. Please try again later.", docs)}, policy.LimitSecondary, 0, false},
	// REST: limit messages with another status.
	{"primary in a 200", reads, answer{200, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"secondary in a 200", reads, answer{200, nil, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 0, false},
	{"primary in a 200 without headers", reads, answer{200, []string{"Content-Type: application/json"}, `{"message":"API rate limit exceeded"}`}, policy.LimitPrimary, 0, true},
	{"secondary in a 200 without a type", reads, answer{200, []string{"Content-Type: "}, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"secondary in a 200, text/plain", reads, answer{200, []string{"Content-Type: text/plain; charset=utf-8"}, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"primary in a 200, vendor type", reads, answer{200, []string{"Content-Type: application/vnd.github.v3+json; charset=utf-8"}, problem(primaryText, "")}, policy.LimitPrimary, 0, false},
	{"secondary in a 202", reads, answer{202, nil, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"secondary in a 402", reads, answer{402, nil, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	{"secondary in a 500", reads, answer{500, nil, problem(secondaryText, "")}, policy.LimitSecondary, time.Minute, false},
	{"secondary in a 503", reads, answer{503, []string{"Retry-After: 30"}, problem(secondaryText, "")}, policy.LimitSecondary, 31 * time.Second, false},
	{"primary in a 503", reads, answer{503, nil, problem(primaryText, "")}, policy.LimitPrimary, 0, false},
	{"secondary over two lines", reads, answer{403, nil, `{"message":"You have exceeded a secondary\nrate\u00a0limit."}`}, policy.LimitSecondary, 0, false},
	{"secondary as the error of another gateway", reads, answer{403, nil, `{"error":{"message":"` + secondaryText + `"}}`}, policy.LimitSecondary, 0, false},
	{"secondary as an error text", reads, answer{403, nil, `{"error":"` + secondaryText + `"}`}, policy.LimitSecondary, 0, false},
	{"secondary in a 404", reads, answer{404, nil, problem(secondaryText, "")}, policy.LimitSecondary, 0, false},
	// REST: members of other formats of errors (RFC 9457, RFC 6749, JSON:API).
	{"primary in the detail of a problem", reads, answer{403, []string{"Content-Type: application/problem+json"}, `{"type":"about:blank","title":"Forbidden","status":403,"detail":"` + primaryText + `"}`}, policy.LimitPrimary, 0, false},
	{"secondary in the title of a problem", reads, answer{403, []string{"Content-Type: application/problem+json"}, `{"title":"` + secondaryText + `","status":403}`}, policy.LimitSecondary, 0, false},
	{"primary in the detail of a problem, 429", reads, answer{429, []string{"Content-Type: application/problem+json"}, `{"title":"Too Many Requests","detail":"` + primaryText + `"}`}, policy.LimitPrimary, 0, false},
	{"secondary in the detail of a problem, 503", reads, answer{503, []string{"Content-Type: application/problem+json"}, `{"title":"Unavailable","detail":"` + secondaryText + `"}`}, policy.LimitSecondary, 0, false},
	{"secondary in the description of an error", reads, answer{403, nil, `{"error":"slow_down","error_description":"` + secondaryText + `"}`}, policy.LimitSecondary, 0, false},
	{"secondary in the detail of a list", reads, answer{403, nil, `{"errors":[{"status":"403","title":"Forbidden","detail":"` + secondaryText + `"}]}`}, policy.LimitSecondary, 0, false},
	{"secondary in errors without a list", reads, answer{403, nil, `{"errors":"` + secondaryText + `"}`}, policy.LimitSecondary, 0, false},
	{"primary in one object of errors", reads, answer{403, nil, `{"errors":{"message":"` + primaryText + `"}}`}, policy.LimitPrimary, 0, false},
	{"primary in a list of error", reads, answer{403, nil, `{"error":[{"message":"` + primaryText + `"}]}`}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED in one object of errors", queries, answer{200, nil, `{"data":null,"errors":{"type":"RATE_LIMITED","message":"` + primaryText + `"}}`}, policy.LimitPrimary, 0, false},
	{"content in the detail of a list", creates, answer{422, nil, `{"title":"Validation Failed","errors":[{"detail":"was submitted too quickly","pointer":"#/body"}]}`}, policy.LimitContent, 0, false},
	{"GraphQL, secondary in the detail of a problem", queries, answer{403, []string{"Content-Type: application/problem+json"}, `{"title":"Forbidden","detail":"` + secondaryText + `"}`}, policy.LimitSecondary, 0, false},
	// REST: content (cli/cli 4801 and threads about 422).
	{"content, 422", creates, answer{422, nil, `{"message":"Validation Failed","errors":[{"resource":"Issue","code":"custom","field":"body","message":"was submitted too quickly"}]}`}, policy.LimitContent, time.Minute, false},
	{"content, 422, retry-after", creates, answer{422, []string{"Retry-After: 120"}, `{"message":"Validation Failed","errors":[{"resource":"PullRequest","code":"custom","field":"base","message":"was submitted too quickly"}]}`}, policy.LimitContent, 121 * time.Second, false},
	{"content, 422, error as text", creates, answer{422, nil, `{"message":"Validation Failed","errors":["Comment was submitted too quickly"]}`}, policy.LimitContent, 0, false},
	{"content, 422, in the message", creates, answer{422, nil, problem("Your comment was submitted too quickly", "")}, policy.LimitContent, 0, false},
	{"content, with an apostrophe", creates, answer{422, nil, problem("Sorry, we can't create this: it was submitted too quickly", "")}, policy.LimitContent, 0, false},
	{"content, 403", creates, answer{403, nil, problem("Your issue was submitted too quickly. Please retry.", "")}, policy.LimitContent, 0, false},
	// GraphQL in a 200.
	{"GraphQL, RATE_LIMITED", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMITED","message":"` + primaryText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED, nothing remains", queries, answer{200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Used: 5000"}, failedQuery(`"type":"RATE_LIMITED","message":"` + primaryText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED without a resource", queries, answer{200, []string{"X-RateLimit-Resource: "}, failedQuery(`"type":"RATE_LIMITED","message":"` + primaryText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED without headers", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMITED","message":"` + primaryText + `"`)}, policy.LimitPrimary, time.Hour, true},
	{"GraphQL, RATE_LIMITED without data", queries, answer{200, nil, `{"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED with partial data", queries, answer{200, nil, `{"data":{"viewer":{"login":"octocat"}},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED after another error", queries, answer{200, nil, `{"errors":[{"type":"NOT_FOUND","message":"x"},{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED beside a limit of the query", queries, answer{200, nil, `{"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"x"},{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMIT", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMIT","code":"graphql_rate_limit","message":"` + alreadyText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMIT with 1,000 remaining", queries, answer{200, []string{"X-RateLimit-Remaining: 1000", "X-RateLimit-Used: 4000"}, failedQuery(`"type":"RATE_LIMIT","code":"graphql_rate_limit","message":"` + alreadyText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMIT without headers", queries, answer{200, nil, `{"errors":[{"type":"RATE_LIMIT","message":"` + alreadyText + `"}]}`}, policy.LimitPrimary, 0, true},
	{"GraphQL, code in extensions", queries, answer{200, nil, failedQuery(`"extensions":{"code":"graphql_rate_limit"},"message":"Limit"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, primary text without a type", queries, answer{200, nil, failedQuery(`"message":"` + primaryText + `"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, primary text of REST", queries, answer{200, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"GraphQL, secondary text without a type", queries, answer{200, nil, failedQuery(`"message":"` + secondaryText + `"`)}, policy.LimitSecondary, time.Minute, false},
	{"GraphQL, secondary text without headers", queries, answer{200, nil, `{"errors":[{"message":"` + secondaryText + `"}]}`}, policy.LimitSecondary, time.Minute, true},
	{"GraphQL, secondary text, retry-after", queries, answer{200, []string{"Retry-After: 30"}, failedQuery(`"message":"` + secondaryText + `"`)}, policy.LimitSecondary, 31 * time.Second, false},
	{"GraphQL, secondary text with a type", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMITED","message":"` + secondaryText + `"`)}, policy.LimitSecondary, 0, false},
	{"GraphQL, secondary text of REST", queries, answer{200, nil, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 0, false},
	{"GraphQL, abuse detection", queries, answer{200, nil, failedQuery(`"message":"` + abuseText + `"`)}, policy.LimitSecondary, 0, false},
	{"GraphQL, content", mutates, answer{200, nil, `{"data":{"createIssue":null},"errors":[{"type":"UNPROCESSABLE","path":["createIssue"],"message":"was submitted too quickly"}]}`}, policy.LimitContent, time.Minute, false},
	{"GraphQL, content without a type", mutates, answer{200, nil, failedQuery(`"message":"` + quicklyText + `"`)}, policy.LimitContent, time.Minute, false},
	{"GraphQL, content, retry-after", mutates, answer{200, []string{"Retry-After: 90"}, failedQuery(`"type":"UNPROCESSABLE","message":"` + quicklyText + `"`)}, policy.LimitContent, 91 * time.Second, false},
	{"GraphQL, content without headers", mutates, answer{200, nil, failedQuery(`"type":"UNPROCESSABLE","message":"` + quicklyText + `"`)}, policy.LimitContent, 0, true},
	// GraphQL with another status.
	{"GraphQL, secondary, 403", queries, answer{403, []string{"Retry-After: 60"}, problem(secondaryText, docs+"secondary-rate-limits")}, policy.LimitSecondary, 61 * time.Second, false},
	{"GraphQL, primary, 403", queries, answer{403, nil, problem(primaryText, docs+"rate-limiting")}, policy.LimitPrimary, 0, false},
	{"GraphQL, RATE_LIMITED, 429", queries, answer{429, nil, failedQuery(`"type":"RATE_LIMITED","message":"Slow"`)}, policy.LimitPrimary, 0, false},
	{"GraphQL, secondary, 502", queries, answer{502, nil, problem(secondaryText, "")}, policy.LimitSecondary, time.Minute, false},
	{"GraphQL, primary, 503", queries, answer{503, nil, problem(primaryText, "")}, policy.LimitPrimary, 0, false},
	{"GraphQL, content, 422", mutates, answer{422, nil, failedQuery(`"message":"` + quicklyText + `"`)}, policy.LimitContent, 0, false},
	{"GraphQL, 429 alone", queries, answer{429, nil, ""}, policy.LimitSecondary, time.Minute, true},
}

func TestLimitAnswersAreRecognized(t *testing.T) {
	stopIf(t, len(judgedAnswers) < 40, "%d rows, want at least 40", len(judgedAnswers))
	for _, c := range judgedAnswers {
		up := &moody{silent: c.silent}
		setup(up.ServeHTTP, asGitHub).sub(t, c.name, func(w *world) {
			w.send(reads, 1)
			w.send(queries, 1)
			c.answer.fields = append([]string{"Cache-Control: private, max-age=60", `ETag: "limit"`}, c.answer.fields...)
			up.next = []answer{c.answer}
			w.wantReply("", w.send(c.request, 2), c.answer.status)
			last := w.last()
			w.want("limit in the record", last.Limited, c.want)
			w.want("row in the record", last.LimitAnswer != "", c.want != policy.NotLimited)
			w.want("requests upstream", w.upstreamSaw(), 3)
			failIf(w, last.Cache.Stored, "the limit error is stored: %s", last.Cache)
			if c.request == reads {
				cached := w.get("/repos/acme/widgets/issues?page=2", "Authorization: Bearer a", "Cache-Control: only-if-cached")
				w.want("status from the cache", cached.StatusCode, 504)
			}

			graphQL := c.request == queries || c.request == mutates
			for i, kind := range []string{reads, queries, creates, mutates} {
				ofGraphQL := kind == queries || kind == mutates
				var detail string
				switch {
				case c.want == policy.LimitSecondary:
					detail = "cooldown"
				case c.want == policy.LimitPrimary && graphQL == ofGraphQL:
					detail = "primary"
				case c.want == policy.LimitContent && (kind == creates || kind == mutates):
					detail = "content"
				}
				before := w.upstreamSaw()
				r := w.send(kind, 10+i)
				if detail == "" {
					w.want(kind+": requests upstream", w.upstreamSaw(), before+1)
					w.want(kind+": status", r.StatusCode, 200)
					continue
				}
				w.want(kind+": requests upstream", w.upstreamSaw(), before)
				exhausted := slices.Contains(c.answer.fields, "X-RateLimit-Remaining: 0") && ofGraphQL == graphQL
				got := r.Header.Get("Cache-Status")
				failIf(w, got != "weir; detail="+detail && (!exhausted || got != "weir; detail=primary"), "%s: Cache-Status %s, want detail=%s", kind, got, detail)
				seconds, _ := strconv.Atoi(r.Header.Get("Retry-After"))
				wait := time.Duration(seconds) * time.Second
				failIf(w, c.wait != 0 && (wait < c.wait || wait > c.wait+3*time.Second), "%s: Retry-After %v, want about %v", kind, wait, c.wait)
			}
		})
	}
}

// TestBareRefusalsInARowAreALimit covers 403 without a message: one may be a matter of permissions.
func TestBareRefusalsInARowAreALimit(t *testing.T) {
	bare, page := answer{403, []string{"Content-Type: "}, ""}, answer{403, []string{"Content-Type: text/html"}, "<html><h1>403 Forbidden</h1></html>"}
	forbidden := answer{403, nil, problem("Resource not accessible by integration", docs)}
	for _, c := range []struct {
		name    string
		request string
		answers []answer
		pause   time.Duration
		limited bool
	}{
		{"one without a body", queries, []answer{bare}, 0, false},
		{"two without a body", queries, []answer{bare, bare}, time.Second, true},
		{"one page", queries, []answer{page}, 0, false},
		{"two pages", queries, []answer{page, page}, time.Second, true},
		{"two pages of REST", reads, []answer{page, page}, time.Second, true},
		{"a page, and one without a body", queries, []answer{page, bare}, time.Second, true},
		{"two of REST without a body", reads, []answer{bare, bare}, time.Second, false},
		{"two, another error between", queries, []answer{bare, forbidden, bare}, time.Second, false},
		{"two, five minutes apart", queries, []answer{bare, bare}, 5 * time.Minute, false},
	} {
		up := &moody{silent: true}
		setup(up.ServeHTTP, asGitHub).sub(t, c.name, func(w *world) {
			w.send(c.request, 1)
			up.next = c.answers
			for i := range c.answers {
				w.want("status", w.send(c.request, 2+i).StatusCode, 403)
				time.Sleep(c.pause)
			}
			want := policy.NotLimited
			if c.limited {
				want = policy.LimitSecondary
			}
			w.want("limit in the record", w.last().Limited, want)
			before := w.upstreamSaw()
			r := w.send(c.request, 100)
			w.want("sent", w.upstreamSaw() > before, !c.limited)
			if c.limited {
				w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=cooldown")
			}
		})
	}
}

func TestIdenticalRequestsShareTheCostOfALimit(t *testing.T) {
	for _, c := range []struct {
		name    string
		request string
		answer  answer
		most    int // requests upstream
	}{
		{"RATE_LIMITED", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMITED","message":"` + primaryText + `"`)}, 1},
		{"RATE_LIMIT", queries, answer{200, nil, failedQuery(`"type":"RATE_LIMIT","message":"` + alreadyText + `"`)}, 1},
		{"secondary text", queries, answer{200, nil, failedQuery(`"message":"` + secondaryText + `"`)}, 1},
		{"403", queries, answer{403, nil, problem(secondaryText, "")}, 1},
		{"403 without a body", queries, answer{403, nil, ""}, 2},
		{"REST, 200", reads, answer{200, []string{"Cache-Control: private, max-age=60"}, problem(primaryText, "")}, 1},
		{"REST, 403", reads, answer{403, nil, problem(secondaryText, "")}, 1},
		{"REST, page", reads, answer{403, []string{"Content-Type: text/html"}, "<html></html>"}, 2},
	} {
		up := &moody{silent: true}
		setup(up.ServeHTTP, asGitHub).sub(t, c.name, func(w *world) {
			w.send(c.request, 1)
			up.delay, up.next = time.Second, slices.Repeat([]answer{c.answer}, 10)
			together(10, func(int) { // the client waits, so that it follows a call whose leader waits for a permit
				if c.request == queries {
					w.ask(`{"query":"query{viewer{login}}"}`, "Authorization: Bearer a")
				} else {
					w.get("/repos/acme/widgets/issues", "Authorization: Bearer a")
				}
			})
			n := w.upstreamSaw() - 1
			failIf(w, n < 1 || n > c.most, "%d requests upstream, want at most %d", n, c.most)
		})
	}
}

// TestContentLimitDoublesOnRepetition also covers the end of the doubling.
func TestContentLimitDoublesOnRepetition(t *testing.T) {
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		quickly := answer{422, nil, `{"message":"Validation Failed","errors":[{"message":"was submitted too quickly"}]}`}
		w.send(reads, 1)
		for i, want := range []string{"60", "120", "240", "480", "960", "1920", "3600", "3600"} {
			up.next = []answer{quickly}
			w.want("status", w.send(creates, 0).StatusCode, 422)
			r := w.send(creates, 0)
			w.want(fmt.Sprintf("Retry-After %d", i+1), r.Header.Get("Retry-After"), want)
			w.want("read", w.send(reads, i).StatusCode, 200)
			seconds, _ := strconv.Atoi(want)
			time.Sleep(time.Duration(seconds) * time.Second)
		}
		w.want("status", w.send(creates, 0).StatusCode, 200)
		up.next = []answer{quickly}
		w.send(creates, 0)
		w.want("Retry-After after a success", w.send(creates, 0).Header.Get("Retry-After"), "60")
	})
}

// ordinaryErrors returns responses that are no limit.
func ordinaryErrors() (list []judged) {
	add := func(request string, status int, body string, fields ...string) {
		name := fmt.Sprintf("%s %d %.60s", request, status, body)
		list = append(list, judged{name: name, request: request, answer: answer{status, fields, body}})
	}
	for _, message := range []string{
		"Resource not accessible by integration", "Resource not accessible by personal access token", "Must have admin rights to Repository.",
		"Must have push access to repository", "Must have push access to view repository collaborators.", "Must be an owner of the organization.",
		"You must have repository write permissions or have the pull request fine-grained permission", "Repository was archived so is read-only.",
		"Repository access blocked", "Resource protected by organization SAML enforcement. You must grant your OAuth token access to this organization.",
		"Resource protected by organization SAML enforcement. You must grant your Personal Access token access to this organization.",
		"Although you appear to have the correct authorization credentials, the `acme` organization has an IP allow list enabled, and 192.0.2.1 is not permitted to access this resource.",
		"`acme` forbids access via a personal access token (classic). Please use a GitHub App, OAuth App, or a personal access token with fine-grained permissions.",
		"`acme` has enabled OAuth App access restrictions.", "Advanced Security must be enabled for this repository to use code scanning.",
		"Dependabot alerts are disabled for this repository.", "Code scanning is not enabled for this repository.", "User is blocked",
		"You have been blocked by the repository owner.", "Sorry. Your account was suspended", "This installation has been suspended",
		"Upgrade to GitHub Pro or make this repository public to enable this feature.", "Branch protection does not allow this",
		"Issues are disabled for this repo", "Projects are disabled for this repository", "Actions has been disabled for this repository.",
		"Viewing limit of the list is 100", "The diff exceeded the maximum number of lines (20000)", "The list of commits is too large",
		"This API returns blobs up to 1 MB in size. The requested blob is too large to fetch via the API, but you can use the Git Data API to request blobs up to 100 MB in size.",
		"The history or contributor list is too large to list contributors for this repository via the API.",
		"Request forbidden by administrative rules. Please make sure your request has a User-Agent header (https://docs.github.com/).",
	} {
		add(reads, 403, problem(message, docs+"forbidden"))
	}
	for _, message := range []string{
		"Validation Failed", "Invalid request.\n\nFor 'properties/title', nil is not a string.", "Reference already exists", "Reference does not exist", "Object does not exist",
		"No commit found for SHA: main", "Only the first 1000 search results are available", "The listed users and repositories cannot be searched",
		"Unprocessable Entity", "Update is not a fast forward", "Branch not found", "Tag already exists", "A pull request already exists for acme:patch.",
	} {
		add(creates, 422, problem(message, docs+"validation"))
	}
	for _, code := range []string{"missing", "missing_field", "invalid", "already_exists", "unprocessable", "custom"} {
		add(creates, 422, `{"message":"Validation Failed","errors":[{"resource":"Issue","field":"title","code":"`+code+`","message":"is too long (maximum is 256 characters)"}]}`)
	}
	add(creates, 422, `{"message":"Validation Failed","errors":["Head sha can't be blank","No commits between main and main"]}`)
	add(creates, 422, `{"message":"Validation Failed","errors":"rate limit is not a label"}`)
	add(creates, 422, `{"message":"Validation Failed","errors":[{"code":"already_exists","message":"Label 'was submitted too quickly' already exists"}]}`)
	add(creates, 422, `{"message":"Title \"the PR was submitted too quickly\" is too long"}`)
	add(creates, 403, `{"message":"Commit message 'fix: API rate limit exceeded' violates a rule"}`)
	add(reads, 403, `{"message":"You can't see the branch `+"`abuse detection`"+`"}`)
	add(mutates, 200, `{"data":null,"errors":[{"type":"UNPROCESSABLE","message":"Label 'was submitted too quickly' already exists"}]}`)
	add(creates, 422, `{"title":"Invalid","detail":"Label 'was submitted too quickly' already exists"}`)
	add(reads, 404, `{"title":"Not Found","detail":"no page about API rate limit exceeded"}`)
	add(reads, 200, `{"title":"API rate limit exceeded","detail":"API rate limit exceeded"}`)
	add(creates, 422, `{"message":"label 'You have exceeded a secondary rate limit' is unknown"}`)
	for status, messages := range map[int][]string{
		400: {"Problems parsing JSON", "Body should be a JSON object", "Bad Request"},
		404: {"Not Found", "Branch not found", "No ref found for: main", "This is not the web page you are looking for.", "no rate limit by that name"},
		409: {"Git Repository is empty.", "Merge conflict", "is at 1 but expected 2", "Conflict"},
		410: {"Issues are disabled for this repo", "This issue was deleted", "Gone"},
		405: {"Method Not Allowed", "Pull Request is not mergeable"},
		406: {"Sorry, the diff exceeded the maximum number of files (300).", "Not Acceptable"},
		411: {"Length Required"}, 412: {"Precondition Failed"}, 413: {"Payload too big"}, 414: {"URI Too Long"},
		415: {"Unsupported 'Accept' header: 'text/x'. Must accept 'application/json'."}, 423: {"Locked"}, 428: {"Precondition Required"},
		451: {"Repository access blocked", "Unavailable due to DMCA takedown"},
	} {
		for _, message := range messages {
			add(reads, status, problem(message, docs+"errors"))
		}
	}
	add(reads, 404, "<html>not found</html>", "Content-Type: text/html")
	add(reads, 403, "<html>forbidden</html>", "Content-Type: text/html") // one page alone
	add(reads, 403, "")
	add(reads, 404, "")
	add(reads, 403, "null")
	add(reads, 403, `[]`)
	add(reads, 403, `{"message":7,"errors":{"a":"b"}}`)
	add(reads, 403, `{"message":"cut`)
	// A message of users in a success.
	add(reads, 200, `{"sha":"a","message":"You have exceeded a secondary rate limit"}`)
	add(reads, 200, `{"tag":"v1","sha":"a","message":"API rate limit exceeded"}`)
	add(reads, 200, `[{"message":"API rate limit exceeded"}]`)
	add(reads, 200, `{"message":"API rate limit exceeded"}`, "Content-Type: application/vnd.github.raw+json")
	add(reads, 200, `API rate limit exceeded`, "Content-Type: text/plain")
	add(reads, 200, `{"message":"API rate limit exceeded"}`, "Content-Type: application/octet-stream")
	add(reads, 200, `{"message":"Pull Request successfully merged"}`)
	for _, kind := range []string{
		"NOT_FOUND", "FORBIDDEN", "UNPROCESSABLE", "INSUFFICIENT_SCOPES", "SERVICE_UNAVAILABLE", "INTERNAL", "EXCESSIVE_PAGINATION", "MISSING_PAGINATION_BOUNDARIES",
		"UNAUTHENTICATED", "MAX_NODE_LIMIT_EXCEEDED", "RESOURCE_LIMITS_EXCEEDED", "STALE_DATA", "undefinedField", "argumentLiteralsIncompatible",
	} {
		add(queries, 200, failedQuery(`"type":"`+kind+`","message":"The request cannot be answered, because its limit or rate is not known."`))
	}
	add(queries, 200, failedQuery(`"message":"Something went wrong while executing your query. This may be the result of a timeout, or it could be a GitHub bug."`))
	add(queries, 200, failedQuery(`"message":"Field 'You have exceeded a secondary rate limit' doesn't exist on type 'Query'"`))
	add(queries, 200, failedQuery(`"message":"Could not resolve to a Repository with the name 'acme/API rate limit exceeded'.","type":"NOT_FOUND"`))
	add(queries, 200, failedQuery(`"message":"Parse error on \"rate limit exceeded\" (STRING) at [1, 1]"`))
	add(queries, 200, `{"data":{"repository":{"description":"API rate limit exceeded","type":"RATE_LIMITED"}},"errors":[{"type":"NOT_FOUND","message":"x"}]}`)
	add(queries, 200, `{"data":{"repository":{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}}}`)
	add(queries, 403, problem("Resource not accessible by integration", docs))
	add(queries, 403, "") // one alone
	add(queries, 400, problem("A query attribute must be specified and must be a string.", docs))
	add(mutates, 200, `{"data":{"createIssue":null},"errors":[{"type":"UNPROCESSABLE","message":"title can't be blank"}]}`)
	add(mutates, 200, `{"data":{"createIssue":null},"errors":[{"type":"FORBIDDEN","message":"octocat does not have the correct permissions to execute CreateIssue"}]}`)
	return list
}

func TestOrdinaryErrorsChangeNothing(t *testing.T) {
	list := ordinaryErrors()
	stopIf(t, len(list) < 100, "%d errors, want at least 100", len(list))
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		w.send(reads, 0)
		w.send(queries, 0)
		for i, c := range list {
			time.Sleep(10 * time.Second) // within the points and contents of a minute
			up.next = []answer{c.answer}
			before := w.upstreamSaw()
			w.want(c.name+": status", w.send(c.request, 1000+2*i).StatusCode, c.answer.status)
			w.want(c.name+": limit in the record", w.last().Limited, policy.NotLimited)
			w.want(c.name+": status of the next request", w.send(c.request, 1001+2*i).StatusCode, 200)
			w.want(c.name+": requests upstream", w.upstreamSaw(), before+2)
		}
		w.want("creation", w.send(creates, 0).StatusCode, 200)
		w.want("mutation", w.send(mutates, 0).StatusCode, 200)
		accounts, err := w.gateway.Ledger.(limits.Operator).Accounts(w.Context(), 10)
		stopIf(w, err != nil || len(accounts) != 1, "%v %v", accounts, err)
		a := accounts[0]
		w.want("cool-down", a.BlockedUntil.IsZero(), true)
		w.want("concurrency", a.Concurrent, 100)
		for _, b := range a.Budgets {
			failIf(w, b.Allowance != 0, "%s has the allowance %v", b.Resource, b.Allowance)
			if used := up.used[b.Resource]; used != 0 {
				w.want("used "+b.Resource, b.Used, used)
				w.want("limit of "+b.Resource, b.Limit, 5000)
			}
		}
	})
}

// rates returns the rate fields of a response.
func rates(limit, used int, reset time.Duration) []string {
	return []string{
		fmt.Sprint("X-RateLimit-Limit: ", limit), fmt.Sprint("X-RateLimit-Used: ", used), fmt.Sprint("X-RateLimit-Remaining: ", limit-used),
		fmt.Sprint("X-RateLimit-Reset: ", time.Now().Add(reset).Unix()),
	}
}

// TestRateHeadersOfARefusedCredentialSayNothing covers a 401 that reports the budget of the address.
func TestRateHeadersOfARefusedCredentialSayNothing(t *testing.T) {
	for _, request := range []string{reads, queries} {
		up := &moody{}
		setup(up.ServeHTTP, asGitHub).sub(t, request, func(w *world) {
			w.send(request, 1)
			up.next = []answer{{401, rates(60, 60, 20*time.Minute), problem("Bad credentials", docs)}}
			r := w.wantReply("", w.send(request, 2), 401)
			limit := r.Header.Get("X-RateLimit-Limit")
			failIf(w, limit == "60", "the client gets the budget of the address")
			for i := range 5 {
				w.want("status of the next request", w.send(request, 3+i).StatusCode, 200)
			}
		})
	}
}

func TestA401WithoutACredentialReportsTheBudgetOfTheAddress(t *testing.T) {
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		w.get("/repos/acme/tools")
		up.next = []answer{{401, rates(5000, 5000, time.Hour), problem("Requires authentication", docs)}}
		w.want("status", w.get("/user", "Prefer: wait=0").StatusCode, 401)
		w.want("Cache-Status", w.get("/repos/acme/widgets", "Prefer: wait=0").Header.Get("Cache-Status"), "weir; detail=primary")
	})
}

// TestOneOutlierDoesNotCloseTheAccount covers the report of another budget in a success.
func TestOneOutlierDoesNotCloseTheAccount(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit, used int
		reset       time.Duration
	}{
		{"the budget of the address", 60, 60, 20 * time.Minute},
		{"a smaller budget", 1000, 1000, 40 * time.Minute},
		{"a larger budget", 15000, 15000, 10 * time.Minute},
		{"another limit only", 60, 60, time.Hour},
		{"a later reset", 60, 60, 2 * time.Hour},
	} {
		up := &moody{}
		setup(up.ServeHTTP, asGitHub).sub(t, c.name, func(w *world) {
			for i := range 3 {
				w.send(reads, i)
			}
			up.next = []answer{{200, rates(c.limit, c.used, c.reset), "[]"}}
			w.send(reads, 100)
			for i := range 10 {
				w.want("status", w.send(reads, 101+i).StatusCode, 200)
			}
		})
	}
	up := &moody{}
	setup(up.ServeHTTP, asGitHub).sub(t, "the probe agrees", func(w *world) {
		w.send(reads, 0)
		up.next = []answer{{200, rates(60, 60, 20*time.Minute), "[]"}, {200, rates(60, 60, 20*time.Minute), "[]"}}
		w.send(reads, 1)
		w.send(reads, 2)
		w.want("Cache-Status", w.send(reads, 3).Header.Get("Cache-Status"), "weir; detail=primary")
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

func TestTheRecordNamesALimitError(t *testing.T) {
	up := &moody{next: []answer{{200, nil, failedQuery(`"type":"RATE_LIMIT","message":"` + alreadyText + `"`)}}}
	setup(up.ServeHTTP, asGitHub).run(t, func(w *world) {
		w.send(queries, 1)
		r := w.last()
		w.want("limit", r.Limited, policy.LimitPrimary)
		w.want("row of the limit", r.LimitAnswer, "graphql-primary-type")
		w.want("limit of the attempt", r.Stages[1].Limited, policy.LimitPrimary)
	})
}

// TestSafeRequestIsNotRepeatedWithoutAWait covers limit errors after which admission would grant the repetition at once.
func TestSafeRequestIsNotRepeatedWithoutAWait(t *testing.T) {
	for name, a := range map[string]answer{
		"content":          {422, nil, problem(quicklyText, "")},
		"another resource": {403, []string{"X-RateLimit-Resource: search"}, problem(primaryText, "")},
	} {
		up := &moody{next: []answer{a, a, a, a}}
		setup(up.ServeHTTP, asGitHub).sub(t, name, func(w *world) {
			w.want("status", w.get("/repos/acme/widgets", "Authorization: Bearer a", "Prefer: wait=300").StatusCode, a.status)
			w.want("requests upstream", w.upstreamSaw(), 1)
		})
	}
}

// TestLimitErrorsAfterALongBodyAreRecognized covers errors behind more data than a peek reads.
func TestLimitErrorsAfterALongBodyAreRecognized(t *testing.T) {
	data := `{"data":{"nodes":[` + strings.Repeat(`{"id":"R_1","description":"a"},`, 2000) + `null]`
	for _, c := range []struct {
		name, end string
		want      policy.LimitKind
		short     bool // little more than a peek
	}{
		{"RATE_LIMITED", `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`, policy.LimitPrimary, false},
		{"RATE_LIMITED, shorter", `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`, policy.LimitPrimary, true},
		{"secondary, blanks, extensions", "},\n \"errors\" : [{\"message\":\"" + secondaryText + "\"}], \"extensions\":{\"errors\":[]}}\n", policy.LimitSecondary, false},
		{"another error", `},"errors":[{"type":"NOT_FOUND","message":"x"}]}`, policy.NotLimited, false},
		{"no error", `}}`, policy.NotLimited, false},
		{"errors in data", `,"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}}`, policy.NotLimited, false},
		{"errors in a text", `,"a":"},\"errors\":[{\"type\":\"RATE_LIMITED\"}]}"}}`, policy.NotLimited, false},
	} {
		bubble(t, c.name, func(t *testing.T) {
			data := data
			if c.short {
				_, rest, _ := strings.Cut(data[len(data)-9<<10:], "},")
				data = `{"data":{"nodes":[` + rest
			}
			up := &moody{next: []answer{{200, nil, data + c.end}}}
			w := newWorld(t, up.ServeHTTP, asGitHub)
			w.want("body", w.send(queries, 1).body, data+c.end)
			w.want("limit in the record", w.last().Limited, c.want)
			w.send(queries, 2)
			w.want("next request is sent", w.upstreamSaw() == 2, c.want == policy.NotLimited)
		})
	}
	bubble(t, "several credentials", func(t *testing.T) {
		body := data + `},"errors":[{"type":"RATE_LIMITED","message":"` + primaryText + `"}]}`
		up := &moody{next: []answer{{200, nil, body}}}
		w := newWorld(t, up.ServeHTTP, asGitHub, func(c *Config) {
			c.Identify = func(*http.Request) (*caller.Identity, error) { return pooled("a", "b"), nil }
		})
		w.want("body", w.send(queries, 1).body, body)
		w.want("limit in the record", w.last().Limited, policy.LimitPrimary)
	})
	up := &moody{delay: time.Second, next: slices.Repeat([]answer{{200, nil, data + `},"errors":[{"type":"RATE_LIMIT","message":"` + alreadyText + `"}]}`}}, 10)}
	setup(up.ServeHTTP, asGitHub).sub(t, "identical queries", func(w *world) {
		together(10, func(int) { w.ask(`{"query":"query{viewer{login}}"}`, "Authorization: Bearer a") })
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Only a representation that may be a file of a user hides a limit error with status 200.
func TestLimitErrorIsRecognizedInEachJSONRepresentation(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                  true,
		"application/json, text/plain, */*": true, // axios
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8":                 true,
		"application/vnd.github.machine-man-preview+json, application/vnd.github.v3+json": true,
		"application/vnd.github.v3.text-match+json":                                       true,
		"application/json;q=0.5":                               true,
		"application/vnd.github.raw":                           false,
		"application/vnd.github.raw+json":                      false,
		"application/json, application/vnd.github.v3.RAW+json": false,
		"application/octet-stream":                             false,
		"application/vnd.github.diff":                          false,
	} {
		upstream := replies(`{"message":"`+primaryText+`"}`, "Content-Type: application/json", "Cache-Control: max-age=60")
		setup(upstream, asGitHub).sub(t, accept, func(w *world) {
			fields := lines(bearer("a"), "Prefer: wait=0")
			if accept != "" {
				fields = append(fields, "Accept: "+accept)
			}
			w.get("/repos/acme/widgets/contents/a.json", fields...)
			w.want("is a limit error", w.last().Limited == policy.LimitPrimary, want)
		})
	}
}

// A body without a length may arrive in pieces of any size.
func TestLimitErrorInPiecesIsRecognized(t *testing.T) {
	for _, c := range []struct {
		name   string
		pieces []string
		want   bool
	}{
		{"bytes", strings.SplitAfter(`{"message":"`+primaryText+`","documentation_url":"a"}`, ""), true},
		{"indented", []string{" ", "{\n", `  "documentation_url`, `": "a",`, "\n" + `  "message": "` + primaryText + "\"\n}"}, true},
		{"another member", []string{"{", `"a":1,`, `"message":"` + primaryText + `"}`}, false},
		{"list", []string{"[", `"message",`, `"` + primaryText + `"]`}, false},
	} {
		setup(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for _, piece := range c.pieces {
				_, _ = io.WriteString(w, piece)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}, asGitHub).sub(t, c.name, func(w *world) {
			w.want("body", w.send(reads, 1).body, strings.Join(c.pieces, ""))
			w.want("is a limit error", w.last().Limited == policy.LimitPrimary, c.want)
		})
	}
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"event":1}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, asGitHub).sub(t, "another object passes at once", func(w *world) {
		resp := w.open(w.client, http.MethodGet, "/repos/acme/widgets/issues", nil, bearer("a"))
		start := make([]byte, 20)
		n, _ := resp.Body.Read(start)
		w.want("beginning of the body", string(start[:n]), `{"event":1}`)
		_ = resp.Body.Close()
	})
}

// The upstream may send a coded body although the gateway asks for the identity form, and HTTP/2 needs no length.
func TestLimitErrorInACodedBodyIsRecognized(t *testing.T) {
	zstd := contentcoding.Select([]string{"zstd"})
	for _, status := range []int{200, 202, 403, 429, 503} {
		for _, request := range []string{reads, queries} {
			for coding, encode := range map[string]func([]byte) []byte{"gzip": contentcoding.Gzip.Encode, "X-GZIP": contentcoding.Gzip.Encode, "zstd": zstd.Encode} {
				for _, size := range []int{1, 1 << 10} { // of the pieces
					body := encode([]byte(problem(primaryText, docs+"rate-limiting")))
					setup(func(w http.ResponseWriter, _ *http.Request) {
						setFields(w, "Content-Type: application/json", "Content-Encoding: "+coding, "Cache-Control: max-age=60")
						w.WriteHeader(status)
						for piece := range slices.Chunk(body, size) {
							_, _ = w.Write(piece)
							_ = http.NewResponseController(w).Flush()
						}
					}, asGitHub).sub(t, fmt.Sprint(request, status, coding, size), func(w *world) {
						w.want("body", w.send(request, 1).body, string(body))
						w.want("limit in the record", w.last().Limited, policy.LimitPrimary)
						w.send(request, 2)
						w.want("requests upstream", w.upstreamSaw(), 1)
					})
				}
			}
		}
	}
}

func FuzzRecognizeLimit(f *testing.F) {
	for _, c := range judgedAnswers {
		f.Add(c.answer.status, c.answer.body, c.request == queries)
	}
	f.Fuzz(func(t *testing.T, status int, body string, graphQL bool) {
		h := http.Header{"Content-Type": {"application/json"}}
		row, _ := policy.RecognizeLimit(policy.UpstreamAnswer{Status: status, Header: h, Body: []byte(body), GraphQL: graphQL})
		failIf(t, row != nil && status >= 500 && row.Begins == nil, "status %d is a limit error", status)
		failIf(t, row != nil && status == 401, "status 401 is a limit error")
	})
}
