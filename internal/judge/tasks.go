package judge

import (
	"fmt"
	"strings"
)

// Workers is the number of requests of one kind that a program has in progress at the same time.
const Workers = 4

// Task is one request of the work.
type Task struct {
	// Kind is read, search or create.
	Kind   string
	Method string
	Path   string
	Body   string // JSON, or empty
}

// String returns the line of the task in the input of a command.
func (t Task) String() string {
	return strings.TrimSuffix(strings.Join([]string{t.Kind, t.Method, t.Path, t.Body}, " "), " ")
}

// Tasks returns the work of a program, which is more than the limits allow in a run. The targets of all programs differ,
// so that no cache can answer a task. Reads use three operations, so that their points do not exceed a limit before
// their number does.
func Tasks(program int) []Task {
	limits := Limits()
	var all []Task
	add := func(n int, task func(number int) Task) {
		n *= 2 * windows
		for i := range n {
			all = append(all, task(program*n+i+1))
		}
	}
	reads := []string{"/repos/acme/widgets/subscribers", "/orgs/acme/members", "/users/acme-owner/subscriptions"}
	add(limits.Primary.User, func(number int) Task {
		return Task{Kind: "read", Method: "GET", Path: fmt.Sprintf("%s?per_page=1&page=%d", reads[number%len(reads)], number)}
	})
	add(limits.Search.Authenticated, func(number int) Task {
		return Task{Kind: "search", Method: "GET", Path: fmt.Sprintf("/search/commits?q=gear+%d", number)}
	})
	add(limits.Content[0].Max, func(number int) Task {
		return Task{"create", "POST", "/repos/acme/widgets/rulesets", fmt.Sprintf(`{"name":"rule-%d","enforcement":"disabled"}`, number)}
	})
	return all
}
