package service

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// ownPaths are those that are not of the API.
const controlPrefix = "/_service/"

// own are the service's own resources, by path and method.
var controlHandlers = map[string]map[string]func(*Service, http.ResponseWriter, *http.Request){
	"violations": {http.MethodGet: (*Service).showViolations, http.MethodDelete: (*Service).resetMeter},
	"faults":     {http.MethodGet: (*Service).showFaults, http.MethodPut: (*Service).putFaults, http.MethodDelete: (*Service).deleteFaults},
	"webhooks":   {http.MethodGet: (*Service).showWebhooks, http.MethodPut: (*Service).putWebhooks},
	"events":     {http.MethodPost: (*Service).postEvent},
	"deliveries": {http.MethodGet: (*Service).showDeliveries},
}

// serveOwn answers what is asked of the service itself. It costs nobody anything.
func (s *Service) serveControl(w http.ResponseWriter, r *http.Request) {
	methods, known := controlHandlers[strings.TrimPrefix(r.URL.Path, controlPrefix)]
	if !known {
		writeJSON(w, http.StatusNotFound, problemBody{Message: "Not Found: there are " + strings.Join(slices.Sorted(maps.Keys(controlHandlers)), ", ")})
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

// forgetViolations begins anew: nothing is spent, nobody limited or banned.
func (s *Service) resetMeter(w http.ResponseWriter, r *http.Request) {
	s.meter.reset()
	s.showViolations(w, r)
}

func (s *Service) showFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.faults.current())
}

// putFaults sets those that are named.
func (s *Service) putFaults(w http.ResponseWriter, r *http.Request) {
	body, err := readControlBody(w, r)
	if err == nil {
		err = s.changeFaults(func(inForce Faults) (Faults, error) { return ParseFaults(body, inForce) })
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	s.showFaults(w, r)
}

func (s *Service) deleteFaults(w http.ResponseWriter, r *http.Request) {
	s.setFaults(Faults{})
	s.showFaults(w, r)
}

func (s *Service) showDeliveries(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.deliveries.records())
}
