package service

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
)

// largeRepositoryCommits is the number of commits from which additions and deletions are not computed (Document A
// section 4.5).
const largeRepositoryCommits = 10_000

// statisticsKey identifies a cached result. The head is part of the key, so a push to the default branch starts a new
// computation (Document A section 3).
type statisticsKey struct {
	repository int
	operation  string
	head       string
}

// computeFunc computes the figures of a repository: the response body, or a function that returns the body of a request.
type computeFunc func(r *repository, now time.Time) any

// statistics returns the handler of a statistics operation. The first request starts a job, and requests receive a 202
// until the job completes.
func statistics(f computeFunc) handler {
	return func(s *Service, req *request) response {
		r, op := req.repo, req.op.documented
		switch {
		case r.head() == "" && slices.Contains(op.Errors, http.StatusNoContent):
			return response{status: http.StatusNoContent}
		case op.ID == "statistics/code-frequency" && len(r.history()) >= largeRepositoryCommits:
			return fail(http.StatusUnprocessableEntity, "Repository contains 10,000 or more commits")
		}
		key := statisticsKey{r.id, op.ID, r.head()}
		figures, started := s.stats[key]
		if !started && s.running.Err() == nil {
			s.stats[key] = nil
			s.jobs.Go(func() { s.runStatisticsJob(key, f, r) })
		}
		if figures == nil || req.quirks.Endless202 {
			return response{status: http.StatusAccepted, body: object{}, volatile: true}
		}
		if render, ok := figures.(func(*request) any); ok {
			figures = render(req)
		}
		return response{status: http.StatusOK, body: figures, modified: r.pushed}
	}
}

// runStatisticsJob completes a job after the configured delay, unless the service closes. A push to the default branch
// discards the job.
func (s *Service) runStatisticsJob(key statisticsKey, f computeFunc, r *repository) {
	s.quirks.Delay(s.running, quirk.Duration(s.config.StatisticsDelay), 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, wanted := s.stats[key]; wanted && s.running.Err() == nil {
		s.stats[key] = f(r, time.Now())
	}
}

const week = 7 * 24 * time.Hour

// weekStart returns the start of the week of t, which is a Sunday in UTC.
func weekStart(t time.Time) time.Time {
	day := t.UTC().Truncate(24 * time.Hour)
	return day.AddDate(0, 0, -int(day.Weekday()))
}

// withoutMerges returns the commits that are not merges. All statistics ignore merges (Document A section 2.9).
func withoutMerges(commits []*commit) []*commit {
	return slices.DeleteFunc(slices.Clone(commits), func(c *commit) bool { return c.merge })
}

// codeFrequency computes [week, additions, -deletions] for each week.
func codeFrequency(r *repository, _ time.Time) any {
	sums := map[int64][2]int{}
	for _, c := range withoutMerges(r.history()) {
		w := weekStart(c.at).Unix()
		sums[w] = [2]int{sums[w][0] + c.additions, sums[w][1] - c.deletions}
	}
	return renderAll(slices.Sorted(maps.Keys(sums)), func(w int64) []any { return []any{int(w), sums[w][0], sums[w][1]} })
}

// commitActivity counts the commits of the last 52 weeks by week and day.
func commitActivity(r *repository, now time.Time) any {
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
	for _, c := range withoutMerges(r.history()) {
		if i := int(c.at.Sub(first) / week); !c.at.Before(first) && i < len(weeks) {
			weeks[i].Total++
			weeks[i].Days[c.at.UTC().Weekday()]++
		}
	}
	return weeks
}

// contribution holds the totals of one author in one week.
type contribution struct{ additions, deletions, commits int }

// contributors computes the weekly totals of each author. It also ignores empty commits, and does not count lines in
// large repositories.
func contributors(r *repository, _ time.Time) any {
	byAuthor := map[*account]map[int64]contribution{}
	for _, c := range withoutMerges(r.history()) {
		if c.empty() {
			continue
		}
		if byAuthor[c.author] == nil {
			byAuthor[c.author] = map[int64]contribution{}
		}
		w := weekStart(c.at).Unix()
		sum := byAuthor[c.author][w]
		sum.commits++
		if len(r.history()) < largeRepositoryCommits {
			sum.additions, sum.deletions = sum.additions+c.additions, sum.deletions+c.deletions
		}
		byAuthor[c.author][w] = sum
	}
	authors := slices.SortedFunc(maps.Keys(byAuthor), func(a, b *account) int { return a.id - b.id })
	return func(req *request) any {
		return renderAll(authors, func(author *account) object { return contributor(req, author, byAuthor[author]) })
	}
}

// contributor returns the JSON object of an author with the totals of each week.
func contributor(req *request, author *account, byWeek map[int64]contribution) object {
	total := 0
	weeks := renderAll(slices.Sorted(maps.Keys(byWeek)), func(w int64) object {
		sum := byWeek[w]
		total += sum.commits
		return object{{"w", w}, {"a", sum.additions}, {"d", sum.deletions}, {"c", sum.commits}}
	})
	return object{{"author", userObject(req, author)}, {"total", total}, {"weeks", weeks}}
}

// participation counts the commits of the last 52 weeks, in total and by the owner. The last week ends at the start of
// the current day in UTC.
func participation(r *repository, now time.Time) any {
	end := now.UTC().Truncate(24 * time.Hour)
	first := end.Add(-52 * week)
	var all, owner [52]int
	for _, c := range withoutMerges(r.history()) {
		if c.at.Before(first) || !c.at.Before(end) {
			continue
		}
		i := int(c.at.Sub(first) / week)
		all[i]++
		if isOwner(r.owner, c.author) {
			owner[i]++
		}
	}
	return object{{"all", all}, {"owner", owner}}
}

// punchCard computes [day, hour, commits] in the time zone of each commit.
func punchCard(r *repository, _ time.Time) any {
	var counts [7][24]int
	for _, c := range withoutMerges(r.history()) {
		counts[c.at.Weekday()][c.at.Hour()]++
	}
	triples := make([][3]int, 0, 7*24)
	for day := range counts {
		for hour, n := range counts[day] {
			triples = append(triples, [3]int{day, hour, n})
		}
	}
	return triples
}
