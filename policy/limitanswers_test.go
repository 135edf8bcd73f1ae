package policy

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestEveryLimitAnswerCanDecide checks that no earlier row hides a row, and that every row names its source.
func TestEveryLimitAnswerCanDecide(t *testing.T) {
	for _, row := range limitAnswers {
		failIf(t, row.Source == "", "%s has no source", row.Name)
		statuses := row.Status
		if len(statuses) == 0 {
			statuses = []int{200, 202, 400, 404, 422, 500, 503}
		}
		for _, status := range statuses {
			got, _ := RecognizeLimit(exampleOf(row, status))
			failIf(t, got == nil || got.Name != row.Name, "an example of %s with status %d is decided by %+v", row.Name, status, got)
		}
	}
}

// exampleOf returns a response with the conditions of a row and nothing else.
func exampleOf(row LimitAnswer, status int) UpstreamAnswer {
	first := func(list []string) string { return append(list, "")[0] }
	a := UpstreamAnswer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, GraphQL: row.API == "graphql"}
	if row.Exhausted {
		a.Header.Set("X-Ratelimit-Remaining", "0")
	}
	if row.RetryAfter {
		a.Header.Set("Retry-After", "1")
	}
	message := first(row.Begins) + first(row.Text)
	switch {
	case row.Body == "empty":
	case row.Body == "html":
		a.Body = []byte("<html></html>")
	case row.API == "rest" || slices.Equal(row.Type, nil) && slices.Equal(row.Code, nil):
		a.Body = []byte(`{"message":"` + message + `","documentation_url":"https://docs/#` + first(row.Documentation) + `"}`)
	default:
		a.Body = []byte(`{"data":null,"errors":[{"type":"` + first(row.Type) + `","code":"` + first(row.Code) + `","message":"` + message + `"}]}`)
	}
	return a
}

func TestRecognizeLimitReadsABodyThatIsCutOff(t *testing.T) {
	filler := strings.Repeat(`{"type":"NOT_FOUND","message":"x"},`, 10)
	for body, want := range map[string]string{
		`{"errors":[{"type":"RATE_LIMITED","message":"a"}],"data":{"a":`:              "graphql-primary-type",
		`{"errors":[` + filler + `{"type":"RATE_LIMITED","message":"a"},{"type":"NOT`: "graphql-primary-type",
		`{"data":{"a":1},"errors":[{"type":"RATE_LIMITED"},`:                          "graphql-primary-type",
		`{"data":{"a":1},"errors":[{"type":"RATE_LIM`:                                 "",
		`{"data":{"a":"\"errors\":[{\"type\":\"RATE_LIMITED\"}]`:                      "",
	} {
		row, _ := RecognizeLimit(UpstreamAnswer{Status: 200, GraphQL: true, Body: []byte(body)})
		if row == nil {
			row = &LimitAnswer{}
		}
		wantEqual(t, body, want, row.Name)
	}
}
