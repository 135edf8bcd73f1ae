package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// noObject is the name of no Git object: what a ref was before it was created.
	noObject = "0000000000000000000000000000000000000000"
	// maxCommits is how many one push may bring: enough for a payload that is too
	// large to be delivered.
	maxCommits = 60_000
)

// pushed is what a push has done to its ref (Document B section 6.3).
type pushed struct {
	before, after            string
	baseRef                  any      // the ref that a created one was made from; nil where it brought commits
	commits                  []commit // oldest first
	head                     *commit  // what the ref points at; nil where it is deleted
	created, deleted, forced bool
}

// mainRef is the full ref of the default branch.
func (r *repository) mainRef() string { return "refs/heads/" + r.defaultBranch }

// push pushes. Of refs the state knows the default branch only: a push to it makes
// a new head, so that what was computed from the old one is computed anew
// (Document A section 3). Any other branch or tag is where the cause says.
func (s *Service) push(h *happening, c cause) error {
	r := h.repository
	n, err := r.mayPush(h.ref, c)
	if err != nil {
		return err
	}
	head := r.head()
	p := &pushed{before: cmp.Or(head, noObject), commits: s.newCommits(h, n), created: c.Created || head == "", deleted: c.Deleted, forced: c.Forced}
	h.push, r.pushed = p, h.at
	history := r.commits
	if p.forced { // what the ref pointed at is gone
		history = history[:len(history)-1]
	}
	history = slices.Concat(history, p.commits)
	if h.ref == r.mainRef() {
		r.commits = history
		maps.DeleteFunc(s.stats, func(k statisticsKey, _ *statisticsJob) bool { return k.repository == r.id && k.head != r.head() })
	}
	p.head = &history[len(history)-1]
	p.after = p.head.sha
	switch {
	case p.deleted:
		p.after, p.head = noObject, nil
	case p.created && n == 0:
		p.baseRef = r.mainRef()
	}
	if p.created {
		p.before = noObject
	}
	return nil
}

// mayPush is how many commits a push brings, or why it is none.
func (r *repository) mayPush(ref string, c cause) (int, error) {
	toMain, empty, tag := ref == r.mainRef(), r.head() == "", strings.HasPrefix(ref, "refs/tags/")
	n := 1
	if tag || c.Deleted {
		n = 0
	}
	if c.Commits != nil {
		n = *c.Commits
	}
	left := len(r.commits) + n
	if c.Forced {
		left--
	}
	for _, check := range []struct {
		wrong bool
		says  string
	}{
		{n < 0 || n > maxCommits, fmt.Sprintf("commits: %d: must be 0 to %d", n, maxCommits)},
		{n > 0 && tag, fmt.Sprintf("commits: %d: a tag brings none", n)},
		{n > 0 && c.Deleted, fmt.Sprintf("commits: %d: a ref that is deleted brings none", n)},
		{n == 0 && !c.Created && !c.Deleted && !c.Forced, "commits: 0: the ref is neither created, deleted nor forced"},
		{c.Created && c.Deleted, "deleted: the ref is created"},
		{c.Forced && (c.Created || c.Deleted), "forced: the ref is created or deleted"},
		{toMain && c.Deleted, fmt.Sprintf("deleted: %s is the default branch, which stays", ref)},
		{toMain && c.Created && !empty, fmt.Sprintf("created: %s exists already", ref)},
		{!toMain && empty, fmt.Sprintf("ref: %q: %s is empty: %s comes first", ref, r.fullName(), r.mainRef())},
		{c.Forced && empty, fmt.Sprintf("forced: %s is empty", r.fullName())},
		{left < 1, fmt.Sprintf("commits: 0: %s is left without any", ref)},
	} {
		if check.wrong {
			return 0, errors.New(check.says)
		}
	}
	return n, nil
}

// newCommits are n commits by the sender, of now.
func (s *Service) newCommits(h *happening, n int) []commit {
	verbs, nouns := []string{"fix", "add", "remove", "polish"}, []string{"gear", "lever", "spring"}
	made := make([]commit, n)
	for i := range made {
		made[i] = commit{
			sha: hashOf(uint64(h.repository.id), uint64(h.serial), uint64(i), s.config.Seed), author: h.sender, at: h.at,
			message:   verbs[i%len(verbs)] + " the " + nouns[i%len(nouns)],
			additions: 1 + i%40, deletions: i % 20,
		}
	}
	return made
}

// commitObject is a commit of a push: nested members are not shown in the
// documents.
func commitObject(h *happening, c commit) object {
	by := object{{"name", c.author.name}, {"email", c.author.email}, {"username", c.author.login}}
	changed := []string{}
	if len(h.repository.files) > 0 {
		changed = append(changed, h.repository.files[0].path)
	}
	return object{
		{"id", c.sha}, {"tree_id", c.sha}, {"distinct", true}, {"message", c.message}, {"timestamp", timestamp(c.at)},
		{"url", h.html() + "/commit/" + c.sha}, {"author", by}, {"committer", by},
		{"added", []string{}}, {"removed", []string{}}, {"modified", changed},
	}
}
