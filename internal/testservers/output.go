package testservers

import (
	"bytes"
	"context"
	"regexp"
	"sync"
	"testing"
)

// Output collects the output of a process, or the lines of a log. It is safe for concurrent use.
type Output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	found int // bytes of text that Find has passed
}

// Write implements [io.Writer].
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns the output since the last call of Take.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Take returns the output since the previous call.
func (o *Output) Take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.String()
	o.text.Reset()
	o.found = 0
	return text
}

// Find waits until the output has text that matches a pattern. It returns the last group of the match. The next call
// searches the following text.
func (o *Output) Find(t testing.TB, pattern string) (group string) {
	t.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	Eventually(t, "the output contains "+pattern, func(context.Context) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		text := o.text.String()[o.found:]
		m := re.FindStringSubmatchIndex(text)
		if m == nil {
			return false
		}
		o.found += m[1]
		group = text[m[len(m)-2]:m[len(m)-1]]
		return true
	})
	return group
}
