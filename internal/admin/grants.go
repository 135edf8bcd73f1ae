package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/weirgate/weir/limits"
)

func (s Sources) grants(w http.ResponseWriter, r *http.Request) {
	list, err := s.Grants(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	writeIndented(w, append([]limits.Grant{}, list...))
}

func (s Sources) grant(w http.ResponseWriter, r *http.Request) {
	var g Grant
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&g); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`%w; send {"client": NAME, "resource": "core", "requests": 500, "for": "30m"}: %w`, limits.ErrInvalidGrant, err))
		return
	}
	granted, err := s.Grant(r.Context(), g)
	s.Trail.record(r, "grant", g.Client+" "+g.Resource, Outcome(err, "granted "+granted.String()))
	switch {
	case errors.Is(err, limits.ErrInvalidGrant):
		fail(w, http.StatusBadRequest, err)
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
	default:
		writeIndented(w, granted)
	}
}

func (s Sources) revoke(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	revoked, err := s.Revoke(r.Context(), id)
	s.Trail.record(r, "revoke grant", id, Outcome(err, "revoked "+revoked.String()))
	switch {
	case errors.Is(err, limits.ErrUnknownGrant):
		fail(w, http.StatusBadRequest, fmt.Errorf("revoke grant %q: %w", id, err))
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
	default:
		writeIndented(w, revoked)
	}
}
