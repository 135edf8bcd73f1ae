package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
)

type serviceCommand struct {
	Listen string `default:"127.0.0.1:9000" help:"Address of the service."`
	Config string `help:"Configuration file with limits and dialect." placeholder:"FILE"`
	API    string `hidden:"" help:"Removed: the service always plays all operations."`
	Seed   uint64 `default:"1" help:"Seed of the generated state."`
	TLS    bool   `help:"Serve HTTP/2 and HTTP/1.1 with TLS, for localhost and the API's hosts below localhost. The log names the authority to trust."`
	Quirks string `default:"{}" help:"Initial quirks, in the format of PUT /_service/quirks." placeholder:"JSON"`
	Faults string `hidden:"" help:"Removed: use --quirks."`

	Webhook string `help:"URL that receives all events of organization acme, signed with WEIR_WEBHOOK_SECRET. PUT /_service/webhooks adds others." placeholder:"URL"`
}

// Run starts the reference service.
func (c *serviceCommand) Run(p *process) error {
	if c.API != "" {
		return &exit{exitUsage, "--api: the service always plays all operations; remove the flag"}
	}
	if c.Faults != "" {
		return &exit{exitUsage, "--faults was removed; use --quirks with the same value"}
	}
	cfg := config.Default()
	if c.Config != "" {
		// The service has no upstream, so the file may omit it.
		flags := map[string]string{"upstream.url": "http://localhost"}
		loaded, err := config.Load(config.Source{Path: c.Config, Getenv: p.getenv, Flags: flags})
		if err != nil {
			return err
		}
		cfg = loaded
	}
	handler, closeService, err := c.newHandler(p, cfg)
	if err != nil {
		return err
	}
	defer closeService()
	l, err := listenTCP("--listen", c.Listen)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	attributes := []any{"address", l.Addr().String()}
	if c.TLS {
		secured, file, err := withServiceTLS(l)
		if file != "" {
			defer func() { _ = os.RemoveAll(filepath.Dir(file)) }()
		}
		if err != nil {
			return errors.Join(fmt.Errorf("--tls: %w", err), l.Close())
		}
		l, attributes = handler.Listener(secured), append(attributes, "authority", file)
	}
	log.Info("reference service started", attributes...)
	return serveAll(p.ctx, log, noDrain, endpoint{listener: l, handler: handler})
}

// newHandler returns the service, and a function that closes it.
func (c *serviceCommand) newHandler(p *process, cfg *config.Config) (*service.Service, func(), error) {
	quirks, err := quirk.Parse([]byte(c.Quirks), quirk.Set{})
	if err != nil {
		return nil, nil, fmt.Errorf("--quirks: %w", err)
	}
	s, err := newService(cfg, c.Seed, quirks)
	if err != nil {
		return nil, nil, err
	}
	if err := c.addWebhook(p, s); err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, s.Close, nil
}

// addWebhook registers the webhook of the command line.
func (c *serviceCommand) addWebhook(p *process, s *service.Service) error {
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

func newService(cfg *config.Config, seed uint64, quirks quirk.Set) (*service.Service, error) {
	return service.New(service.Config{Limits: cfg.Limits.Limits, Seed: seed, Dialect: cfg.Upstream.MustDialect(), Quirks: quirks})
}
