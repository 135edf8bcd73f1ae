package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestStatisticsAreComputedInTheBackground(t *testing.T) {
	runWithService(t, func(t *tester) {
		const path = "/repos/acme/widgets/stats/"
		for _, operation := range []string{"code_frequency", "commit_activity", "contributors", "participation", "punch_card"} {
			t.call("owner", "GET "+path+operation, 202, "={}")
		}
		time.Sleep(1499 * time.Millisecond)
		t.call("owner", "GET "+path+"participation", 202, "")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		weeks := decode[map[string][]int](t, t.call("owner", "GET "+path+"participation", 200, `{"all":"#52","owner":"#52"}`))
		all, owner := 0, 0
		for i := range weeks["all"] {
			all, owner = all+weeks["all"][i], owner+weeks["owner"][i]
		}
		failIf(t, all == 0 || owner > all, "got participation %v", weeks)
		for _, triple := range decode[[][3]int64](t, t.get("owner", path+"code_frequency")) {
			failIf(t, triple[1] < 0 || triple[2] > 0 || time.Unix(triple[0], 0).UTC().Weekday() != time.Sunday, "got code frequency %v", triple)
		}
		t.call("owner", "GET "+path+"punch_card", 200, "#168")
		t.call("owner", "GET "+path+"commit_activity", 200, "#52")
		w := t.call("owner", "GET "+path+"contributors", 200, "ETag: W/...")
		failIf(t, w.Header().Get("Last-Modified") == "", "got headers %v, want validators", w.Header())
		t.call("", "GET http://other.test"+path+"contributors", 200, "!api.test\n"+`"url":"http://other.test/users/acme-member"`)
	})
}

func TestStatisticsOfEmptyAndLargeRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.calls([]call{
			{"", "GET /repos/acme/empty/stats/contributors", 204, ""},
			{"", "GET /repos/acme/monolith/stats/code_frequency", 422, ""},
			{"", "GET /repos/acme/none/stats/participation", 404, ""},
		})
		total := 0
		for _, c := range waitForStatistics[[]contributorTotals](t, "/repos/acme/monolith/stats/contributors") {
			total += c.Total
			for _, w := range c.Weeks {
				stopIf(t, w.A != 0 || w.D != 0, "got %v, want no lines in a large repository", w)
			}
		}
		failIf(t, total < 10_000 || total >= 12_000, "got %v commits without merges and empty commits", total)
	})
}

type contributorTotals struct {
	Total int
	Weeks []struct{ A, D, C int }
}

// addSmallRepository adds acme/small, whose statistics are known, and sleeps until the
// morning of Wednesday, 2000-01-05. Its participation ends with Tuesday. The weeks of the
// other statistics start on 1999-01-03, 1999-12-26 and 2000-01-02.
func (t *tester) addSmallRepository() {
	acme := t.s.world.accounts["acme"]
	at := func(text string) time.Time {
		return testservers.Must(time.Parse(time.RFC3339, text))
	}
	owner, member := t.s.world.accounts["acme-owner"], t.s.world.accounts["acme-member"]
	small := &repository{id: 2001, owner: acme, name: "small", defaultBranch: "main", git: newGit()}
	for _, c := range []commit{
		{sha: "1", author: owner, at: at("1999-01-05T23:59:59Z"), additions: 10, deletions: 1},      // too old for the participation
		{sha: "2", author: member, at: at("1999-01-06T00:00:00Z"), additions: 1},                    // in the participation, too old for the activity
		{sha: "3", author: member, at: at("1999-12-31T23:30:00-07:00"), additions: 5, deletions: 3}, // Friday in the time zone of the author, Saturday in UTC
		{sha: "4", author: owner, at: at("2000-01-02T01:00:00+02:00"), additions: 2, deletions: 2},  // Sunday in the time zone of the author, Saturday in UTC
		{sha: "5", author: owner, at: at("2000-01-03T09:00:00Z"), additions: 100, deletions: 100, merge: true},
		{sha: "6", author: member, at: at("2000-01-03T10:00:00Z")}, // a commit without changes
		{sha: "7", author: owner, at: at("2000-01-04T23:59:59Z"), additions: 4},
		{sha: "8", author: owner, at: at("2000-01-05T00:00:00Z"), deletions: 6}, // today
	} {
		small.git.grow(c)
	}
	t.s.world.repositories = append(t.s.world.repositories, small)
	time.Sleep(time.Until(at("2000-01-05T10:30:00Z")))
}

// waitForStatistics requests statistics, waits for the job and returns the result.
func waitForStatistics[T any](t *tester, target string) T {
	t.Helper()
	t.call("", "GET "+target, 202, "")
	time.Sleep(2 * time.Second)
	return decode[T](t, t.call("", "GET "+target, 200, ""))
}

// TestStatisticsOfKnownCommits covers Document A section 2.9 with the small repository.
func TestStatisticsOfKnownCommits(t *testing.T) {
	const old, last, this = 915321600, 946166400, 946771200 // the weeks of the small repository
	sums := func(w int64, a, d, c int) jsonObject {
		return jsonObject{"w": float64(w), "a": float64(a), "d": float64(d), "c": float64(c)}
	}
	runWithService(t, func(t *tester) {
		t.addSmallRepository()
		const path = "/repos/acme/small/stats/"
		t.wantEqual("code frequency", [][3]int64{{old, 11, -1}, {last, 7, -5}, {this, 4, -6}}, waitForStatistics[[][3]int64](t, path+"code_frequency"))

		contributors := map[string]any{}
		for _, c := range waitForStatistics[[]jsonObject](t, path+"contributors") {
			contributors[c["author"].(jsonObject)["login"].(string)] = []any{c["total"], c["weeks"]}
		}
		t.wantEqual("contributors", map[string]any{
			"acme-owner":  []any{4.0, []any{sums(old, 10, 1, 1), sums(last, 2, 2, 1), sums(this, 4, 6, 2)}},
			"acme-member": []any{2.0, []any{sums(old, 1, 0, 1), sums(last, 5, 3, 1)}},
		}, contributors)

		participation := map[string][]int{"all": make([]int, 52), "owner": make([]int, 52)}
		participation["all"][0], participation["all"][51], participation["owner"][51] = 1, 4, 2
		t.wantEqual("participation", participation, waitForStatistics[map[string][]int](t, path+"participation"))

		punches := map[[2]int]int{}
		for i, triple := range waitForStatistics[[][3]int](t, path+"punch_card") {
			stopIf(t, triple[0] != i/24 || triple[1] != i%24, "entry %d of the punch card: got %v", i, triple)
			if triple[2] > 0 {
				punches[[2]int{triple[0], triple[1]}] = triple[2]
			}
		}
		t.wantEqual("punch card", map[[2]int]int{{2, 23}: 2, {3, 0}: 2, {5, 23}: 1, {0, 1}: 1, {1, 10}: 1}, punches)
	})
}

// TestCommitActivityOfKnownCommits expects 52 weeks that start on Sundays.
func TestCommitActivityOfKnownCommits(t *testing.T) {
	type activity struct {
		Days        [7]int
		Total, Week int
	}
	runWithService(t, func(t *tester) {
		t.addSmallRepository()
		want := make([]activity, 52)
		for i := range want {
			want[i].Week = 915926400 + i*7*24*3600 // starts with 1999-01-10
		}
		want[50].Days, want[50].Total = [7]int{6: 2}, 2
		want[51].Days, want[51].Total = [7]int{1: 1, 2: 1, 3: 1}, 3
		t.wantEqual("commit activity", want, waitForStatistics[[]activity](t, "/repos/acme/small/stats/commit_activity"))
	})
}

// TestCodeFrequencyRefuses10000Commits covers Document A section 4.5. Merge commits count.
func TestCodeFrequencyRefuses10000Commits(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			commits, status, lines int
		}{{9_999, 200, 9_998}, {10_000, 422, 0}} {
			author, at := t.s.world.accounts["acme-owner"], time.Now().Add(-time.Hour)
			r := &repository{id: 2000 + c.commits, owner: t.s.world.accounts["acme"], name: itoa(c.commits), defaultBranch: "main", git: newGit()}
			for i := range c.commits {
				r.git.grow(commit{sha: itoa(i), author: author, at: at, additions: 1, deletions: 1, merge: i == 0})
			}
			t.s.world.repositories = append(t.s.world.repositories, r)
			path := "/repos/" + r.fullName() + "/stats/"
			t.get("", path+"code_frequency")
			one := waitForStatistics[[]contributorTotals](t, path+"contributors")[0]
			t.call("", "GET "+path+"code_frequency", c.status, "")
			w := one.Weeks[0]
			failIf(t, one.Total != c.commits-1 || w.C != c.commits-1 || w.A != c.lines || w.D != c.lines, "%s: got contributor %+v", r.name, one)
		}
	})
}
