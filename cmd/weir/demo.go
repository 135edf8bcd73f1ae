package main

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

type demoCommand struct {
	Listen  string `default:"127.0.0.1:8080" help:"Address for clients."`
	Admin   string `default:"127.0.0.1:9090" help:"Address of the admin listener."`
	Service string `default:"127.0.0.1:9000" help:"Address of the reference service."`
	Traffic string `default:"on" enum:"on,off" help:"Sample traffic: on or off."`
}

// Run starts the reference service, a gateway in front of it and the sample traffic.
func (c *demoCommand) Run(p *process) (err error) {
	upstream, err := listenTCP("service", c.Service)
	if err != nil {
		return err
	}
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = c.Listen, c.Admin
	cfg.Upstream.URL = "http://" + upstream.Addr().String()
	cfg.Limits.ColdStart = "trust"
	cfg.Credentials = []config.Credential{{Name: "release-app", Kind: policy.Installation, Token: "tok-app"}} // names its account
	cfg.Limits.Inbound.Rate = 0                                                                               // all clients have the same address
	cfg.Webhooks.Secret = credential.Secret(cryptorand.Text())
	s, err := newService(cfg, 1, quirk.Set{})
	if err != nil {
		return err
	}
	defer s.Close()
	g, err := newGateway(cfg, p.stderr, slog.LevelWarn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
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
	var traffic sync.WaitGroup
	defer traffic.Wait()
	defer cancel()
	if c.Traffic == "on" {
		traffic.Go(func() { sendSampleTraffic(ctx, gatewayURL) })
	}
	return serveAll(p.ctx, g.log, g.drainPlan, append(endpoints, endpoint{listener: upstream, handler: s, last: true})...)
}

// welcome has the URLs of gateway, admin listener and service, and commands to try.
const welcome = `Weir is running; Ctrl-C ends it.

  gateway  %[1]s   use this URL instead of the upstream's
  admin    %[2]s   dashboard and metrics
  service  %[3]s   the upstream behind the gateway, for comparison

Try:

  # run this twice: the second response comes from the cache and costs no quota
  curl -i %[1]s/gitignore/templates

  # statistics: the upstream answers 202 first; the gateway polls until they are computed
  curl -i %[1]s/repos/acme/widgets/stats/commit_activity

  # a push: its webhook marks the cached statistics stale, so they are fetched again
  curl -X POST %[3]s/_service/events -d '{"event":"push","repository":"acme/widgets","commits":3}'
  curl -i %[1]s/repos/acme/widgets/stats/commit_activity

  # the gateway refuses the 31st search of a minute; the upstream sees no violation
  for i in $(seq 31); do curl -s -o /dev/null -w '%%{http_code} ' -H 'Authorization: Bearer tok-owner' "%[1]s/search/commits?q=gear+$i"; done; echo
  curl %[3]s/_service/violations

`

// The sample traffic uses other targets and tokens than the commands in welcome.
var (
	sampleTargets = []string{
		"/gitignore/templates/Go", "/gitignore/templates/Python", "/gitignore/templates/Rust", "/codes_of_conduct",
		"/codes_of_conduct/contributor_covenant", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/subscribers?page=2",
		"/orgs/acme/members", "/repos/acme/widgets/rulesets", "/repos/acme/widgets/rules/branches/main",
		"/repos/acme/widgets/stats/contributors", "/repos/acme/monolith/stats/commit_activity", "/search/commits?q=widget",
		"/repos/acme/secret/subscribers", "/rate_limit",
	}
	sampleTokens = []string{"tok-member", "tok-outsider", "tok-app"}
)

// sendSampleTraffic sends a random request every 400 ms until ctx ends. It ignores errors,
// because the gateway logs them.
func sendSampleTraffic(ctx context.Context, gatewayURL string) {
	client := &http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(400 * time.Millisecond):
		}
		target, token := sampleTargets[rand.IntN(len(sampleTargets))], sampleTokens[rand.IntN(len(sampleTokens))]
		if n < len(sampleTokens)-1 { // the response names the account
			target, token = "/user", sampleTokens[n]
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, gatewayURL+target, nil)
		if err != nil {
			return
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
}
