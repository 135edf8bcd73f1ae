package service

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// commitMembers lists the members of a commit in a push event. The documents do not define these members.
const commitMembers = "id tree_id distinct message timestamp url author committer added removed modified"

// TestPushAddsCommitsToTheDefaultBranch also checks that the payload contains the new commits.
func TestPushAddsCommitsToTheDefaultBranch(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"))
		widgets := t.s.world.repositoryNamed("acme/widgets")
		before, count := widgets.head(), len(widgets.history())
		time.Sleep(time.Hour)
		t.createEvent(`{"event": "push", "repository": "acme/widgets", "commits": 3, "sender": "acme-member"}`, 202)
		p := box.takePayload(t)
		failIf(t, len(widgets.history()) != count+3 || widgets.head() == before, "got %d commits and head %s", len(widgets.history()), widgets.head())
		for i, c := range p["commits"].([]any) {
			c, own := c.(jsonObject), widgets.history()[count+i]
			failIf(t, c["id"] != own.sha || c["message"] != own.message || c["timestamp"] != "2000-01-01T01:00:00Z" || c["author"].(jsonObject)["username"] != "acme-member" || own.empty(), "got payload commit %v and stored commit %v", c, own)
			t.wantRecord(encode(c), "", commitMembers)
		}
		t.wantEqual("head_commit", p["commits"].([]any)[2], p["head_commit"])
		for member, want := range map[string]any{
			"before": before, "after": widgets.head(), "ref": "refs/heads/main", "base_ref": nil, "created": false, "deleted": false, "forced": false,
			"compare": "http://api.test/acme/widgets/compare/" + before[:12] + "..." + widgets.head()[:12],
		} {
			failIf(t, p[member] != want, "%s: got %v, want %v", member, p[member], want)
		}
		t.wantEqual("pushed_at", any("2000-01-01T01:00:00Z"), p["repository"].(jsonObject)["pushed_at"])
		t.createEvent(pushWidgets, 202)
		next := box.takePayload(t)
		failIf(t, next["before"] != p["after"] || next["after"] == p["after"], "the next push goes from %v to %v", next["before"], next["after"])
	})
}

// TestPushToTheDefaultBranchRenewsStatistics covers Document A section 3. A push to another
// branch or repository keeps the cached result.
func TestPushToTheDefaultBranchRenewsStatistics(t *testing.T) {
	runWithService(t, func(t *tester) {
		const path = "/repos/acme/widgets/stats/punch_card"
		total := func() (n int) {
			t.call("owner", "GET "+path, 202, "")
			time.Sleep(2 * time.Second)
			synctest.Wait()
			for _, triple := range decode[[][3]int](t, t.get("owner", path)) {
				n += triple[2]
			}
			return n
		}
		first := total()
		t.createEvent(`{"event": "push", "repository": "acme/widgets", "ref": "refs/heads/side", "commits": 5}`, 202)
		t.createEvent(`{"event": "push", "repository": "acme/monolith"}`, 202)
		t.call("owner", "GET "+path, 200, "")
		t.createEvent(`{"event": "push", "repository": "acme/widgets", "commits": 5}`, 202)
		t.wantEqual("commits", first+5, total())
		t.wantEqual("cached results", 1, len(t.s.stats))
	})
}

// TestPushPayloadDescribesTheRef checks the commits in the payload of each kind of push. H is the old head of the
// default branch, P is its parent, N is a new commit, and 0 is no commit. The service stores the default branch only.
func TestPushPayloadDescribesTheRef(t *testing.T) {
	for name, c := range map[string]struct {
		body          string
		before, after string
		commits       int
		base          any
		moved         int // growth of the default branch in commits
	}{
		"push to the default branch":         {`"ref": "refs/heads/main"`, "H", "N", 1, nil, 1},
		"push to another branch":             {`"ref": "refs/heads/side"`, "H", "N", 1, nil, 0},
		"push to a branch named like a tag":  {`"ref": "refs/heads/refs/tags/x"`, "H", "N", 1, nil, 0},
		"push of several commits":            {`"commits": 7`, "H", "N", 7, nil, 7},
		"branch created with a commit":       {`"ref": "refs/heads/side", "created": true`, "0", "N", 1, nil, 0},
		"branch created without commits":     {`"ref": "refs/heads/side", "created": true, "commits": 0`, "0", "H", 0, "refs/heads/main", 0},
		"branch deleted":                     {`"ref": "refs/heads/side", "deleted": true`, "H", "0", 0, nil, 0},
		"tag created":                        {`"ref": "refs/tags/v3", "created": true`, "0", "H", 0, "refs/heads/main", 0},
		"tag deleted":                        {`"ref": "refs/tags/v3", "deleted": true`, "H", "0", 0, nil, 0},
		"tag moved":                          {`"ref": "refs/tags/v3", "forced": true`, "H", "P", 0, nil, 0},
		"default branch rewritten":           {`"forced": true`, "H", "N", 1, nil, 0},
		"default branch reset to its parent": {`"forced": true, "commits": 0`, "H", "P", 0, nil, -1},
		"another branch rewritten":           {`"ref": "refs/heads/side", "forced": true, "commits": 2`, "H", "N", 2, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			runWithService(t, func(t *tester) {
				box := t.startReceiver(webhookOn("acme/widgets"))
				widgets := t.s.world.repositoryNamed("acme/widgets")
				was := slices.Clone(widgets.history())
				t.createEvent(`{"event": "push", "repository": "acme/widgets", `+c.body+`}`, 202)
				p := box.takePayload(t)
				names := map[any]string{was[len(was)-1].sha: "H", was[len(was)-2].sha: "P", zeroSHA: "0"}
				called := func(sha any) string {
					if names[sha] == "" {
						return "N"
					}
					return names[sha]
				}
				t.wantEqual("before, after, commits, base and growth of the branch", []any{c.before, c.after, c.commits, c.base, c.moved},
					[]any{called(p["before"]), called(p["after"]), len(p["commits"].([]any)), p["base_ref"], len(widgets.history()) - len(was)})
				for _, flag := range []string{"created", "deleted", "forced"} {
					failIf(t, p[flag] != strings.Contains(c.body, flag), "%s: got %v", flag, p[flag])
				}
				head, _ := p["head_commit"].(jsonObject)
				failIf(t, (head == nil) != (c.after == "0") || head != nil && head["id"] != p["after"], "got head_commit %v", head)
				if toMain := p["ref"] == "refs/heads/main"; (widgets.head() == p["after"]) != (toMain || c.after == "H") {
					t.Errorf("got head %s of the default branch", called(widgets.head()))
				}
			})
		})
	}
}

func TestFirstPushCreatesTheDefaultBranch(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/empty"))
		t.call("", "GET /repos/acme/empty/stats/contributors", 204, "")
		t.createEvent(`{"event": "push", "repository": "acme/empty", "commits": 2}`, 202)
		p := box.takePayload(t)
		failIf(t, p["created"] != true || p["before"] != zeroSHA || p["after"] != t.s.world.repositoryNamed("acme/empty").head() || p["base_ref"] != nil, "got payload %v", p)
		t.call("", "GET /repos/acme/empty/stats/contributors", 202, "")
	})
}

func TestRefusedPushesChangeNothing(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ repository, body, wantMessage string }{
			{"widgets", `"commits": -1`, "commits: -1: must be 0 to 60000"},
			{"widgets", `"commits": 60001`, "commits: 60001: must be 0 to 60000"},
			{"widgets", `"commits": 0`, "commits: 0: must be 1 or more unless created, deleted or forced is set"},
			{"widgets", `"ref": "refs/tags/v3"`, "commits: 0: must be 1 or more"},
			{"widgets", `"ref": "refs/tags/v3", "created": true, "commits": 1`, "commits: 1: must be 0 for a tag"},
			{"widgets", `"ref": "refs/heads/x", "deleted": true, "commits": 1`, "commits: 1: must be 0 for a deleted ref"},
			{"widgets", `"ref": "refs/heads/x", "deleted": true, "created": true`, "deleted: cannot be combined with created"},
			{"widgets", `"ref": "refs/heads/x", "forced": true, "created": true`, "forced: cannot be combined with created or deleted"},
			{"widgets", `"ref": "refs/heads/x", "forced": true, "deleted": true`, "forced: cannot be combined with created or deleted"},
			{"widgets", `"deleted": true`, "deleted: refs/heads/main is the default branch and cannot be deleted"},
			{"widgets", `"created": true`, "created: refs/heads/main already exists"},
			{"empty", `"ref": "refs/heads/x"`, `ref: "refs/heads/x": acme/empty is empty; push to refs/heads/main first`},
			{"empty", `"ref": "refs/tags/x", "created": true`, `ref: "refs/tags/x": acme/empty is empty`},
			{"empty", `"forced": true`, "forced: acme/empty is empty"},
			{"empty", `"created": true, "commits": 0`, "commits: 0: refs/heads/main would have no commits"},
		} {
			r := t.s.world.repositoryNamed("acme/" + c.repository)
			head, pushed := r.head(), r.pushed
			t.wantRefused(`{"event": "push", "repository": "acme/`+c.repository+`", `+c.body+`}`, c.wantMessage)
			failIf(t, r.head() != head || r.pushed != pushed, "%s: the refused push changed the repository", c.body)
		}
	})
}

func TestForcedPushKeepsTheLastCommit(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.createEvent(`{"event": "push", "repository": "acme/empty"}`, 202)
		t.wantRefused(`{"event": "push", "repository": "acme/empty", "forced": true, "commits": 0}`, "commits: 0: refs/heads/main would have no commits")
		t.createEvent(`{"event": "push", "repository": "acme/empty", "forced": true}`, 202)
		t.wantEqual("commits", 1, len(t.s.world.repositoryNamed("acme/empty").history()))
	})
}

func TestPushedCommitNamesFollowFromTheSeed(t *testing.T) {
	var heads []string
	for range 2 {
		runWithService(t, func(t *tester) {
			t.createEvent(`{"event": "push", "repository": "acme/widgets", "commits": 2}`, 202)
			t.createEvent(pushWidgets, 202)
			heads = append(heads, t.s.world.repositoryNamed("acme/widgets").head())
		})
	}
	testservers.Equal(t, "head", heads[1], heads[0])
}
