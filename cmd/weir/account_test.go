package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

func TestOpenAccount(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Limits.Probes = "http://service.test", "trust", 1
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	admin := httptest.NewServer(g.admin(cfg.Admin))
	defer admin.Close()
	weir := func(args ...string) (code int, text string) {
		var out bytes.Buffer
		getenv := func(string) (string, bool) { return "", false }
		code = run(context.Background(), append(args, "--admin", admin.URL), getenv, &out, &out)
		return code, out.String()
	}
	ledger := g.current.Load().ledger
	for id := range uint64(2) { // a limit error, then a failed probe
		c := limits.Claim{ID: id + 1, Account: "user:ci", Kind: policy.User, Operation: "op", Resource: policy.Core, Points: 1}
		testservers.Eventually(t, "the cool-down ends", func(ctx context.Context) bool {
			d, err := ledger.Admit(ctx, c)
			return err == nil && d.Granted
		})
		limited := limits.Outcome{Sent: true, Answered: true, Ended: true, Limited: limits.SecondaryLimit, RetryAfter: time.Microsecond}
		if err := ledger.Settle(t.Context(), limits.Permit{Claim: c}, limited); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"budget"}, 0, "s, because probes failed: weir account open user:ci"},
		{[]string{"account", "open", "user:other"}, 1, `open account "user:other": the account is not closed`},
		{[]string{"account", "open", "user:ci"}, 0, "user:ci is open; its next request is a probe"},
		{[]string{"account", "open", "user:ci"}, 1, "not closed"},
		{[]string{"account", "open"}, 2, "account"},
	} {
		if code, text := weir(c.args...); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%v: exit code %d, wrote %q; want %d and %q", c.args, code, text, c.code, c.text)
		}
	}
	if last := g.trail.Last(); len(last) != 3 || last[1].Action != "open account" || last[1].Target != "user:ci" || last[1].Outcome != "opened" {
		t.Errorf("audit trail: %+v", last)
	}
}
