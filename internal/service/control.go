package service

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// controlPrefix is the path prefix of the control endpoints, which are not part of the API.
const controlPrefix = "/_service/"

// controlHandlers maps the control endpoints to handlers, by path and method.
var controlHandlers = map[string]map[string]func(*Service, http.ResponseWriter, *http.Request){
	"violations": {http.MethodGet: (*Service).showViolations, http.MethodDelete: (*Service).resetMeter},
	"quirks":     quirks,
	"faults":     quirks, // the former name
	"webhooks":   {http.MethodGet: (*Service).showWebhooks, http.MethodPut: (*Service).putWebhooks},
	"events":     {http.MethodGet: (*Service).showEvents, http.MethodPost: (*Service).postEvent},
	"judge":      {http.MethodPost: (*Service).postRead},
	"deliveries": {http.MethodGet: (*Service).showDeliveries},
}

var quirks = map[string]func(*Service, http.ResponseWriter, *http.Request){
	http.MethodGet: serveQuirks, http.MethodPut: serveQuirks, http.MethodDelete: serveQuirks,
}

func serveQuirks(s *Service, w http.ResponseWriter, r *http.Request) { s.faults.ServeControl(w, r) }

// serveControl serves the control endpoints. The meter does not count these requests.
func (s *Service) serveControl(w http.ResponseWriter, r *http.Request) {
	methods, known := controlHandlers[strings.TrimPrefix(r.URL.Path, controlPrefix)]
	if !known {
		writeJSON(w, http.StatusNotFound, problemBody{Message: "Not Found: must be one of " + strings.Join(slices.Sorted(maps.Keys(controlHandlers)), ", ")})
		return
	}
	serve := methods[r.Method]
	if r.Method == http.MethodHead {
		serve = methods[http.MethodGet]
	}
	if serve == nil {
		allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
		w.Header().Set("Allow", allowed)
		writeJSON(w, http.StatusMethodNotAllowed, problemBody{Message: "Method Not Allowed: must be one of " + allowed})
		return
	}
	serve(s, w, r)
}

func badRequest(w http.ResponseWriter, err error) {
	writeJSON(w, http.StatusBadRequest, problemBody{Message: err.Error()})
}

func (s *Service) showViolations(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Violations())
}

// resetMeter handles DELETE /_service/violations: it resets the meter and the violations. No caller is limited or
// banned afterwards.
func (s *Service) resetMeter(w http.ResponseWriter, r *http.Request) {
	s.meter.reset()
	s.showViolations(w, r)
}

// showEvents handles GET /_service/events: the events of the writes since the last request.
func (s *Service) showEvents(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Events())
}

// postRead handles POST /_service/judge: it decides whether one read is stale.
func (s *Service) postRead(w http.ResponseWriter, r *http.Request) {
	var read Read
	err := readControlJSON(w, r, &read)
	var v Verdict
	if err == nil {
		v, err = s.Check(read)
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func (s *Service) showDeliveries(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.deliveries.records())
}
