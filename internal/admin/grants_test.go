package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

// grantSources grants to the client ci only. Its only grant in force is "A1".
func grantSources(failure error) Sources {
	s := sources()
	granted := limits.Grant{ID: "A1", Client: "ci", Resource: "core", Requests: 500, Ends: time.Unix(1, 0)}
	s.Grant = func(_ context.Context, g Grant) (limits.Grant, error) {
		if g != (Grant{"ci", "core", 500, "30m"}) {
			return limits.Grant{}, fmt.Errorf("%w: client", limits.ErrInvalidGrant)
		}
		return granted, failure
	}
	s.Grants = func(context.Context) ([]limits.Grant, error) { return nil, failure }
	s.Revoke = func(_ context.Context, id string) (limits.Grant, error) {
		if id != "A1" {
			return limits.Grant{}, limits.ErrUnknownGrant
		}
		return granted, failure
	}
	return s
}

const validGrant = `{"client": "ci", "resource": "core", "requests": 500, "for": "30m"}`

func TestGrantEndpointsRespondWithDataOrProblem(t *testing.T) {
	for _, c := range []struct {
		name, request, field, token string
		failure                     error
		status                      int
		contains, audit             string
	}{
		{name: "grant", request: "POST /api/v1/grants " + validGrant, status: 200, contains: `"id": "A1"`, audit: "grant ci core granted A1: 500 more requests of core for ci until 1970-01-01T00:00:01Z"},
		{name: "invalid grant", request: `POST /api/v1/grants {"client": "other", "resource": "core"}`, status: 400, contains: "invalid grant: client", audit: "grant other core failed: invalid grant: client"},
		{name: "unknown field", request: `POST /api/v1/grants {"name": "ci"}`, status: 400, contains: "send {"},
		{name: "grant without a store", request: "POST /api/v1/grants " + validGrant, failure: errors.New("the store is lost"), status: 503, contains: "the store is lost", audit: "grant ci core failed: the store is lost"},
		{name: "list", request: "GET /api/v1/grants", status: 200, contains: "[]"},
		{name: "list without a store", request: "GET /api/v1/grants", failure: errors.New("the store is lost"), status: 503, contains: "the store is lost"},
		{name: "revoke", request: "DELETE /api/v1/grants/A1", status: 200, contains: `"id": "A1"`, audit: "revoke grant A1 revoked A1: 500 more requests of core for ci until 1970-01-01T00:00:01Z"},
		{name: "revoke an unknown grant", request: "DELETE /api/v1/grants/B2", status: 400, contains: `revoke grant "B2": no grant`, audit: "revoke grant B2 failed: no grant in force has this ID"},
		{name: "revoke without a store", request: "DELETE /api/v1/grants/A1", failure: errors.New("the store is lost"), status: 503, contains: "the store is lost", audit: "revoke grant A1 failed: the store is lost"},
		{name: "revoke without an ID", request: "DELETE /api/v1/grants/", status: 404},
		{name: "method of another page", request: "DELETE /api/v1/grants", status: 405},
		{name: "read of one grant", request: "GET /api/v1/grants/A1", status: 405},
		{name: "grant from another site", request: "POST /api/v1/grants " + validGrant, field: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "revoke from another site", request: "DELETE /api/v1/grants/A1", field: "Sec-Fetch-Site: cross-site", status: 403},
		{name: "grant without the token", request: "POST /api/v1/grants " + validGrant, token: "secret", status: 401, contains: "token"},
		{name: "list without the token", request: "GET /api/v1/grants", token: "secret", status: 401, contains: "token"},
		{name: "revoke without the token", request: "DELETE /api/v1/grants/A1", token: "secret", status: 401, contains: "token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			method, target, _ := strings.Cut(c.request, " ")
			path, body, _ := strings.Cut(target, " ")
			r := httptest.NewRequest(method, "http://127.0.0.1:9090"+path, strings.NewReader(body))
			if name, value, ok := strings.Cut(c.field, ": "); ok {
				r.Header.Set(name, value)
			}
			s, w := grantSources(c.failure), httptest.NewRecorder()
			Handler(Access{Token: credential.Secret(c.token)}, s).ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.contains) {
				t.Errorf("got %d %q", w.Code, w.Body)
			}
			audit := ""
			for _, change := range s.Trail.Last() {
				audit += change.Action + " " + change.Target + " " + change.Outcome
			}
			if audit != c.audit {
				t.Errorf("audit trail: %q, want %q", audit, c.audit)
			}
		})
	}
}

func TestAllowNamesTheMethodsOfAllPagesOfAPath(t *testing.T) {
	w := respond(Handler(Access{}, grantSources(nil)), http.MethodPut, "http://localhost/api/v1/grants", nil)
	if got := w.Header().Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("Allow: %s", got)
	}
}

func TestEventStreamHasTheAuditTrail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, trail := history.New(history.Sources{}), NewTrail(slog.New(slog.DiscardHandler))
		trail.OnChange(func(c Change) { h.PublishChange(c) })
		s := openStream(t, h, Access{}, "?only=audit")
		s.next() // retry
		trail.Record(Change{Operator: "time", Action: "end grant", Target: "A1"})
		_, data, _ := strings.Cut(s.next(), "data: ")
		var c Change
		if err := json.Unmarshal([]byte(data), &c); err != nil || c.Action != "end grant" || c.Target != "A1" {
			t.Errorf("got %s, %v", data, err)
		}
	})
}
