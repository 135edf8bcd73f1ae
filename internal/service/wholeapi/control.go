package wholeapi

import (
	"encoding/json"
	"net/http"
	"strings"
)

// controlPrefix is the path prefix of the control endpoints, which are not part of the API.
const controlPrefix = "/_service/"

// serveControl serves the control endpoints.
func (s *Service) serveControl(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + strings.TrimPrefix(r.URL.Path, controlPrefix) {
	case "GET violations", "HEAD violations":
		writeJSON(w, http.StatusOK, s.Violations())
	case "DELETE violations":
		s.Reset()
		writeJSON(w, http.StatusOK, s.Violations())
	case "GET events":
		writeJSON(w, http.StatusOK, s.Events())
	case "POST judge":
		var read Read
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&read)
		var v Verdict
		if err == nil {
			v, err = s.Check(read)
		}
		if err != nil {
			writeJSON(w, http.StatusBadRequest, doc{"message": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, v)
	default:
		writeJSON(w, http.StatusNotFound, doc{"message": "Not Found: must be GET or DELETE violations, GET events or POST judge"})
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}
