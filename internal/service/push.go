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
	zeroSHA = "0000000000000000000000000000000000000000"
	// maxCommits is how many one push may bring: enough for a payload that is too
	// large to be delivered.
	maxCommits = 60_000
)

// pushed is what a push has done to its ref (Document B section 6.3).
type pushResult struct {
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
func (s *Service) push(e *event, body eventBody) error {
	r := e.repository
	n, err := r.checkPush(e.ref, body)
	if err != nil {
		return err
	}
	head := r.head()
	p := &pushResult{before: cmp.Or(head, zeroSHA), commits: s.newCommits(e, n), created: body.Created || head == "", deleted: body.Deleted, forced: body.Forced}
	e.push, r.pushed = p, e.at
	history := r.commits
	if p.forced { // what the ref pointed at is gone
		history = history[:len(history)-1]
	}
	history = slices.Concat(history, p.commits)
	if e.ref == r.mainRef() {
		r.commits = history
		maps.DeleteFunc(s.stats, func(k statisticsKey, _ *statisticsJob) bool { return k.repository == r.id && k.head != r.head() })
	}
	p.head = &history[len(history)-1]
	p.after = p.head.sha
	switch {
	case p.deleted:
		p.after, p.head = zeroSHA, nil
	case p.created && n == 0:
		p.baseRef = r.mainRef()
	}
	if p.created {
		p.before = zeroSHA
	}
	return nil
}

// mayPush is how many commits a push brings, or why it is none.
func (r *repository) checkPush(ref string, body eventBody) (int, error) {
	toMain, empty, tag := ref == r.mainRef(), r.head() == "", strings.HasPrefix(ref, "refs/tags/")
	n := 1
	if tag || body.Deleted {
		n = 0
	}
	if body.Commits != nil {
		n = *body.Commits
	}
	left := len(r.commits) + n
	if body.Forced {
		left--
	}
	for _, check := range []struct {
		wrong bool
		says  string
	}{
		{n < 0 || n > maxCommits, fmt.Sprintf("commits: %d: must be 0 to %d", n, maxCommits)},
		{n > 0 && tag, fmt.Sprintf("commits: %d: a tag brings none", n)},
		{n > 0 && body.Deleted, fmt.Sprintf("commits: %d: a ref that is deleted brings none", n)},
		{n == 0 && !body.Created && !body.Deleted && !body.Forced, "commits: 0: the ref is neither created, deleted nor forced"},
		{body.Created && body.Deleted, "deleted: the ref is created"},
		{body.Forced && (body.Created || body.Deleted), "forced: the ref is created or deleted"},
		{toMain && body.Deleted, fmt.Sprintf("deleted: %s is the default branch, which stays", ref)},
		{toMain && body.Created && !empty, fmt.Sprintf("created: %s exists already", ref)},
		{!toMain && empty, fmt.Sprintf("ref: %q: %s is empty: %s comes first", ref, r.fullName(), r.mainRef())},
		{body.Forced && empty, fmt.Sprintf("forced: %s is empty", r.fullName())},
		{left < 1, fmt.Sprintf("commits: 0: %s is left without any", ref)},
	} {
		if check.wrong {
			return 0, errors.New(check.says)
		}
	}
	return n, nil
}

// newCommits are n commits by the sender, of now.
func (s *Service) newCommits(e *event, n int) []commit {
	verbs, nouns := []string{"fix", "add", "remove", "polish"}, []string{"gear", "lever", "spring"}
	made := make([]commit, n)
	for i := range made {
		made[i] = commit{
			sha: hashOf(uint64(e.repository.id), uint64(e.serial), uint64(i), s.config.Seed), author: e.sender, at: e.at,
			message:   verbs[i%len(verbs)] + " the " + nouns[i%len(nouns)],
			additions: 1 + i%40, deletions: i % 20,
		}
	}
	return made
}

// commitObject is a commit of a push: nested members are not shown in the
// documents.
func commitObject(e *event, c commit) object {
	by := object{{"name", c.author.name}, {"email", c.author.email}, {"username", c.author.login}}
	changed := []string{}
	if len(e.repository.files) > 0 {
		changed = append(changed, e.repository.files[0].path)
	}
	return object{
		{"id", c.sha}, {"tree_id", c.sha}, {"distinct", true}, {"message", c.message}, {"timestamp", timestamp(c.at)},
		{"url", e.htmlURL() + "/commit/" + c.sha}, {"author", by}, {"committer", by},
		{"added", []string{}}, {"removed", []string{}}, {"modified", changed},
	}
}
