//go:build e2e && adjacent

package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// TestAdjacentVersionsShareRedis upgrades two replicas one after another while clients saturate their limits, and rolls
// one of them back. WEIR_ADJACENT names the program of the other version ("make adjacent" builds it). The limits must
// hold at any time, and both versions must use the cache of the other and report no error.
func TestAdjacentVersionsShareRedis(t *testing.T) {
	other := os.Getenv("WEIR_ADJACENT")
	stopIf(t, other == "", "WEIR_ADJACENT is empty: run make adjacent, or name the program of the other version")
	u := &upgrade{fleet: newFleet(t, 0, oneRedis)}
	for range 2 {
		u.replicas = append(u.replicas, &replica{url: "http://" + testservers.FreeAddress(t), admin: testservers.FreeAddress(t)})
	}
	u.run(0, other)
	u.run(1, other)
	ctx, _ := u.saturate()
	for _, step := range []struct {
		name    string
		replica int
		program string
	}{{"first replica upgraded", 0, program}, {"second replica upgraded", 1, program}, {"second replica rolled back", 1, other}} {
		u.stop(step.replica)
		u.run(step.replica, step.program)
		u.checkSharedCache(ctx, step.name)
		sleep(ctx, phase(t))
		u.checkViolations(step.name)
	}
	u.stop(0)
	u.stop(1)
	for _, p := range u.processes {
		line := regexp.MustCompile(`(?m)^.*level=(WARN|ERROR).*$`).FindString(p.output.String())
		failIf(t, line != "", "%s logged %s", p.cmd.Path, line)
	}
}

// upgrade is a fleet whose replicas run several programs, one after another.
type upgrade struct {
	*fleet
	processes []*process
}

// run starts a replica of a version at the address of the replica.
func (u *upgrade) run(i int, version string) {
	u.Helper()
	r := u.replicas[i]
	config := u.file("gateway.yaml", `upstream: {url: "`+u.service+`", timeout: 5s}`+"\n"+`store: {url: "`+u.store+`"}`+fleetLimits)
	r.process = startCommand(u.T, exec.Command(version, "serve", "--config", config, "--listen", strings.TrimPrefix(r.url, "http://"), "--admin", r.admin))
	u.processes = append(u.processes, r.process)
	u.awaitHTTP(r.url + "/_weir/")
}

// stop drains a replica.
func (u *upgrade) stop(i int) {
	u.Helper()
	u.replicas[i].signal(syscall.SIGTERM)
	err := u.replicas[i].exited()
	failIf(u, err != nil, "replica %d: %v", i, err)
}

// checkSharedCache checks that each replica serves a response that the other one stored, until a write through the other
// one changes it.
func (u *upgrade) checkSharedCache(ctx context.Context, step string) {
	u.Helper()
	const path = "/repos/acme/widgets/subscription"
	for from, to := range map[int]int{0: 1, 1: 0} {
		u.eventually(step+": a replica serves the response that the other one stored", func(context.Context) bool {
			u.send(http.MethodPut, from, path, `{"subscribed":true}`)
			if status := u.send(http.MethodGet, from, path, ""); !strings.Contains(status, "stored") {
				return false // the request was refused, because the replica is at its limits
			}
			return strings.HasPrefix(u.send(http.MethodGet, to, path, ""), "weir; hit")
		})
		u.eventually(step+": a write through one replica makes the response of the other one stale", func(context.Context) bool {
			return strings.HasPrefix(u.send(http.MethodGet, to, path, ""), "weir; hit") &&
				u.send(http.MethodPut, from, path, `{"subscribed":false}`) != "" &&
				!strings.HasPrefix(u.send(http.MethodGet, to, path, ""), "weir; hit")
		})
	}
}

// send sends a request of an account far from its limits to a replica, and returns the Cache-Status of a success.
func (u *upgrade) send(method string, replica int, path, body string) string {
	u.Helper()
	resp, _ := send(u.T, method, u.replicas[replica].url+path, body, "Authorization: Bearer tok-member")
	if resp.StatusCode >= 300 {
		return ""
	}
	return resp.Header.Get("Cache-Status")
}
