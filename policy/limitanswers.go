package policy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LimitAnswer is a row of limitanswers.yaml, which explains the fields.
type LimitAnswer struct {
	Name          string    `yaml:"name"`
	Kind          LimitKind `yaml:"kind"`
	API           string    `yaml:"api"`
	Status        []int     `yaml:"status"`
	Type          []string  `yaml:"type"`
	Code          []string  `yaml:"code"`
	Text          []string  `yaml:"text"`
	Begins        []string  `yaml:"begins"`
	Documentation []string  `yaml:"documentation"`
	Body          string    `yaml:"body"`
	Exhausted     bool      `yaml:"exhausted"`
	RetryAfter    bool      `yaml:"retry_after"`
	Repeated      int       `yaml:"repeated"`
	Source        string    `yaml:"source"`
}

// LimitKind is the kind of a limit in limitanswers.yaml, and of the limit error that a response reports.
type LimitKind string

// Kinds of limits.
const (
	// NotLimited is the kind of a response without a limit error. Only a row has the kind LimitNone.
	NotLimited LimitKind = ""
	LimitNone  LimitKind = "none"
	// LimitPrimary closes the window of the resource until its reset.
	LimitPrimary LimitKind = "primary"
	// LimitSecondary starts a cool-down of the account.
	LimitSecondary LimitKind = "secondary"
	// LimitContent pauses the requests of the account that create content.
	LimitContent LimitKind = "content"
)

// RepeatedWithin is the longest time between two responses of a row with the condition repeated.
const RepeatedWithin = time.Minute

const (
	apiREST, apiGraphQL = "rest", "graphql"
	bodyEmpty, bodyHTML = "empty", "html"
)

// limitAnswers is limitanswers.yaml. A row with neither status nor begins is for 403 and 429.
var limitAnswers = func() []LimitAnswer {
	rows := mustDecode[[]LimitAnswer]("limitanswers.yaml")
	for i := range rows {
		if row := &rows[i]; len(row.Status)+len(row.Begins) == 0 {
			row.Status = []int{http.StatusForbidden, http.StatusTooManyRequests}
		}
	}
	return rows
}()

// LimitError describes the limit error of a response. The zero value represents a response without a limit error.
type LimitError struct {
	Kind LimitKind
	// Name is the row of limitanswers.yaml that decided.
	Name    string
	Message string
	// Repeated is the number of such responses in a row that make a limit error, or zero if one response suffices.
	Repeated int
}

// UpstreamAnswer contains the parts of a response by which a limit is recognized.
type UpstreamAnswer struct {
	Status  int
	Header  http.Header
	GraphQL bool // the request was a GraphQL call
	// Unproven means that the upstream may not have known the credential of the request. A row with the condition repeated then
	// does not apply, because the response may be the refusal of the credential.
	Unproven bool
	// Body is the decoded body. It may be cut off. It is empty for a success that may contain a text of a user of the API,
	// such as a file.
	Body []byte
}

// part is one message of a response, with the type and the code of an error.
type part struct {
	original, message         string // the message as it arrived, and in lower case with single spaces
	kind, code, documentation string
	unparsed                  bool // the message is the whole body, which is no complete JSON object
}

// RecognizeLimit returns the row that decides about a response, and the message of the limit. The row may have the kind
// [LimitNone]. If no row applies, RecognizeLimit returns nil.
func RecognizeLimit(a UpstreamAnswer) (row *LimitAnswer, message string) {
	if !a.mayReport() {
		return nil, ""
	}
	parts, body := a.parts()
	for _, p := range parts {
		r := decide(&a, &p, body, true)
		if r == nil || row != nil && r.Kind == LimitNone {
			continue
		}
		if row, message = r, p.original; r.Kind != LimitNone {
			return row, message
		}
	}
	if row == nil {
		row, message = decide(&a, &parts[0], body, false), parts[0].original
	}
	return row, message
}

// ReadLimitError returns the limit error that a response reports.
func ReadLimitError(a UpstreamAnswer) LimitError {
	row, message := RecognizeLimit(a)
	if row == nil || row.Kind == LimitNone {
		return LimitError{}
	}
	return LimitError{Kind: row.Kind, Name: row.Name, Message: message, Repeated: row.Repeated}
}

// decide returns the first row whose conditions hold. ofPart selects the rows with a condition about a part, or the rows
// without such a condition.
func decide(a *UpstreamAnswer, p *part, body string, ofPart bool) *LimitAnswer {
	for i := range limitAnswers {
		if r := &limitAnswers[i]; r.ofPart() == ofPart && r.matches(a, p, body) {
			return r
		}
	}
	return nil
}

// ofPart reports whether a row has a condition about a part of the body.
func (row *LimitAnswer) ofPart() bool {
	return len(row.Type)+len(row.Code)+len(row.Text)+len(row.Begins)+len(row.Documentation) > 0
}

// mayReport is a cheap check that returns false for most responses that report no limit.
func (a *UpstreamAnswer) mayReport() bool {
	switch {
	case a.Status >= http.StatusBadRequest:
		return true
	case a.GraphQL:
		return bytes.Contains(a.Body, []byte(`"errors"`)) || bytes.Contains(a.Body, []byte(`"message"`))
	}
	return isErrorObject(a.Body)
}

// isErrorObject reports whether a body with a successful status is JSON that has only the members of an error.
func isErrorObject(body []byte) bool {
	if !bytes.Contains(body, []byte(`"message"`)) {
		return false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return false
	}
	for name := range members {
		if !slices.Contains(errorMembers, name) {
			return false
		}
	}
	return members["message"] != nil
}

// errorMembers are the members of an error.
var errorMembers = []string{"message", "documentation_url", "errors", "status"}

// BeginsAsError reports whether a text is the beginning of a JSON object whose first member is one of an error, as far as the
// text shows it. A body may arrive in pieces of any length.
func BeginsAsError(text []byte) bool {
	rest, isObject := bytes.CutPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{"))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return len(rest) == 0 || isObject && slices.ContainsFunc(errorMembers, func(name string) bool {
		first := strconv.Quote(name)
		n := min(len(first), len(rest))
		return first[:n] == string(rest[:n])
	})
}

// quotation matches a quotation mark. An apostrophe follows a letter.
var quotation = regexp.MustCompile("[\"`“]|(^|\\PL)'")

// matches reports whether all conditions of a row hold. body is the form of the whole body.
func (row *LimitAnswer) matches(a *UpstreamAnswer, p *part, body string) bool {
	contained := func(text string) bool {
		before, _, found := strings.Cut(p.message, text)
		return found && (p.unparsed || !quotation.MatchString(before))
	}
	begins := func(text string) bool { return strings.HasPrefix(p.message, text) }
	ends := func(text string) bool { return strings.HasSuffix(p.documentation, text) }
	switch {
	case len(row.Status) > 0 && !slices.Contains(row.Status, a.Status), len(row.Status) == 0 && a.Status == http.StatusUnauthorized,
		row.API == apiREST && a.GraphQL, row.API == apiGraphQL && !a.GraphQL,
		len(row.Type) > 0 && !slices.Contains(row.Type, p.kind),
		len(row.Code) > 0 && !slices.Contains(row.Code, p.code),
		len(row.Text) > 0 && !slices.ContainsFunc(row.Text, contained),
		len(row.Begins) > 0 && !slices.ContainsFunc(row.Begins, begins),
		len(row.Documentation) > 0 && !slices.ContainsFunc(row.Documentation, ends),
		row.Body != "" && row.Body != body,
		row.Repeated > 0 && a.Unproven,
		row.Exhausted && a.Header.Get("X-Ratelimit-Remaining") != "0",
		row.RetryAfter && a.Header.Get("Retry-After") == "":
		return false
	}
	return true
}

// parts returns the message of a response, and each error of its list. A body that is no JSON object is one part. body is
// the form of the body.
func (a *UpstreamAnswer) parts() (parts []part, body string) {
	text := bytes.TrimSpace(a.Body)
	switch {
	case len(text) == 0:
		body = bodyEmpty
	case text[0] == '<':
		body = bodyHTML
	}
	var answer struct {
		message, documentation string
		errors                 []json.RawMessage
	}
	parsed := eachMember(text, func(name string, value []byte) {
		switch name { // a value of another type leaves the field empty
		case "message":
			_ = json.Unmarshal(value, &answer.message)
		case "documentation_url":
			_ = json.Unmarshal(value, &answer.documentation)
		case "errors", "error", "error_description", "title", "detail": // also of a gateway before the API (RFC 6749, RFC 9457)
			answer.errors = append(answer.errors, elements(value)...)
		}
	})
	if !parsed {
		answer.message = string(text)
	}
	add := func(p part) {
		p.message, p.documentation = strings.ToLower(strings.Join(strings.Fields(p.original), " ")), answer.documentation
		parts = append(parts, p)
	}
	add(part{original: answer.message, unparsed: !parsed})
	for _, e := range answer.errors {
		var message string
		if json.Unmarshal(e, &message) == nil {
			add(part{original: message})
			continue
		}
		var fields struct {
			Type, Code, Message, Title, Detail any
			Extensions                         struct{ Type, Code any }
		}
		if json.Unmarshal(e, &fields) != nil {
			continue
		}
		first := func(values ...any) string {
			for _, v := range values {
				if s, _ := v.(string); s != "" {
					return s
				}
			}
			return ""
		}
		kind, code := first(fields.Type, fields.Extensions.Type), first(fields.Code, fields.Extensions.Code)
		for _, text := range []any{first(fields.Message, fields.Title), fields.Detail} {
			add(part{original: first(text), kind: kind, code: code})
		}
	}
	return parts, body
}

// eachMember calls member for the members of a JSON object. If the object is cut off, the last value is the rest of the
// text. eachMember returns false if the text is no object, or is cut off in the first member.
func eachMember(text []byte, member func(name string, value []byte)) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for complete := 0; d.More(); complete++ {
		token, err := d.Token()
		if err != nil {
			return complete > 0
		}
		name, _ := token.(string)
		var value json.RawMessage
		start := d.InputOffset()
		if d.Decode(&value) != nil {
			member(name, bytes.TrimLeft(text[start:], ": \t\r\n"))
			return complete > 0 || name == "errors"
		}
		member(name, value)
	}
	return true
}

// elements returns the complete elements of a JSON list, which may be cut off, or another value as one element.
func elements(list []byte) (all []json.RawMessage) {
	d := json.NewDecoder(bytes.NewReader(list))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return []json.RawMessage{list}
	}
	for d.More() {
		var element json.RawMessage
		if d.Decode(&element) != nil {
			return all
		}
		all = append(all, element)
	}
	return all
}
