package testservers

import (
	"context"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Call is a documented call of the reference service.
type Call struct {
	Status               int
	Field                string // the field that the body of a refusal names
	As                   string // a token of the seed, user:password, or empty
	Method, Target, Body string // with the names in braces that Request replaces
	Name, Value          string // of a header field
}

//go:embed calls.txt
var documentedCalls string

var documentedCall = regexp.MustCompile(`^  (\d+)(?::(\S+))? (?:-|(\S+)) ([A-Z]+) (\S+)(?: ([A-Z][\w-]+): (\S+))?(?: (\{.*))?$`)

// Calls returns the documented calls of each operation. Some calls change the state for later calls.
func Calls() map[string][]Call {
	calls, operation := map[string][]Call{}, ""
	for line := range strings.SplitSeq(strings.TrimSpace(documentedCalls), "\n") {
		switch m := documentedCall.FindStringSubmatch(line); {
		case m != nil:
			status, _ := strconv.Atoi(m[1]) // digits
			calls[operation] = append(calls[operation], Call{status, m[2], m[3], m[4], m[5], m[8], m[6], m[7]})
		case strings.HasPrefix(line, " "):
			panic(fmt.Sprintf("calls.txt: invalid line %q", line))
		case !strings.HasPrefix(line, "#"):
			operation = line
		}
	}
	return calls
}

// Request returns the request of a call to the service at a base URL.
func (c Call) Request(base string, names *strings.Replacer) (*http.Request, error) {
	r, err := http.NewRequestWithContext(context.Background(), c.Method, base+names.Replace(c.Target), strings.NewReader(names.Replace(c.Body)))
	if err != nil {
		return nil, err
	}
	switch {
	case strings.Contains(c.As, ":"):
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.As)))
	case c.As != "":
		r.Header.Set("Authorization", "token "+c.As)
	}
	if c.Name != "" {
		r.Header.Set(c.Name, c.Value)
	}
	return r, nil
}

// CallNames returns the names in braces of the documented calls. send sends a call, which can create an object, to the
// service, and returns the body of the response.
func CallNames(send func(c Call, names *strings.Replacer) (body string)) *strings.Replacer {
	hash := regexp.MustCompile(`[0-9a-f]{40}`)
	long := strings.Repeat("x", 257)
	found := send(Call{Method: http.MethodGet, Target: "/search/commits?q=repo:acme/widgets&per_page=1"}, strings.NewReplacer())
	head := hash.FindString(found)
	tag := send(Call{
		As: "tok-member", Method: http.MethodPost, Target: "/repos/acme/widgets/git/tags",
		Body: `{"tag":"v9","message":"m","object":"{head}","type":"commit","tagger":{"name":"a","email":"b","date":"2000-01-01T00:00:00Z"}}`,
	}, strings.NewReplacer("{head}", head))
	_, sha, _ := strings.Cut(tag, `"sha":"`)
	return strings.NewReplacer("{long}", long, "{head}", head, "{tag_sha}", hash.FindString(sha))
}
