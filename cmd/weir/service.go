package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/policy"
)

type serviceCommand struct {
	Listen string `default:"127.0.0.1:9000" help:"Address."`
	Config string `help:"Configuration whose limits and dialect it takes." placeholder:"FILE"`
	Seed   uint64 `default:"1" help:"What its state is grown from."`
	Faults string `default:"{}" help:"Faults from the start, as PUT /_service/faults takes them." placeholder:"JSON"`

	Webhook string `help:"Where it delivers all events of organization acme, signed by WEIR_WEBHOOK_SECRET of the environment; PUT /_service/webhooks sets more." placeholder:"URL"`
}

// Run serves until the process is told to stop.
func (c *serviceCommand) Run(p *process) error {
	cfg := config.Default()
	if c.Config != "" {
		// There is nothing behind the service, so the file need not name it.
		own := map[string]string{"upstream.url": "http://" + c.Listen}
		loaded, err := config.Load(config.Source{Path: c.Config, Getenv: p.getenv, Flags: own})
		if err != nil {
			return err
		}
		cfg = loaded
	}
	faults, err := service.ParseFaults([]byte(c.Faults), service.Faults{})
	if err != nil {
		return fmt.Errorf("--faults: %w", err)
	}
	s, err := newService(cfg, c.Seed, faults)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := c.subscribe(p, s); err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	log.Info("reference service", "address", l.Addr().String())
	return serveAll(p.ctx, log, noDrain, endpoint{listener: l, handler: s})
}

// subscribe sets the webhook that was given.
func (c *serviceCommand) subscribe(p *process, s *service.Service) error {
	if c.Webhook == "" {
		return nil
	}
	secret, _ := p.getenv("WEIR_WEBHOOK_SECRET")
	w := service.Webhook{URL: c.Webhook, Secret: credential.Secret(secret), Events: []string{"*"}, Target: "acme"}
	if err := s.SetWebhooks([]service.Webhook{w}); err != nil {
		return &exit{exitUsage, fmt.Sprintf("--webhook: %v", err)}
	}
	return nil
}

func newService(cfg *config.Config, seed uint64, faults service.Faults) (*service.Service, error) {
	dialect, err := policy.LoadDialect(cfg.Upstream.Dialect)
	if err != nil {
		return nil, err
	}
	return service.New(service.Config{Limits: cfg.Limits.Limits, Seed: seed, Dialect: dialect, Faults: faults}), nil
}
