package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// refuseOtherTokens refuses every token but tok-owner, as the upstream does.
func refuseOtherTokens(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer tok-owner" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if v := r.Header.Get("X-Github-Api-Version"); v == "1999-01-01" {
		w.WriteHeader(http.StatusBadRequest)
	}
}

// TestRateLimitStatusDependsOnTheCredential covers C3 of the list of defects.
func TestRateLimitStatusDependsOnTheCredential(t *testing.T) {
	setup(refuseOtherTokens, wholeAPI(t, unchanged)).run(t, func(w *world) {
		for range 2 {
			w.want("status for a refused token", w.get("/rate_limit", "Authorization: Bearer wrong").StatusCode, http.StatusUnauthorized)
		}
		w.want("status without a credential", w.get("/rate_limit").StatusCode, http.StatusOK)
		w.want("requests", w.upstreamSaw(), 1) // the refusal is remembered
		w.get("/user", owner)
		w.want("status for an accepted token", w.get("/rate_limit", owner).StatusCode, http.StatusOK)
		w.want("requests with an accepted token", w.upstreamSaw(), 2)
	})
}

func TestRateLimitStatusHasTheShapeOfTheVersion(t *testing.T) {
	setup(refuseOtherTokens, wholeAPI(t, unchanged)).run(t, func(w *world) {
		w.get("/user", owner)
		for version, rate := range map[string]bool{"": true, "2022-11-28": true, "2026-03-10": false} {
			r := w.get("/rate_limit", owner, "X-GitHub-Api-Version: "+version)
			w.want("member rate in version "+version, strings.Contains(r.body, `"rate":`), rate)
			again := w.get("/rate_limit", owner, "X-GitHub-Api-Version: "+version, "If-None-Match: "+r.Header.Get("Etag"))
			w.want("status with the same ETag", again.StatusCode, http.StatusNotModified)
			w.want("body with the same ETag", again.body, "")
		}
		w.want("requests", w.upstreamSaw(), 1)
		w.want("status of an unknown version", w.get("/rate_limit", owner, "X-GitHub-Api-Version: 1999-01-01").StatusCode, http.StatusBadRequest)
	})
}
