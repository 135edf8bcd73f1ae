package service

import (
	"maps"
	"net/http"
	"slices"
	"time"
)

// largeRepository is how many commits are too many for additions and deletions
// (Document A section 4.5).
const largeRepository = 10_000

// statisticsKey names one cached result: it is of one state of the default
// branch, so a push makes a new one (Document A section 3).
type statisticsKey struct {
	repository int
	operation  string
	head       string
}

// computation is a statistics job; result is set when it is done.
type computation struct {
	done   bool
	result any
}

// compute makes the body of a statistics answer.
type compute func(req *request, r *repository, now time.Time) any

// statistics answers 202 and starts a job, until the job is done.
func statistics(f compute) handler {
	return func(s *Service, req *request) response {
		r := s.repository(req)
		op := req.match.Operation.ID
		switch {
		case r == nil:
			return s.notFound()
		case len(r.commits) == 0 && slices.Contains(req.match.Operation.Errors, http.StatusNoContent):
			return response{status: http.StatusNoContent}
		case op == "statistics/code-frequency" && len(r.commits) >= largeRepository:
			return s.problem(http.StatusUnprocessableEntity, "Repository contains 10,000 or more commits")
		}
		key := statisticsKey{r.id, op, r.head()}
		job := s.stats[key]
		if job == nil && s.running.Err() == nil {
			job = &computation{}
			s.stats[key] = job
			s.jobs.Go(func() { s.run(job, f, req, r) })
		}
		if job == nil || !job.done || req.faults.Endless202 {
			return response{status: http.StatusAccepted, body: object{}}
		}
		return response{status: http.StatusOK, body: job.result, modified: r.pushed}
	}
}

// run is the background job.
func (s *Service) run(job *computation, f compute, req *request, r *repository) {
	timer := time.NewTimer(s.config.StatisticsDelay)
	defer timer.Stop()
	select {
	case <-s.running.Done():
		return
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	job.result, job.done = f(req, r, time.Now()), true
}

const week = 7 * 24 * time.Hour

// sunday is the start of the week that t lies in, in UTC.
func sunday(t time.Time) time.Time {
	day := t.UTC().Truncate(24 * time.Hour)
	return day.AddDate(0, 0, -int(day.Weekday()))
}

// counted leaves merge commits out, as all statistics do (Document A section
// 2.9).
func counted(commits []commit) []commit {
	return slices.DeleteFunc(slices.Clone(commits), func(c commit) bool { return c.merge })
}

// codeFrequency is [week, additions, -deletions] for each week.
func codeFrequency(_ *request, r *repository, _ time.Time) any {
	sums := map[int64][2]int{}
	for _, c := range counted(r.commits) {
		w := sunday(c.at).Unix()
		sums[w] = [2]int{sums[w][0] + c.additions, sums[w][1] - c.deletions}
	}
	triples := make([][3]int64, 0, len(sums))
	for _, w := range slices.Sorted(maps.Keys(sums)) {
		triples = append(triples, [3]int64{w, int64(sums[w][0]), int64(sums[w][1])})
	}
	return triples
}

// commitActivity is the commits of the last 52 weeks, by week and day.
func commitActivity(_ *request, r *repository, now time.Time) any {
	type activity struct {
		Days  [7]int `json:"days"`
		Total int    `json:"total"`
		Week  int64  `json:"week"`
	}
	first := sunday(now).Add(-51 * week)
	weeks := make([]activity, 52)
	for i := range weeks {
		weeks[i].Week = first.Add(time.Duration(i) * week).Unix()
	}
	for _, c := range counted(r.commits) {
		if i := int(c.at.Sub(first) / week); !c.at.Before(first) && i < len(weeks) {
			weeks[i].Total++
			weeks[i].Days[c.at.UTC().Weekday()]++
		}
	}
	return weeks
}

// contributors is each author's weeks. It leaves empty commits out too, and
// counts no lines in large repositories.
func contributors(req *request, r *repository, _ time.Time) any {
	type sums struct{ a, d, c int }
	byAuthor := map[*account]map[int64]sums{}
	for _, c := range counted(r.commits) {
		if c.empty() {
			continue
		}
		if byAuthor[c.author] == nil {
			byAuthor[c.author] = map[int64]sums{}
		}
		w := sunday(c.at).Unix()
		s := byAuthor[c.author][w]
		s.c++
		if len(r.commits) < largeRepository {
			s.a, s.d = s.a+c.additions, s.d+c.deletions
		}
		byAuthor[c.author][w] = s
	}
	authors := slices.SortedFunc(maps.Keys(byAuthor), func(a, b *account) int { return a.id - b.id })
	all := make([]object, 0, len(authors))
	for _, author := range authors {
		total := 0
		weeks := make([]object, 0, len(byAuthor[author]))
		for _, w := range slices.Sorted(maps.Keys(byAuthor[author])) {
			s := byAuthor[author][w]
			total += s.c
			weeks = append(weeks, object{{"w", w}, {"a", s.a}, {"d", s.d}, {"c", s.c}})
		}
		all = append(all, object{{"author", userObject(req, author)}, {"total", total}, {"weeks", weeks}})
	}
	return all
}

// participation is the commits of the last 52 weeks, the most recent ending
// today at midnight UTC, for everyone and for the owner.
func participation(_ *request, r *repository, now time.Time) any {
	end := now.UTC().Truncate(24 * time.Hour)
	first := end.Add(-52 * week)
	var all, owner [52]int
	for _, c := range counted(r.commits) {
		if c.at.Before(first) || !c.at.Before(end) {
			continue
		}
		i := int(c.at.Sub(first) / week)
		all[i]++
		if m := r.owner.members[c.author.login]; m != nil && m.admin {
			owner[i]++
		}
	}
	return object{{"all", all}, {"owner", owner}}
}

// punchCard is [day, hour, commits], by each commit's own zone.
func punchCard(_ *request, r *repository, _ time.Time) any {
	var counts [7][24]int
	for _, c := range counted(r.commits) {
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
