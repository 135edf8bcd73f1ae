package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/policy"
)

type serviceCommand struct {
	Listen string `default:"127.0.0.1:9000" help:"Address."`
	Config string `help:"Configuration whose limits and dialect it takes." placeholder:"FILE"`
	Seed   uint64 `default:"1" help:"What its state is grown from."`
	Faults string `default:"{}" help:"Faults from the start, as PUT /_service/faults takes them." placeholder:"JSON"`
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
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	log.Info("reference service", "address", l.Addr().String())
	return serveAll(p.ctx, log, endpoint{l, s})
}

func newService(cfg *config.Config, seed uint64, faults service.Faults) (*service.Service, error) {
	dialect, err := policy.LoadDialect(cfg.Upstream.Dialect)
	if err != nil {
		return nil, err
	}
	return service.New(service.Config{Limits: cfg.Limits.Limits, Seed: seed, Dialect: dialect, Faults: faults}), nil
}
