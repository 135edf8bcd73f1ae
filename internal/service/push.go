package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"
)

const (
	// zeroSHA is the SHA of a ref that does not exist.
	zeroSHA = "0000000000000000000000000000000000000000"
	// maxCommits is the maximum number of commits in one push. A push of this size has a payload that exceeds maxPayload.
	maxCommits = 60_000
)

// pushResult describes the effect of a push on its ref (Document B section 6.3).
type pushResult struct {
	before, after            string
	baseRef                  any       // the source of a new ref; nil for a push with commits
	commits                  []*commit // oldest first
	head                     *commit   // the ref's new target; nil for a deleted ref
	created, deleted, forced bool
}

// mainRef returns the full ref of the default branch.
func (r *repository) mainRef() string { return "refs/heads/" + r.defaultBranch }

// push applies a push to the state. The state holds only the default branch. A push to the default branch changes its
// head and discards the statistics of the old head (Document A section 3). A push to another ref changes only the time
// of the last push.
func (s *Service) push(e *event, body eventBody) error {
	r := e.repository
	n, err := r.checkPush(e.ref, body)
	if err != nil {
		return err
	}
	g, ref, head := r.git, strings.TrimPrefix(e.ref, "refs/"), r.head()
	p := &pushResult{before: cmp.Or(head, zeroSHA), after: head, created: body.Created || head == "", deleted: body.Deleted, forced: body.Forced}
	e.push, r.pushed = p, e.at
	if p.forced { // the ref's old head is removed
		p.after = ""
		if parents := g.commits[head].parents; len(parents) > 0 {
			p.after = parents[0]
		}
	}
	from := g.refs[ref]
	p.commits, p.after = s.newCommits(e, n, p.after)
	p.head, g.refs[ref], g.known[ref] = g.commits[p.after], p.after, true
	maps.DeleteFunc(s.stats, func(k statisticsKey, _ any) bool { return k.repository == r.id && k.head != r.head() })
	switch {
	case p.deleted:
		delete(g.refs, ref)
		p.after, p.head = zeroSHA, nil
	case p.created && n == 0:
		p.baseRef = r.mainRef()
	}
	if p.created {
		p.before = zeroSHA
	}
	s.touchRef(e.req, ref, from, r.git.refs[ref])
	return nil
}

// checkPush returns the number of commits in a push, or an error for an invalid push.
func (r *repository) checkPush(ref string, body eventBody) (int, error) {
	toMain, empty, tag := ref == r.mainRef(), r.head() == "", strings.HasPrefix(ref, "refs/tags/")
	n := 1
	if tag || body.Deleted {
		n = 0
	}
	if body.Commits != nil {
		n = *body.Commits
	}
	left := len(r.history()) + n
	if body.Forced {
		left--
	}
	for _, check := range []struct {
		failed  bool
		message string
	}{
		{n < 0 || n > maxCommits, fmt.Sprintf("commits: %d: must be 0 to %d", n, maxCommits)},
		{n > 0 && tag, fmt.Sprintf("commits: %d: must be 0 for a tag", n)},
		{n > 0 && body.Deleted, fmt.Sprintf("commits: %d: must be 0 for a deleted ref", n)},
		{n == 0 && !body.Created && !body.Deleted && !body.Forced, "commits: 0: must be 1 or more unless created, deleted or forced is set"},
		{body.Created && body.Deleted, "deleted: cannot be combined with created"},
		{body.Forced && (body.Created || body.Deleted), "forced: cannot be combined with created or deleted"},
		{toMain && body.Deleted, fmt.Sprintf("deleted: %s is the default branch and cannot be deleted", ref)},
		{toMain && body.Created && !empty, fmt.Sprintf("created: %s already exists", ref)},
		{!toMain && empty, fmt.Sprintf("ref: %q: %s is empty; push to %s first", ref, r.fullName(), r.mainRef())},
		{body.Forced && empty, fmt.Sprintf("forced: %s is empty", r.fullName())},
		{left < 1, fmt.Sprintf("commits: 0: %s would have no commits", ref)},
	} {
		if check.failed {
			return 0, errors.New(check.message)
		}
	}
	return n, nil
}

// newCommits adds n new commits by the sender, at the time of the event, and returns them and the last SHA.
func (s *Service) newCommits(e *event, n int, head string) ([]*commit, string) {
	verbs, nouns := []string{"fix", "add", "remove", "polish"}, []string{"gear", "lever", "spring"}
	g, made := e.repository.git, make([]*commit, n)
	tree := g.treeOf(nil)
	if parent := g.commits[head]; parent != nil {
		tree = parent.tree
	}
	for i := range made {
		c := commit{
			tree: tree, sha: hashOf(uint64(e.repository.id), uint64(e.serial), uint64(i), s.config.Seed), author: e.sender, at: e.at,
			message:   verbs[i%len(verbs)] + " the " + nouns[i%len(nouns)],
			additions: 1 + i%40, deletions: i % 20,
		}
		if head != "" {
			c.parents = []string{head}
		}
		head = g.add(c)
		made[i] = g.commits[head]
	}
	return made, head
}

// commitObject returns the record of a pushed commit. The documents do not define the members of this record.
func commitObject(e *event, c *commit) object {
	by := object{{"name", c.author.name}, {"email", c.author.email}, {"username", c.author.login}}
	changed := []string{}
	if files := e.repository.files(); len(files) > 0 {
		changed = append(changed, files[0].path)
	}
	return object{
		{"id", c.sha}, {"tree_id", c.tree}, {"distinct", true}, {"message", c.message}, {"timestamp", timestamp(c.at)},
		{"url", e.htmlURL() + "/commit/" + c.sha}, {"author", by}, {"committer", by},
		{"added", []string{}}, {"removed", []string{}}, {"modified", changed},
	}
}
