package service

import (
	"slices"
	"strconv"
	"strings"
)

// changes records which writes changed which topics. A topic is the canonical path of a read, sometimes followed by "
// ref=" and the name of a branch. Writes are numbered from 1; the number of a write is the revision of all that it
// changed.
type changes struct {
	last  int64
	exact map[string][]int64
	below map[string][]int64 // by the path above the changed paths
	globs map[string][]int64 // by a pattern in which * is one segment
}

func newChanges() *changes {
	return &changes{exact: map[string][]int64{}, below: map[string][]int64{}, globs: map[string][]int64{}}
}

// touch records that write n changed a topic. A topic that ends with "/**" is the path before it with all paths below.
func (c *changes) touch(n int64, topic string) {
	in := c.exact
	path, isBelow := strings.CutSuffix(topic, "/**")
	if isBelow {
		in, topic = c.below, path
	} else if strings.Contains(topic, "*") {
		in = c.globs
	}
	if list := in[topic]; len(list) == 0 || list[len(list)-1] != n {
		in[topic] = append(list, n)
	}
}

// write numbers a write that changed topics.
func (c *changes) write(topics []string) {
	c.last++
	for _, topic := range topics {
		c.touch(c.last, topic)
	}
}

// each calls yield with the writes that changed a topic, as one ascending list for each way to touch it.
func (c *changes) each(topic string, yield func([]int64)) {
	yield(c.exact[topic])
	path, _, _ := strings.Cut(topic, " ")
	for above := path; above != ""; above = parentOf(above) {
		yield(c.below[above])
	}
	for pattern, list := range c.globs {
		if covers(pattern, path) {
			yield(list)
		}
	}
}

// covers reports whether a pattern, in which * is one segment and a last ** all further segments, covers a path.
func covers(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if want[len(want)-1] == "**" {
		want = want[:len(want)-1]
		have = have[:min(len(have), len(want))]
	}
	return slices.EqualFunc(want, have, func(w, h string) bool { return w == "*" || w == h })
}

// revision returns the number of the last write that changed one of the topics, or 0.
func (c *changes) revision(topics []string) int64 {
	var last int64
	for _, topic := range topics {
		c.each(topic, func(list []int64) {
			if len(list) > 0 {
				last = max(last, list[len(list)-1])
			}
		})
	}
	return last
}

// since returns the writes after a revision that changed one of the topics.
func (c *changes) since(topics []string, revision int64) []int64 {
	var all []int64
	for _, topic := range topics {
		c.each(topic, func(list []int64) {
			at, found := slices.BinarySearch(list, revision)
			if found {
				at++
			}
			all = append(all, list[at:]...)
		})
	}
	return all
}

// A body carries its revision as trailing white space: a line feed, and the binary digits as spaces and tabs. JSON
// ignores it. Lists of strings, empty lists and plain text can carry it, too.

// mark appends a revision to a body.
func mark(body []byte, revision int64) []byte {
	body = append(slices.Clip(body), '\n')
	for _, digit := range strconv.FormatInt(revision, 2) {
		body = append(body, map[rune]byte{'0': ' ', '1': '\t'}[digit])
	}
	return body
}
