package service

import (
	"fmt"
	"time"
)

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
