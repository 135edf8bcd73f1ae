package service

import (
	"maps"
	"net/http"
	"slices"
	"time"
)

// largeRepository is how many commits are too many for additions and deletions
// (Document A section 4.5).
const largeRepositoryCommits = 10_000

// statisticsKey names one cached result: it is of one state of the default
// branch, so a push makes a new one (Document A section 3).
type statisticsKey struct {
	repository int
	operation  string
	head       string
}

// computation is a statistics job; show is set when it is done.
type statisticsJob struct {
	render bodyRenderer
}

// view makes the body of an answer from figures that many requests share.
type bodyRenderer func(*request) any

// compute finds the figures.
type computeFunc func(r *repository, now time.Time) bodyRenderer

// always shows figures that are the same for every request.
func fixedBody(figures any) bodyRenderer { return func(*request) any { return figures } }

// statistics answers 202 and starts a job, until the job is done.
func statistics(f computeFunc) handler {
	return func(s *Service, req *request) response {
		r := req.target.repository
		op := req.match.Operation.ID
		switch {
		case len(r.commits) == 0 && slices.Contains(req.match.Operation.Errors, http.StatusNoContent):
			return response{status: http.StatusNoContent}
		case op == "statistics/code-frequency" && len(r.commits) >= largeRepositoryCommits:
			return s.problem(http.StatusUnprocessableEntity, "Repository contains 10,000 or more commits")
		}
		key := statisticsKey{r.id, op, r.head()}
		job := s.stats[key]
		if job == nil && s.running.Err() == nil {
			job = &statisticsJob{}
			s.stats[key] = job
			s.jobs.Go(func() { s.runStatisticsJob(job, f, r) })
		}
		if job == nil || job.render == nil || req.faults.Endless202 {
			return response{status: http.StatusAccepted, body: object{}}
		}
		return response{status: http.StatusOK, body: job.render(req), modified: r.pushed}
	}
}

// run is the background job.
func (s *Service) runStatisticsJob(job *statisticsJob, f computeFunc, r *repository) {
	timer := time.NewTimer(s.config.StatisticsDelay)
	defer timer.Stop()
	select {
	case <-s.running.Done():
		return
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	job.render = f(r, time.Now())
}

const week = 7 * 24 * time.Hour

// sunday is the start of the week that t lies in, in UTC.
func weekStart(t time.Time) time.Time {
	day := t.UTC().Truncate(24 * time.Hour)
	return day.AddDate(0, 0, -int(day.Weekday()))
}

// counted leaves merge commits out, as all statistics do (Document A section
// 2.9).
func withoutMerges(commits []commit) []commit {
	return slices.DeleteFunc(slices.Clone(commits), func(c commit) bool { return c.merge })
}

// codeFrequency is [week, additions, -deletions] for each week.
func codeFrequency(r *repository, _ time.Time) bodyRenderer {
	sums := map[int64][2]int{}
	for _, c := range withoutMerges(r.commits) {
		w := weekStart(c.at).Unix()
		sums[w] = [2]int{sums[w][0] + c.additions, sums[w][1] - c.deletions}
	}
	triples := make([][3]int64, 0, len(sums))
	for _, w := range slices.Sorted(maps.Keys(sums)) {
		triples = append(triples, [3]int64{w, int64(sums[w][0]), int64(sums[w][1])})
	}
	return fixedBody(triples)
}

// commitActivity is the commits of the last 52 weeks, by week and day.
func commitActivity(r *repository, now time.Time) bodyRenderer {
	type activity struct {
		Days  [7]int `json:"days"`
		Total int    `json:"total"`
		Week  int64  `json:"week"`
	}
	first := weekStart(now).Add(-51 * week)
	weeks := make([]activity, 52)
	for i := range weeks {
		weeks[i].Week = first.Add(time.Duration(i) * week).Unix()
	}
	for _, c := range withoutMerges(r.commits) {
		if i := int(c.at.Sub(first) / week); !c.at.Before(first) && i < len(weeks) {
			weeks[i].Total++
			weeks[i].Days[c.at.UTC().Weekday()]++
		}
	}
	return fixedBody(weeks)
}

// contribution sums up what one author did in a week.
type contribution struct{ additions, deletions, commits int }

// contributors is each author's weeks. It leaves empty commits out too, and
// counts no lines in large repositories.
func contributors(r *repository, _ time.Time) bodyRenderer {
	byAuthor := map[*account]map[int64]contribution{}
	for _, c := range withoutMerges(r.commits) {
		if c.empty() {
			continue
		}
		if byAuthor[c.author] == nil {
			byAuthor[c.author] = map[int64]contribution{}
		}
		w := weekStart(c.at).Unix()
		sum := byAuthor[c.author][w]
		sum.commits++
		if len(r.commits) < largeRepositoryCommits {
			sum.additions, sum.deletions = sum.additions+c.additions, sum.deletions+c.deletions
		}
		byAuthor[c.author][w] = sum
	}
	authors := slices.SortedFunc(maps.Keys(byAuthor), func(a, b *account) int { return a.id - b.id })
	return func(req *request) any {
		return renderAll(authors, func(author *account) object { return contributor(req, author, byAuthor[author]) })
	}
}

// contributor is an author with the commits of each week.
func contributor(req *request, author *account, byWeek map[int64]contribution) object {
	total, weeks := 0, make([]object, 0, len(byWeek))
	for _, w := range slices.Sorted(maps.Keys(byWeek)) {
		sum := byWeek[w]
		total += sum.commits
		weeks = append(weeks, object{{"w", w}, {"a", sum.additions}, {"d", sum.deletions}, {"c", sum.commits}})
	}
	return object{{"author", userObject(req, author)}, {"total", total}, {"weeks", weeks}}
}

// participation is the commits of the last 52 weeks, the most recent ending
// today at midnight UTC, for everyone and for the owner.
func participation(r *repository, now time.Time) bodyRenderer {
	end := now.UTC().Truncate(24 * time.Hour)
	first := end.Add(-52 * week)
	var all, owner [52]int
	for _, c := range withoutMerges(r.commits) {
		if c.at.Before(first) || !c.at.Before(end) {
			continue
		}
		i := int(c.at.Sub(first) / week)
		all[i]++
		if isOwner(pathTarget{organization: r.owner}, c.author) {
			owner[i]++
		}
	}
	return fixedBody(object{{"all", all}, {"owner", owner}})
}

// punchCard is [day, hour, commits], by each commit's own zone.
func punchCard(r *repository, _ time.Time) bodyRenderer {
	var counts [7][24]int
	for _, c := range withoutMerges(r.commits) {
		counts[c.at.Weekday()][c.at.Hour()]++
	}
	triples := make([][3]int, 0, 7*24)
	for day := range counts {
		for hour, n := range counts[day] {
			triples = append(triples, [3]int{day, hour, n})
		}
	}
	return fixedBody(triples)
}
