package main

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
)

type demoCommand struct {
	Listen  string `default:"127.0.0.1:8080" help:"Address for clients."`
	Admin   string `default:"127.0.0.1:9090" help:"Address for the operator."`
	Service string `default:"127.0.0.1:9000" help:"Address of the reference service."`
	Traffic string `default:"on" enum:"on,off" help:"Sample traffic: on or off."`
}

// Run serves all three until the process is told to stop.
func (c *demoCommand) Run(p *process) error {
	upstream, err := net.Listen("tcp", c.Service)
	if err != nil {
		return fmt.Errorf("service: %w", err)
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = c.Listen, c.Admin
	cfg.Upstream.URL = "http://" + upstream.Addr().String()
	cfg.Limits.ColdStart = "trust"
	cfg.Limits.Inbound.Rate = 0 // every client is this machine
	cfg.Webhooks.Secret = credential.Secret(cryptorand.Text())
	s, err := newService(cfg, 1, service.Faults{})
	if err != nil {
		return err
	}
	defer s.Close()
	g, err := newGateway(cfg, log)
	if err != nil {
		return err
	}
	defer g.close()
	endpoints, err := g.listen()
	if err != nil {
		return err
	}
	gatewayURL := "http://" + endpoints[0].listener.Addr().String()
	hook := service.Webhook{URL: gatewayURL + cfg.Webhooks.Path, Secret: cfg.Webhooks.Secret, Events: []string{"*"}, Target: "acme"}
	if err := s.SetWebhooks([]service.Webhook{hook}); err != nil {
		return err
	}
	p.printf(welcome, gatewayURL, "http://"+endpoints[1].listener.Addr().String(), cfg.Upstream.URL)

	ctx, cancel := context.WithCancel(p.ctx)
	var sampling sync.WaitGroup
	defer sampling.Wait()
	defer cancel()
	if c.Traffic == "on" {
		sampling.Go(func() { sample(ctx, gatewayURL) })
	}
	return serveAll(p.ctx, g.log, g.drainPlan, append(endpoints, endpoint{listener: upstream, handler: s, last: true})...)
}

// welcome is what the demo prints: where things are, and what to try.
const welcome = `Weir is running; Ctrl-C ends it.

  gateway  %[1]s   what programs call instead of the API
  admin    %[2]s   what the operator looks at
  service  %[3]s   the API behind it, for comparison

Try:

  # twice: a miss, then a hit that costs nothing
  curl -i %[1]s/gitignore/templates

  # statistics: the API says 202 at first; the gateway asks again for you
  curl -i %[1]s/repos/acme/widgets/stats/commit_activity

  # a push: its webhook makes those stale, so they are asked for anew
  curl -X POST %[3]s/_service/events -d '{"event":"push","repository":"acme/widgets","commits":3}'
  curl -i %[1]s/repos/acme/widgets/stats/commit_activity

  # the 31st search of a minute is refused here, and never reaches the API
  for i in $(seq 31); do curl -s -o /dev/null -w '%%{http_code} ' -H 'Authorization: Bearer tok-owner' "%[1]s/search/commits?q=gear+$i"; done; echo
  curl %[3]s/_service/violations

`

// sampleTargets leave to the visitor what the welcome tells to try.
var sampleTargets = []string{
	"/gitignore/templates/Go", "/gitignore/templates/Python", "/gitignore/templates/Rust", "/codes_of_conduct",
	"/codes_of_conduct/contributor_covenant", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/subscribers?page=2",
	"/orgs/acme/members", "/repos/acme/widgets/rulesets", "/repos/acme/widgets/rules/branches/main",
	"/repos/acme/widgets/stats/contributors", "/repos/acme/monolith/stats/commit_activity", "/search/commits?q=widget",
	"/repos/acme/secret/subscribers", "/rate_limit",
}

// sampleTokens are callers whose budgets the visitor's commands do not touch.
var sampleTokens = []string{"tok-member", "tok-app", "tok-outsider"}

// samplePause lies between two requests of the sample traffic.
const samplePause = 400 * time.Millisecond

// sample is a team's ordinary traffic, until ctx ends.
func sample(ctx context.Context, gatewayURL string) {
	client := &http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(samplePause):
		}
		if err := sampleOnce(ctx, client, gatewayURL); err != nil && ctx.Err() == nil {
			continue // the demo goes on; the gateway has logged what was wrong
		}
	}
}

func sampleOnce(ctx context.Context, client *http.Client, gatewayURL string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gatewayURL+sampleTargets[rand.IntN(len(sampleTargets))], nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+sampleTokens[rand.IntN(len(sampleTokens))])
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("sample traffic: %w", err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}
