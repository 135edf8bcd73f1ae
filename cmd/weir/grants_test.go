package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

// withClients adds clients of one account, a group with one client, and a client of its own account.
func withClients(cfg *config.Config) {
	cfg.Credentials = []config.Credential{
		{Name: "ci", Kind: "user", Account: "octo-bot", Token: "held-token"}, {Name: "own", Kind: "user", Account: "own", Token: "own-token"},
	}
	cfg.Groups = []config.Group{{Name: "team", Limit: 1}}
	cfg.Clients = []config.Client{
		{Name: "job", Key: keyHash("job-key"), Credentials: []string{"ci"}, Limit: 1},
		{Name: "bot", Key: keyHash("bot-key"), Credentials: []string{"ci"}, Limit: 1, Group: "team"},
		{Name: "alone", Key: keyHash("alone-key"), Credentials: []string{"own"}, Limit: 0.9},
	}
}

func TestGrantCommands(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart = "http://service.test", "trust"
	withClients(cfg)
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	listener := httptest.NewServer(g.admin(cfg.Admin))
	defer listener.Close()
	id := func() string {
		list, err := g.grants(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("grants: %v, %v", list, err)
		}
		return list[0].ID
	}
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"budget grants", 0, "no grant is in force"},
		{"budget grant job --requests 500 --for 30m", 0, ": 500 more requests of core for job until "},
		{"budget grants", 0, "job     core      500       in 30m"},
		{"budget grants --json", 0, `"requests": 500`},
		{"budget revoke NONE", 1, `revoke grant "NONE": no grant in force has this ID`},
		{"budget revoke ID", 0, ": 500 more requests of core for job until "},
		{"budget grants", 0, "no grant is in force"},
		{"budget grant team --requests 1 --for 24h", 0, "core for team"},
		{"budget grant job --resource graphql --requests 1 --for 1h30m", 0, "graphql for job"},
		{"budget grant jobs --requests 1 --for 30m", 1, `invalid grant: client: "jobs" is not in clients or groups of the configuration`},
		{"budget grant alone --requests 1 --for 30m", 1, `invalid grant: client: "alone" shares no account with another client`},
		{"budget grant job --resource cores --requests 1 --for 30m", 1, `invalid grant: resource: "cores" is unknown`},
		{"budget grant job --resource search --requests 1 --for 30m", 1, "invalid grant: resource: the window of search is 1m0s"},
		{"budget grant job --requests 1 --for 30", 1, `invalid grant: for: "30" has no unit; use 30m`},
		{"budget grant job --requests 1 --for soon", 1, `invalid grant: for: "soon" is not a duration; use for example 30m`},
		{"budget grant job --requests 1 --for 25h", 1, "invalid grant: for: 25h0m0s is out of range; use more than 0 and at most 24h"},
		{"budget grant job --requests 1 --for 0s", 1, "invalid grant: for: 0s is out of range; use more than 0 and at most 24h"},
		{"budget grant job --requests 0 --for 30m", 1, "invalid grant: requests: 0 is less than 1"},
		{"budget grant job --for 30m", 2, "--requests"},
	} {
		if strings.HasSuffix(c.args, " ID") {
			c.args = strings.ReplaceAll(c.args, "ID", id())
		}
		if code, text := runWeir(append(strings.Fields(c.args), "--admin", listener.URL)...); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: exit code %d, wrote %q; want %d and %q", c.args, code, text, c.code, c.text)
		}
	}
	if err := reloadWith(g, cfg); err != nil {
		t.Fatal(err)
	}
	if list, err := g.grants(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("grants after a reload: %v, %v", list, err)
	}
}

func TestGrantIsRefusedWhileLimitsAreOff(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Upstream.Limits = "http://service.test", false
	withClients(cfg)
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	_, err = g.grant(t.Context(), admin.Grant{Client: "job", Resource: "core", Requests: 1, For: "30m"})
	if err == nil || !strings.Contains(err.Error(), "upstream.limits") {
		t.Errorf("got %v", err)
	}
}

func TestEndOfAGrantIsInTheAuditTrail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Upstream.URL = "http://service.test"
		withClients(cfg)
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer g.close()
		watcher, err := g.history.Watch(history.WatchOptions{Event: "audit"})
		if err != nil {
			t.Fatal(err)
		}
		granted, err := g.grant(t.Context(), admin.Grant{Client: "job", Resource: "core", Requests: 1, For: "30m"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30*time.Minute + grantsInterval)
		want := admin.Change{Operator: "time", Action: "end grant", Target: granted.ID, Outcome: "ended " + granted.String()}
		select {
		case e := <-watcher.Events():
			if !strings.Contains(fmt.Sprint(e.Data), want.Outcome) {
				t.Errorf("event %+v, want %+v", e, want)
			}
		default:
			t.Error("no event")
		}
		last := g.trail.Last()
		if len(last) == 1 {
			last[0].Time = time.Time{}
		}
		if fmt.Sprint(last) != fmt.Sprint([]admin.Change{want}) {
			t.Errorf("audit trail: %+v, want %+v", last, want)
		}
	})
}

// TestGrantReachesAllReplicas grants requests at one replica, and reads the guarantee from another replica.
func TestGrantReachesAllReplicas(t *testing.T) {
	socket := testservers.Redis(t)
	first, second := startOnRedis(t, socket, ""), startOnRedis(t, socket, "")
	for _, o := range []*redisGateway{first, second} {
		next := *o.started
		withClients(&next)
		if err := reloadWith(o.gateway, &next); err != nil {
			t.Fatal(err)
		}
	}
	guarantee := func() (tokens int) {
		accounts, err := second.accounts(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range accounts {
			for _, b := range a.Budgets {
				if b.Resource == "client:core:job" {
					tokens = b.Guarantee
				}
			}
		}
		return tokens
	}
	testservers.Eventually(t, "the other replica forwards a request", func(context.Context) bool {
		status, _ := second.send("bot-key", "/user")
		return status == http.StatusOK
	})
	granted, err := first.grant(t.Context(), admin.Grant{Client: "job", Resource: "core", Requests: 500, For: "30m"})
	if err != nil {
		t.Fatal(err)
	}
	testservers.Eventually(t, "the other replica applies the grant", func(context.Context) bool { return guarantee() == 500 })
	if _, err := first.revoke(t.Context(), granted.ID); err != nil {
		t.Fatal(err)
	}
	testservers.Eventually(t, "the other replica applies the revocation", func(context.Context) bool { return guarantee() == 0 })
	if _, err := second.revoke(t.Context(), granted.ID); !errors.Is(err, limits.ErrUnknownGrant) {
		t.Errorf("got %v", err)
	}
}
