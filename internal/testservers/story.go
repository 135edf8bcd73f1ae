package testservers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Story sends requests to a handler, one after another.
type Story struct {
	Handler http.Handler
	Host    string // of targets that begin with a slash
	// Authorization returns the field Authorization for the name of a credential.
	Authorization func(name string) string
	names         map[string]any // values of earlier responses
}

// NewRequest returns a request with the credential of a name. A request is a method, a target and a body, for example
// "PUT /user {}". Further lines of as contain header fields. Names of values of earlier responses are replaced.
func (s *Story) NewRequest(as, request string) *http.Request {
	request = s.withValues(request)
	method, target, _ := strings.Cut(request, " ")
	target, body, _ := strings.Cut(target, " ")
	if strings.HasPrefix(target, "/") {
		target = "http://" + s.Host + target
	}
	r := httptest.NewRequestWithContext(context.Background(), method, target, strings.NewReader(body))
	name, fields, _ := strings.Cut(as, "\n")
	if authorization := s.Authorization(name); authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	for field := range strings.Lines(fields) {
		name, value, _ := strings.Cut(strings.TrimSpace(field), ": ")
		r.Header.Set(name, value)
	}
	return r
}

// withValues returns a text in which values replace their names.
func (s *Story) withValues(text string) string {
	for name, value := range s.names {
		text = strings.ReplaceAll(text, name, fmt.Sprint(value))
	}
	return text
}

// Do sends a request.
func (s *Story) Do(as, request string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler.ServeHTTP(w, s.NewRequest(as, request))
	return w
}

// Call sends a request and checks the response.
func (s *Story) Call(t testing.TB, as, request string, status int, want string) *httptest.ResponseRecorder {
	t.Helper()
	w := s.Do(as, request)
	if differences := s.Differences(w, status, want); differences != "" {
		t.Errorf("%.300s as %q: %s", request, as, differences)
	}
	return w
}

var headerLine = regexp.MustCompile(`^([A-Z][\w-]*):(.*)$`)

// Differences compares a response with a status and with the lines of want. It returns one line for each difference
// and the start of the body, or an empty string. A line of want has one of these forms:
//
//	{"a":1,"b":[{},"..."]}  The body has these members, and may have more. Objects in it may have more members, too.
//	Link: <http://a>...     A header field has the value, or starts with the value if "..." follows. Without a
//	                        value, the field is absent.
//	each slug: a b c        The body is a list, and these are the values of a member of its elements.
//	#3                      The body is a list of three elements.
//	=text                   The body is the text, except for white space at the end.
//	!text                   The body does not contain the text.
//	text                    The body contains the text.
//
// In JSON, which may use several lines, some strings match other values: "-" an absent member, "*" a value that is
// neither null nor empty, "#3" a list of three elements, and "..." at the end of a list any further elements.
// A string such as "$id" names any value at first, and afterwards matches the same value. Later requests
// and lines without JSON use the value instead of $id. Differences panics for invalid JSON.
func (s *Story) Differences(w *httptest.ResponseRecorder, status int, want string) string {
	var lines []string
	if w.Code != status {
		lines = append(lines, fmt.Sprintf("got status %d, want %d", w.Code, status))
	}
	var body any
	_ = json.Unmarshal(w.Body.Bytes(), &body) // other bodies match no JSON
	for want = strings.TrimSpace(want); want != ""; want = strings.TrimSpace(want) {
		if want[0] != '{' && want[0] != '[' {
			line, rest, _ := strings.Cut(want, "\n")
			want = rest
			if line = s.withValues(line); !matchesLine(w, body, line) {
				lines = append(lines, "want "+line)
				if name, _, _ := strings.Cut(line, ":"); headerLine.MatchString(line) {
					lines = append(lines, fmt.Sprintf("got %s: %q", name, w.Header().Values(name)))
				}
			}
			continue
		}
		var pattern any
		decoder := json.NewDecoder(strings.NewReader(want))
		if err := decoder.Decode(&pattern); err != nil {
			panic("testservers: invalid pattern " + want + ": " + err.Error())
		}
		want = want[decoder.InputOffset():]
		lines = append(lines, s.jsonDifferences("body", pattern, body)...)
	}
	if lines == nil {
		return ""
	}
	return strings.Join(lines, "\n") + fmt.Sprintf("\nbody: %.500s", w.Body)
}

func matchesLine(w *httptest.ResponseRecorder, body any, line string) bool {
	text := w.Body.String()
	if member, values, ok := strings.Cut(strings.TrimPrefix(line, "each "), ":"); ok && strings.HasPrefix(line, "each ") {
		var got []string
		list, isList := body.([]any)
		for _, element := range list {
			object, _ := element.(map[string]any)
			got = append(got, fmt.Sprint(object[member]))
		}
		return isList && strings.Join(got, " ") == strings.TrimSpace(values)
	}
	if header := headerLine.FindStringSubmatch(line); header != nil {
		value := strings.TrimSpace(header[2])
		if start, open := strings.CutSuffix(value, "..."); open {
			return strings.HasPrefix(w.Header().Get(header[1]), start)
		}
		return w.Header().Get(header[1]) == value
	}
	if count, ok := strings.CutPrefix(line, "#"); ok {
		list, isList := body.([]any)
		return isList && count == fmt.Sprint(len(list))
	}
	if exact, ok := strings.CutPrefix(line, "="); ok {
		return strings.TrimRight(text, " \t\n") == strings.TrimRight(exact, " \t\n")
	}
	if absent, ok := strings.CutPrefix(line, "!"); ok {
		return !strings.Contains(text, absent)
	}
	return strings.Contains(text, line)
}

// jsonDifferences compares the value at a path with a pattern.
func (s *Story) jsonDifferences(path string, pattern, got any) (lines []string) {
	differ := []string{fmt.Sprintf("%s: got %v, want %v", path, got, pattern)}
	switch pattern := pattern.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return differ
		}
		for name, want := range pattern {
			value, present := object[name]
			if want == "-" || !present {
				if present || want != "-" {
					lines = append(lines, fmt.Sprintf("%s.%s: got %v, want %v", path, name, value, want))
				}
				continue
			}
			lines = append(lines, s.jsonDifferences(path+"."+name, want, value)...)
		}
		return lines
	case []any:
		list, ok := got.([]any)
		n := len(pattern)
		if n > 0 && pattern[n-1] == "..." {
			n--
			list = list[:min(n, len(list))]
		}
		if !ok || len(list) != n {
			return differ
		}
		for i := range list {
			lines = append(lines, s.jsonDifferences(fmt.Sprintf("%s[%d]", path, i), pattern[i], list[i])...)
		}
		return lines
	case string:
		if list, ok := got.([]any); ok && pattern == fmt.Sprint("#", len(list)) || pattern == "*" && got != nil && got != "" {
			return nil
		}
		if strings.HasPrefix(pattern, "$") {
			if s.names == nil {
				s.names = map[string]any{}
			}
			if s.names[pattern] == nil {
				s.names[pattern] = got
			}
			if got != nil && reflect.DeepEqual(s.names[pattern], got) {
				return nil
			}
		}
	}
	if !reflect.DeepEqual(pattern, got) {
		return differ
	}
	return nil
}
