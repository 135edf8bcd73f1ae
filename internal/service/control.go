package service

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/weirgate/weir/internal/service/quirk"
)

// controlPrefix is the path prefix of the control endpoints, which are not part of the API.
const controlPrefix = "/_service/"

// controlEndpoints are the control endpoints. The meter does not count their requests. An endpoint responds with a JSON
// value, or with 400 and an error that names the invalid member of the body.
var controlEndpoints = []struct {
	method, name string
	status       int
	serve        func(s *Service, r *http.Request, body []byte) (any, error)
}{
	{"GET", "violations", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) { return s.Violations(), nil }},
	{"DELETE", "violations", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) {
		s.meter.reset()
		return s.Violations(), nil
	}},
	{"GET", "quirks", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) { return s.quirks.Current(), nil }},
	{"PUT", "quirks", 200, func(s *Service, _ *http.Request, body []byte) (any, error) { return s.quirks.Change(body) }},
	{"DELETE", "quirks", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) {
		s.quirks.Put(quirk.Set{})
		return s.quirks.Current(), nil
	}},
	{"GET", "webhooks", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) { return s.shownWebhooks(), nil }},
	{"PUT", "webhooks", 200, (*Service).putWebhooks},
	{"GET", "events", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) { return s.Events(), nil }},
	{"POST", "events", 202, (*Service).postEvent},
	{"GET", "deliveries", 200, func(s *Service, _ *http.Request, _ []byte) (any, error) { return s.deliveries.records(), nil }},
}

// control returns the handler of the control endpoints.
func (s *Service) control() http.Handler {
	mux, names := http.NewServeMux(), []string(nil)
	for _, e := range controlEndpoints {
		pattern := e.method + " " + controlPrefix + e.name
		names = append(names, pattern)
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if err == nil && len(bytes.TrimSpace(body)) == 0 && strings.HasPrefix(e.method, "P") {
				err = errors.New("the body is empty; send JSON")
			}
			var result any
			if err == nil {
				result, err = e.serve(s, r, body)
			}
			if err != nil {
				writeJSON(w, http.StatusBadRequest, problemBody{Message: err.Error()})
				return
			}
			writeJSON(w, e.status, result)
		})
	}
	for _, method := range []string{"GET ", "PUT ", "DELETE "} {
		mux.HandleFunc(method+controlPrefix+"faults", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusGone, problemBody{Message: "/_service/faults was removed; use /_service/quirks"})
		})
	}
	mux.HandleFunc("GET "+controlPrefix, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusNotFound, problemBody{Message: "Not Found: must be one of " + strings.Join(names, ", ")})
	})
	return mux
}

// unmarshalStrict unmarshals one JSON value. Its errors name unknown members and members of a wrong type.
func unmarshalStrict(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return fmt.Errorf("%s: must be %s, not %s", cmp.Or(mismatch.Field, "the body"), cmp.Or(jsonTypeNames[mismatch.Type.Kind()], "an object"), mismatch.Value)
	}
	if err == nil && !errors.Is(decoder.Decode(&struct{}{}), io.EOF) {
		return errors.New("more than one JSON value")
	}
	if err != nil {
		if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return fmt.Errorf("%s: unknown member", strings.Trim(name, `"`))
		}
	}
	return err
}

// jsonTypeNames maps Go kinds to the names of JSON types.
var jsonTypeNames = map[reflect.Kind]string{
	reflect.Bool: "a boolean", reflect.Int: "an integer", reflect.Int64: "an integer", reflect.Slice: "an array", reflect.String: "a string",
}
