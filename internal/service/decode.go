package service

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"regexp"
	"strings"
)

// elementIndex matches the index of an array element in the path of a field. Package json writes it since Go 1.27.
var elementIndex = regexp.MustCompile(`\.[0-9]+`)

// decode unmarshals a request's body, a JSON object, into a structure or a map. An empty body and null count as an
// empty object. Member names are case-sensitive. A value of a wrong type is a 422 that names the field.
func (s *Service) decode(body []byte, resource string, into any) *response {
	if text := strings.TrimSpace(string(body)); text == "" || text == "null" {
		body = []byte("{}")
	}
	var members map[string]json.RawMessage
	err := json.Unmarshal(body, &members)
	if err == nil {
		dropUnknownMembers(members, reflect.TypeOf(into).Elem())
		var exact []byte
		if exact, err = json.Marshal(members); err == nil {
			err = json.Unmarshal(exact, into)
		}
	}
	var mismatch *json.UnmarshalTypeError
	var p response
	switch {
	case err == nil:
		return nil
	case members == nil && errors.As(err, &mismatch):
		p = fail(http.StatusBadRequest, "Body should be a JSON object")
	case errors.As(err, &mismatch):
		p = invalid(resource, elementIndex.ReplaceAllString(mismatch.Field, ""))
	default:
		p = fail(http.StatusBadRequest, "Problems parsing JSON")
	}
	return &p
}

// dropUnknownMembers deletes the members that a structure does not have. Otherwise package json would match names that
// differ only in case.
func dropUnknownMembers(members map[string]json.RawMessage, into reflect.Type) {
	if into.Kind() != reflect.Struct {
		return
	}
	known := map[string]bool{}
	for _, f := range reflect.VisibleFields(into) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = true
	}
	for name := range members {
		if !known[name] {
			delete(members, name)
		}
	}
}
