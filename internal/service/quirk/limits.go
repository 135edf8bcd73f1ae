package quirk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// form is one form of a limit error.
type form struct {
	name    string
	graphQL bool   // for GraphQL calls; the others are for REST
	primary bool   // says that a primary limit is exceeded; a secondary limit error has no such form, because it concerns all resources
	scope   string // of an episode, or "" for the limit errors of the service
	status  int
	fields  map[string]string // response header fields; an empty value removes the field
	kind    string            // the Content-Type; the default is JSON
	body    string            // the default is the body of the service
}

const (
	primaryText   = "API rate limit exceeded for user ID 1."
	secondaryText = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	edgePage      = "<!DOCTYPE html>\n<html><body><h1>Whoa there!</h1><p>You have sent too many requests. Please wait a few minutes.</p></body></html>\n"
	html          = "text/html; charset=utf-8"
)

var noRate = map[string]string{
	"X-Ratelimit-Limit": "", "X-Ratelimit-Remaining": "", "X-Ratelimit-Used": "", "X-Ratelimit-Reset": "", "X-Ratelimit-Resource": "",
}

// forms are the forms of limit errors in traffic of the real API.
var forms = []form{
	{name: "rest_403", status: 403},
	{name: "rest_429", status: 429},
	{name: "rest_403_without_retry_after", status: 403, fields: map[string]string{"Retry-After": ""}},
	{name: "rest_429_date", status: 429, fields: map[string]string{"Retry-After": "date"}},
	{name: "rest_403_remaining_0", status: 403, fields: map[string]string{"X-Ratelimit-Remaining": "0"}},
	{name: "rest_429_primary_text", primary: true, status: 429, body: rest(primaryText)},
	{name: "rest_403_secondary_text", status: 403, body: rest(secondaryText)},
	{name: "rest_429_html", status: 429, fields: noRate, kind: html, body: edgePage},

	{name: "graphql_403", graphQL: true, status: 403, body: rest(secondaryText)},
	{name: "graphql_rate_limited", primary: true, graphQL: true, status: 200, fields: map[string]string{"X-Ratelimit-Remaining": "0"}, body: call("null", `"type":"RATE_LIMITED",`, primaryText)},
	{name: "graphql_rate_limited_partial", primary: true, graphQL: true, status: 200, fields: map[string]string{"X-Ratelimit-Resource": "", "Retry-After": ""}, body: call(`{"viewer":null}`, `"type":"RATE_LIMITED",`, primaryText)},
	{name: "graphql_rate_limit", primary: true, graphQL: true, status: 200, fields: map[string]string{"Retry-After": ""}, body: call("null", `"type":"RATE_LIMIT","code":"graphql_rate_limit",`, "API rate limit already exceeded for user ID 1.")},
	{name: "graphql_secondary_text", graphQL: true, status: 200, fields: map[string]string{"Retry-After": ""}, body: call("null", "", secondaryText)},

	{name: "brief_graphql_403", graphQL: true, scope: "graphql", status: 403, fields: noRate, kind: html, body: " "},
	{name: "brief_graphql_403_html", graphQL: true, scope: "graphql", status: 403, fields: noRate, kind: html, body: edgePage},
	{name: "brief_content_422", scope: "content", status: 422, body: `{"message":"Validation Failed","errors":[{"resource":"Issue","code":"custom","field":"body","message":"body was submitted too quickly"}]}`},
	{name: "brief_content_graphql", graphQL: true, scope: "content", status: 200, body: call(`{"addComment":null}`, `"type":"UNPROCESSABLE",`, "was submitted too quickly")},
}

func rest(message string) string {
	return fmt.Sprintf(`{"message":%q,"documentation_url":"https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"}`, message)
}

func call(data, members, message string) string {
	return fmt.Sprintf(`{"data":%s,"errors":[{%s"message":%q}]}`, data, members, message)
}

func formNames() []string {
	var names []string
	for _, f := range forms {
		names = append(names, f.name)
	}
	return names
}

// form returns a random enabled form that suits a request, or nil.
func (x *exchange) form(scope string, secondary bool) *form {
	var suited []*form
	for i, f := range forms {
		if f.scope == scope && !(f.primary && secondary) && f.graphQL == x.isGraphQL() && slices.Contains(x.set.LimitAnswers, f.name) {
			suited = append(suited, &forms[i])
		}
	}
	if suited == nil {
		return nil
	}
	return suited[x.state.UpTo(int64(len(suited)-1))]
}

// isGraphQL reports whether a request is a GraphQL call.
func (x *exchange) isGraphQL() bool { return strings.TrimSuffix(x.Path, "/") == "/graphql" }

// creates reports whether a request creates content.
func (x *exchange) creates() bool {
	if x.isGraphQL() {
		return bytes.Contains(x.body(), []byte("mutation"))
	}
	last := x.Path[strings.LastIndexByte(x.Path, '/')+1:]
	return x.Method == http.MethodPost && slices.Contains([]string{"issues", "comments", "pulls", "reviews", "replies"}, last)
}

// episode answers a request during an episode, and starts episodes. An episode is a limit for one credential, which
// concerns only GraphQL or only content.
func (x *exchange) episode() *response {
	for _, scope := range []string{"content", "graphql"} {
		f := x.form(scope, false)
		if f == nil || scope == "content" && !x.creates() {
			continue
		}
		key := scope + " " + x.Header.Get("Authorization")
		lasts := time.Minute
		if scope == "graphql" {
			lasts = 5*time.Second + time.Duration(x.state.UpTo(int64(25*time.Second)))
		}
		if x.state.limited(key, x.now, lasts, x.state.Due("episode "+scope, x.set.EpisodeEvery)) {
			return f.apply(newResponse(0, ""), x.now)
		}
	}
	return nil
}

// limited reports whether an episode is in progress, and starts one that is due.
func (s *State) limited(key string, now time.Time, lasts time.Duration, due bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.episodes, func(_ string, until time.Time) bool { return !now.Before(until) })
	if _, ok := s.episodes[key]; ok || !due {
		return ok
	}
	s.episodes[key] = now.Add(lasts)
	return true
}

// isLimitError reports whether the service refused a request because of a limit. Clients decide by the text, too.
func isLimitError(r *response) bool {
	refused := r.status == http.StatusForbidden || r.status == http.StatusTooManyRequests
	text := bytes.Contains(r.body, []byte("rate limit")) || bytes.Contains(r.body, []byte("was limited"))
	return refused && text || r.status == http.StatusOK && bytes.Contains(r.body, []byte(`"RATE_LIMITED"`))
}

// limit gives a limit error of the service the form of the quirks.
func (x *exchange) limit(r *response) {
	if r.limited = isLimitError(r); !r.limited {
		return
	}
	secondary := bytes.Contains(r.body, []byte("secondary"))
	if r.status != http.StatusOK && x.set.LimitStatus != 0 {
		r.status = x.set.LimitStatus
	}
	if secondary && x.set.NoRetryAfter {
		r.header.Del("Retry-After")
	}
	if secondary && x.set.RemainingZero {
		setRemaining(r.header, 0)
	}
	// Without its fields, the end of a primary limit would be unknown, and each guess a violation.
	if f := x.form("", secondary); f != nil && (secondary || f.kind == "") {
		f.apply(r, x.now)
	}
}

// apply gives a response the form.
func (f *form) apply(r *response, now time.Time) *response {
	r.status = f.status
	for name, value := range f.fields {
		seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
		switch {
		case value == "":
			r.header.Del(name)
		case value != "date" && r.header.Get(name) != "":
			setRemaining(r.header, 0)
		case value == "date" && err == nil:
			seconds++ // a date has no fraction
			r.header.Set(name, now.Add(time.Duration(seconds)*time.Second).UTC().Format(http.TimeFormat))
		}
	}
	if f.body != "" {
		r.body = []byte(strings.TrimSpace(f.body))
		r.header.Set("Content-Type", "application/json; charset=utf-8")
		if f.kind != "" {
			r.header.Set("Content-Type", f.kind)
		}
	}
	return r
}

// setRemaining sets the remaining quota of a response, and what is used.
func setRemaining(h http.Header, remaining int) {
	limit, _ := strconv.Atoi(h.Get("X-Ratelimit-Limit")) // 0 without limits
	h.Set("X-Ratelimit-Remaining", strconv.Itoa(remaining))
	h.Set("X-Ratelimit-Used", strconv.Itoa(limit-remaining))
}

// rate applies the quirks of reported limits.
func (x *exchange) rate(r *response) {
	odd := x.state.Due("odd_rate_every", x.set.OddRateEvery)
	if odd && r.header.Get("X-Ratelimit-Limit") != "" || r.status == http.StatusUnauthorized && x.happens(x.set.WrongRateOn401) {
		r.header.Set("X-Ratelimit-Limit", "60")
		setRemaining(r.header, 0)
		r.header.Set("X-Ratelimit-Reset", strconv.FormatInt(x.now.Add(17*time.Minute).Unix(), 10))
		if r.header.Get("X-Ratelimit-Resource") == "" {
			r.header.Set("X-Ratelimit-Resource", "core")
		}
	}
}

// exceed drops a part of the data of a GraphQL response.
func (x *exchange) exceed(r *response) {
	var answer struct {
		Data   map[string]json.RawMessage `json:"data"`
		Errors []json.RawMessage          `json:"errors,omitempty"`
	}
	if !x.isGraphQL() || r.status != http.StatusOK || x.set.ResourcesExceed.isZero() || json.Unmarshal(r.body, &answer) != nil || answer.Data == nil || !x.happens(x.set.ResourcesExceed) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(answer.Data))[:min(1, len(answer.Data))] {
		answer.Data[name] = json.RawMessage("null")
	}
	answer.Errors = append(answer.Errors, json.RawMessage(`{"type":"RESOURCE_LIMITS_EXCEEDED","message":"Resource limits for this query exceeded."}`))
	r.body, _ = json.Marshal(answer) // it has been unmarshalled
}
