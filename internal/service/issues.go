package service

import (
	"fmt"
	"slices"
	"time"
)

// issue is an issue, or the part of a pull request that it shares with issues.
type issue struct {
	number  int
	title   string
	body    string
	author  *account
	labels  []string
	open    bool
	reason  string // COMPLETED or NOT_PLANNED for a closed issue, otherwise empty
	created time.Time
	updated time.Time
	closed  time.Time // zero for an open issue

	comments []comment // by ascending ID
}

type comment struct {
	id      int
	author  *account
	body    string
	created time.Time
}

// pullRequest is a pull request to the default branch of its repository. Its branch has one commit.
type pullRequest struct {
	issue
	branch    string
	sha       string // of the commit
	draft     bool
	merged    bool
	requested *account // the user whose review is requested, or nil
	review    *review  // nil without a review
	checks    []check
}

type review struct {
	author   *account
	approved bool
	at       time.Time
}

// check is a check run or a commit status.
type check struct {
	name     string
	isStatus bool
	result   string // SUCCESS, FAILURE, or empty while the check runs
	started  time.Time
}

// nextNumber returns the number of the next issue.
func (r *repository) nextNumber() int { return len(r.issues) + len(r.pulls) + 1 }

// issueNumbered returns an issue, or nil.
func (r *repository) issueNumbered(number int) *issue {
	if i := slices.IndexFunc(r.issues, func(i *issue) bool { return i.number == number }); i >= 0 {
		return r.issues[i]
	}
	return nil
}

// pullNumbered returns a pull request, or nil.
func (r *repository) pullNumbered(number int) *pullRequest {
	if i := slices.IndexFunc(r.pulls, func(p *pullRequest) bool { return p.number == number }); i >= 0 {
		return r.pulls[i]
	}
	return nil
}

// comment adds a comment to an issue.
func (w *world) comment(i *issue, author *account, body string, at time.Time) comment {
	w.lastComment++
	c := comment{w.lastComment, author, body, at}
	i.comments, i.updated = append(i.comments, c), at
	return c
}

// close closes an issue.
func (i *issue) close(reason string, at time.Time) {
	i.open, i.reason, i.closed, i.updated = false, reason, at, at
}

// pulls adds n pull requests, the newest last. They differ in author, state, review and checks.
func (s *seeder) pulls(w *world, r *repository, n int) {
	authors := []*account{w.accounts["acme-owner"], w.accounts["acme-member"], w.accounts["builder-02"], w.accounts["outsider"]}
	for i := range n {
		created := s.now.Add(-time.Duration(n-i) * 6 * time.Hour)
		p := &pullRequest{
			issue: issue{
				number: r.nextNumber(), title: fmt.Sprintf("Replace part %d", i+1), body: "The old part no longer fits.",
				author: authors[i%len(authors)], labels: []string{"enhancement"}, open: true, created: created, updated: created,
			},
			branch: fmt.Sprintf("part-%d", i+1), sha: hashOf(uint64(r.id), uint64(i)), draft: i%5 == 4,
		}
		result := []string{"SUCCESS", "SUCCESS", "FAILURE", ""}[i%4]
		p.checks = []check{{"build", false, "SUCCESS", created}, {"test", false, result, created}, {"coverage", true, "SUCCESS", created}}
		if i%3 > 0 {
			p.review = &review{w.accounts["builder-03"], i%3 == 1, created.Add(time.Hour)}
		} else if p.author != authors[0] {
			p.requested = authors[0]
		}
		if i%4 == 1 {
			w.comment(&p.issue, w.accounts["builder-03"], "Does it still fit?", created.Add(time.Hour))
		}
		if i%6 == 2 || i%6 == 5 {
			p.merged = i%6 == 5
			p.close("", created.Add(2*time.Hour))
		}
		r.pulls = append(r.pulls, p)
	}
}
