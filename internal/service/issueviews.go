package service

import (
	"fmt"
	"strings"
	"time"
)

// issue is an issue, or the part of a pull request that it shares with issues. It is made from the stored fields, which
// a change must use.
type issue struct {
	fields  doc
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
}

// pullRequest is a pull request to the default branch of its repository. Its branch has one commit.
type pullRequest struct {
	issue
	branch    string
	sha       string // of the commit
	draft     bool
	merged    bool
	requested string  // the user whose review is requested, or ""
	review    *review // nil without a review
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

// timeOf returns the time of a stamp, or the zero time.
func timeOf(value any) time.Time {
	text, _ := value.(string)
	t, _ := time.Parse(time.RFC3339, text) // other values are no time
	return t
}

func textOf(value any) string {
	text, _ := value.(string)
	return text
}

// authorOf returns the user of a stored object.
func (w *world) authorOf(fields doc) *account {
	if a := w.accounts[textOf(fields["user"].(doc)["login"])]; a != nil {
		return a
	}
	return w.accounts["acme"] // an installation has no user
}

func (w *world) issueOf(fields doc) issue {
	i := issue{
		fields: fields, number: fields["number"].(int), title: textOf(fields["title"]), body: textOf(fields["body"]), author: w.authorOf(fields),
		labels: fields["labels"].([]string), open: fields["state"] == "open", created: timeOf(fields["created_at"]), updated: timeOf(fields["updated_at"]),
		closed: timeOf(fields["closed_at"]),
	}
	if !i.open {
		i.reason = strings.ToUpper(textOf(fields["state_reason"]))
	}
	return i
}

func (w *world) pullOf(r *repository, fields, pull doc) *pullRequest {
	branch := str(pull["head"])
	p := &pullRequest{issue: w.issueOf(fields), branch: branch, sha: str(pull["sha"]), draft: pull["draft"] == true, merged: pull["merged"] == true}
	if sha := r.git.refs["heads/"+branch]; sha != "" {
		p.sha = sha
	}
	if logins := pull["requested_reviewers"].([]string); len(logins) > 0 {
		p.requested = logins[0]
	}
	return p
}

// complete adds the review and the checks of a pull request.
func (w *world) complete(r *repository, p *pullRequest) {
	for _, v := range w.all(r.path() + "/pulls/" + itoa(p.number) + "/reviews") {
		if state := str(v["state"]); state == "APPROVED" || state == "CHANGES_REQUESTED" {
			p.review = &review{w.authorOf(v), state == "APPROVED", timeOf(v["created_at"])}
		}
	}
	for _, run := range w.where(r, "check-runs", "head_sha", p.sha) {
		p.checks = append(p.checks, check{str(run["name"]), false, strings.ToUpper(textOf(run["conclusion"])), timeOf(run["created_at"])})
	}
	for _, status := range w.where(r, "statuses", "sha", p.sha) {
		p.checks = append(p.checks, check{str(status["context"]), true, strings.ToUpper(str(status["state"])), timeOf(status["created_at"])})
	}
}

// numbered returns the issue or the pull request with a number, or nil twice.
func (w *world) numbered(r *repository, number int) (*issue, *pullRequest) {
	fields := w.find(r.path() + "/issues/" + itoa(number))
	if fields == nil {
		return nil, nil
	}
	if pull := w.find(r.path() + "/pulls/" + itoa(number)); pull != nil {
		return nil, w.pullOf(r, fields, pull)
	}
	i := w.issueOf(fields)
	return &i, nil
}

// issuesOf returns the issues of a repository by number, without pull requests.
func (w *world) issuesOf(r *repository) (list []*issue) {
	for _, fields := range w.all(r.path() + "/issues") {
		if w.find(r.path()+"/pulls/"+str(fields["number"])) == nil {
			i := w.issueOf(fields)
			list = append(list, &i)
		}
	}
	return list
}

// pullsOf returns the pull requests of a repository by number.
func (w *world) pullsOf(r *repository) (list []*pullRequest) {
	for _, pull := range w.all(r.path() + "/pulls") {
		list = append(list, w.pullOf(r, w.find(r.path()+"/issues/"+str(pull["number"])), pull))
	}
	return list
}

// seedIssues adds issues.
func (s *seeder) seedIssues(w *world, r *repository) {
	for i := range 24 {
		created := s.now.AddDate(0, 0, -i)
		title := fmt.Sprintf("The %s %s", pickText(s, "gear", "lever", "spring"), pickText(s, "squeaks", "is loose", "does not turn"))
		body := doc{"title": title, "body": "Seen with the newest widget.", "labels": []any{pickText(s, "bug", "enhancement")}, "milestone": float64(1 + i%2)}
		if i%3 == 0 {
			body["state"] = "closed"
		}
		w.addIssue(r, body, r.history()[i].author.login, created)
	}
}

// seedPulls adds n pull requests, the newest last. They differ in author, state, review and checks.
func (s *seeder) seedPulls(w *world, r *repository, n int) {
	root, authors, g := r.path(), []string{"acme-owner", "acme-member", "builder-02", "outsider"}, r.git
	for i := range n {
		created, author, branch := s.now.Add(-time.Duration(n-i)*6*time.Hour), authors[i%len(authors)], fmt.Sprintf("part-%d", i+1)
		c := commit{sha: hashOf(uint64(r.id), uint64(i)), message: "Replace a part", author: w.accounts[author], at: created}
		g.refs["heads/"+branch], g.known["heads/"+branch] = g.change(mainBranch, c, map[string]string{"part-" + itoa(i+1) + ".txt": branch}), true
		body := doc{
			"title": fmt.Sprintf("Replace part %d", i+1), "body": "The old part no longer fits.", "labels": []any{"enhancement"},
			"head": branch, "base": mainBranch, "draft": i%5 == 4,
		}
		if i%3 == 0 && author != authors[0] {
			body["requested_reviewers"] = []any{authors[0]}
		}
		pull := w.addPull(r, body, author, created)
		number := str(pull["number"])
		add := func(collection, view string, fields doc, at time.Time) {
			w.add(r, root+"/"+collection, inRepo+view, fields, "builder-03", at)
		}
		test := doc{"name": "test", "head_sha": c.sha, "status": "completed", "conclusion": []any{"success", "success", "failure", nil}[i%4]}
		if test["conclusion"] == nil {
			test["status"] = "in_progress"
		}
		add("check-runs", "check-runs", doc{"name": "build", "head_sha": c.sha, "status": "completed", "conclusion": "success"}, created)
		add("check-runs", "check-runs", test, created)
		add("statuses", "statuses", doc{"sha": c.sha, "context": "coverage", "state": "success"}, created)
		if i%3 > 0 {
			state := []string{"APPROVED", "CHANGES_REQUESTED"}[i%3-1]
			add("pulls/"+number+"/reviews", "pulls/{}/reviews", doc{"state": state, "body": ""}, created.Add(time.Hour))
		}
		issue := w.find(root + "/issues/" + number)
		if i%4 == 1 {
			add("issues/comments", "issues/comments", doc{"issue": number, "body": "Does it still fit?"}, created.Add(time.Hour))
			issue["updated_at"] = stamp(created.Add(time.Hour))
		}
		if i%6 == 2 || i%6 == 5 {
			changeIssue(issue, doc{"state": "closed"}, created.Add(2*time.Hour))
		}
		if i%6 == 5 {
			pull["merged"], pull["merged_at"] = true, issue["closed_at"]
		}
	}
}
