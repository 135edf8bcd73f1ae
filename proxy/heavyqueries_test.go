package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/proxy/bodies"
)

// TestQueryThatExceedsResourcesIsRefused sends a query of 50 nodes whose first failing responses are given.
func TestQueryThatExceedsResourcesIsRefused(t *testing.T) {
	const query = `{"query":"query Big($o:String!) { repository(owner:$o,name:\"b\") { issues(first:50) { nodes { id } } } }","variables":{"o":"a"}}`
	smaller, other := strings.Replace(query, "50", "10", 1), strings.Replace(query, `:"a"`, `:"c"`, 1)
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
		"long partial results":     {replies(`{"data":{"x":"` + strings.Repeat("x", 2*bodies.MaxPeek) + `"},"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"x"}]}`), "resource-limits"},
		"message of a timeout":     {errorOf(`"message":"Something went wrong while executing your query. This may be the result of a timeout, or it could be a bug."`), "timeout-message"},
		"bad gateway after 10 s":   {status(502, 10*time.Second), "timeout"},
		"gateway timeout":          {status(504, 10*time.Second), "timeout"},
		"bad gateway at once":      {status(502, 0), ""},
		"an error of another type": {errorOf(`"type":"NOT_FOUND","message":"Something"`), ""},
		"a text with the message":  {replies(`{"data":{"x":"\"errors\":[{\"type\":\"RESOURCE_LIMITS_EXCEEDED\"}]"}}`), ""},
	} {
		failing := true
		upstream := func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); failing && string(body) == query {
				c.failure(w, r)
				return
			}
			replies(`{"data":{}}`)(w, r)
		}
		setup(upstream).sub(t, name, func(w *world) {
			for range 3 {
				w.ask(query)
				w.want("failure in the record", w.last().QueryFailure, c.row)
			}
			sent := w.upstreamSaw()
			r := w.ask(query)
			if c.row == "" {
				w.want("requests upstream", w.upstreamSaw(), sent+1)
				return
			}
			w.wantReply("fourth call", r, http.StatusOK, "Cache-Status: weir; detail=query", "Retry-After: 60")
			w.want("error", strings.Contains(r.body, `"errors":[{"type":"RESOURCE_LIMITS_EXCEEDED","message":"This gateway does not send this query`), true)
			w.want("refusal in the record", w.last().QueryFailure, refusedQuery)
			w.want("requests upstream", w.upstreamSaw(), sent)
			w.ask(query, bearer("another"))
			w.ask(smaller)
			w.ask(other)
			w.ask(`{"query":"{viewer{login}}"}`)
			w.want("other accounts, other variables, smaller and other queries", w.upstreamSaw(), sent+4)
			time.Sleep(time.Minute)
			w.ask(query)
			w.want("requests after the pause", w.upstreamSaw(), sent+5)
			w.wantReply("after another failure", w.ask(query), http.StatusOK, "Cache-Status: weir; detail=query", "Retry-After: 120")
			time.Sleep(2 * time.Minute)
			failing = false
			for range 4 {
				w.ask(query)
			}
			w.want("requests after a success", w.upstreamSaw(), sent+9)
		})
	}
}

// TestOutageRefusesNoQuery sends queries that alternate while the upstream fails slowly.
func TestOutageRefusesNoQuery(t *testing.T) {
	for name, c := range map[string]struct {
		healthy bool // the upstream answers another query between the failures
		refused bool
	}{
		"outage":            {},
		"two heavy queries": {healthy: true, refused: true},
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); !strings.Contains(string(body), "heavy") {
				replies(`{"data":{}}`)(w, r)
				return
			}
			time.Sleep(10 * time.Second)
			w.WriteHeader(http.StatusGatewayTimeout)
		}).sub(t, name, func(w *world) {
			for range 4 {
				for _, query := range []string{`{"query":"{heavy{a}}"}`, `{"query":"{heavy{a}}"}`, `{"query":"{heavy{b}}"}`} {
					w.ask(query)
					if c.healthy {
						w.ask(`{"query":"{viewer{login}}"}`)
					}
				}
			}
			w.want("refused", w.last().QueryFailure == refusedQuery || w.recent()[1].QueryFailure == refusedQuery, c.refused)
		})
	}
}
