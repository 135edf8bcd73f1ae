package quirk

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
)

// form is one form of a limit error.
type form struct {
	Name    string
	GraphQL bool   // for GraphQL calls; the others are for REST
	Primary bool   // says that a primary limit is exceeded; a secondary limit error has no such form, because it concerns all resources
	Scope   string // of an episode, or "" for the limit errors of the service
	Status  int
	Fields  map[string]string // response header fields; an empty value removes the field
	Body    string            // the default is the body of the service
}

//go:embed forms.yaml
var formsText []byte

// forms returns the forms of limit errors in traffic of the real API.
var forms = sync.OnceValue(func() (all []form) {
	if err := yaml.Load(formsText, &all); err != nil {
		panic(err) // the file is embedded
	}
	return all
})

func formNames() []string {
	var names []string
	for _, f := range forms() {
		names = append(names, f.Name)
	}
	return names
}

// form returns a random enabled form that suits a request, or nil.
func (x *exchange) form(scope string, secondary bool) *form {
	var suited []*form
	for _, f := range forms() {
		if f.Scope == scope && (!f.Primary || !secondary) && f.GraphQL == x.isGraphQL() && slices.Contains(x.set.LimitAnswers, f.Name) {
			suited = append(suited, &f)
		}
	}
	if suited == nil {
		return nil
	}
	return suited[x.state.UpTo(int64(len(suited)-1))]
}

// isGraphQL reports whether a request is a GraphQL call.
func (x *exchange) isGraphQL() bool {
	return strings.TrimPrefix(strings.TrimSuffix(x.Path, "/"), "/api") == "/graphql"
}

// creates reports whether a request creates content.
func (x *exchange) creates() bool {
	if x.isGraphQL() {
		return bytes.Contains(x.body(), []byte("mutation"))
	}
	last := x.Path[strings.LastIndexByte(x.Path, '/')+1:]
	return x.Method == http.MethodPost && slices.Contains([]string{"issues", "comments", "pulls", "reviews", "replies"}, last)
}

// episode answers a request during an episode of a scope, and starts episodes. An episode is a limit for one credential,
// which concerns only GraphQL or only content.
func (x *exchange) episode(scope string) *response {
	f := x.form(scope, false)
	if f == nil || scope == "content" && !x.creates() {
		return nil
	}
	lasts := time.Minute
	if scope == "graphql" {
		lasts = 5*time.Second + time.Duration(x.state.UpTo(int64(25*time.Second)))
	}
	due, key := x.state.Due("episode "+scope, x.set.EpisodeEvery), scope+" "+x.Header.Get("Authorization")
	x.state.mu.Lock()
	defer x.state.mu.Unlock()
	episodes := x.state.episodes
	maps.DeleteFunc(episodes, func(_ string, until time.Time) bool { return !x.now.Before(until) })
	if _, inProgress := episodes[key]; !inProgress && !due {
		return nil
	} else if !inProgress {
		episodes[key] = x.now.Add(lasts)
	}
	return f.apply(newResponse(0, ""), x.now)
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
	// Without its fields, the end of a primary limit would be unknown, and each guess a violation.
	if f := x.form("", secondary); f != nil && (secondary || f.Fields["Content-Type"] == "") {
		f.apply(r, x.now)
	}
}

// apply gives a response the form.
func (f *form) apply(r *response, now time.Time) *response {
	r.status = f.Status
	if f.Body != "" {
		r.body = []byte(strings.TrimSpace(f.Body))
		r.header.Set("Content-Type", "application/json; charset=utf-8")
	}
	seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
	for name, value := range f.Fields {
		switch {
		case value == "":
			r.header.Del(name)
		case name == "X-Ratelimit-Remaining":
			setRemaining(r.header, 0)
		case name != "Retry-After":
			r.header.Set(name, value)
		case err == nil: // a date, which has no fraction
			r.header.Set(name, now.Add(time.Duration(seconds+1)*time.Second).UTC().Format(http.TimeFormat))
		}
	}
	return r
}

// setRemaining sets the remaining quota of a response, and the used quota.
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
