package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestQueryThatExceedsResourcesIsRefused sends a query of 50 nodes whose first failing responses are given.
func TestQueryThatExceedsResourcesIsRefused(t *testing.T) {
	const query = `query Big { repository(owner:\"a\",name:\"b\") { issues(first:50) { nodes { id } } } }`
	smaller := strings.Replace(query, "50", "10", 1)
	status := func(code int, after time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(after)
			w.WriteHeader(code)
		}
	}
	errorOf := func(text string) http.HandlerFunc { return replies(`{"data":null,"errors":[{` + text + `}]}`) }
	for name, c := range map[string]struct {
		failure http.HandlerFunc
		row     string // empty if the query is not refused
	}{
		"resource limits":          {replies(`{"data":{"viewer":{"login":"a"}},"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"x"}]}`), "resource-limits"},
		"long partial results":     {replies(`{"data":{"x":"` + strings.Repeat("x", 2*maxPeek) + `"},"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"x"}]}`), "resource-limits"},
		"message of a timeout":     {errorOf(`"message":"Something went wrong while executing your query. This may be the result of a timeout, or it could be a bug."`), "timeout-message"},
		"bad gateway after 10 s":   {status(502, 10*time.Second), "timeout"},
		"gateway timeout":          {status(504, 10*time.Second), "timeout"},
		"bad gateway at once":      {status(502, 0), ""},
		"an error of another type": {errorOf(`"type":"NOT_FOUND","message":"Something"`), ""},
		"a text with the message":  {replies(`{"data":{"x":"\"errors\":[{\"type\":\"RESOURCE_LIMITS_EXCEEDED\"}]"}}`), ""},
	} {
		failing := true
		upstream := func(w http.ResponseWriter, r *http.Request) {
			if failing {
				c.failure(w, r)
				return
			}
			replies(`{"data":{}}`)(w, r)
		}
		setup(upstream).sub(t, name, func(w *world) {
			ask := func(query string, fields ...string) got { return w.ask(`{"query":"`+query+`"}`, fields...) }
			for range 3 {
				ask(query)
				w.want("failure in the record", w.last().QueryFailure, c.row)
			}
			sent := w.upstreamSaw()
			r := ask(query)
			if c.row == "" {
				w.want("requests upstream", w.upstreamSaw(), sent+1)
				return
			}
			w.wantReply("fourth call", r, http.StatusOK, "Cache-Status: weir; detail=query", "Retry-After: 60")
			w.want("error", strings.Contains(r.body, `"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"This gateway does not send this query`), true)
			w.want("refusal in the record", w.last().QueryFailure, refusedQuery)
			w.want("requests upstream", w.upstreamSaw(), sent)
			ask(query, bearer("another"))
			ask(smaller)
			ask("{viewer{login}}")
			w.want("other accounts, smaller and other queries", w.upstreamSaw(), sent+3)
			time.Sleep(time.Minute)
			ask(query)
			w.want("requests after the pause", w.upstreamSaw(), sent+4)
			w.wantReply("after another failure", ask(query), http.StatusOK, "Cache-Status: weir; detail=query", "Retry-After: 120")
			time.Sleep(2 * time.Minute)
			failing = false
			for range 4 {
				ask(query)
			}
			w.want("requests after a success", w.upstreamSaw(), sent+8)
		})
	}
}
