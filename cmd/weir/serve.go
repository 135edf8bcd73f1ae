package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/proxy"
)

type serveCommand struct {
	Config   string `help:"Configuration file." placeholder:"FILE"`
	Listen   string `help:"Address for clients." placeholder:"ADDRESS"`
	Admin    string `help:"Address for the operator." placeholder:"ADDRESS"`
	Upstream string `help:"Base URL of the API." placeholder:"URL"`
	Store    string `help:"memory:, memory:/FILE, or a Redis URL." placeholder:"URL"`
	Dialect  string `help:"service or github." placeholder:"NAME"`
}

// source lays the flags that were given over the file.
func (c *serveCommand) source(p *process) config.Source {
	s := config.Source{Path: c.Config, Getenv: p.getenv, Flags: map[string]string{}, FlagNames: map[string]string{}}
	for _, f := range []struct{ key, name, value string }{
		{"listen", "--listen", c.Listen},
		{"admin.listen", "--admin", c.Admin},
		{"upstream.url", "--upstream", c.Upstream},
		{"store.url", "--store", c.Store},
		{"upstream.dialect", "--dialect", c.Dialect},
	} {
		if f.value != "" {
			s.Flags[f.key], s.FlagNames[f.key] = f.value, f.name
		}
	}
	return s
}

// Run serves until the process is told to stop, and takes up a changed
// configuration on the way.
func (c *serveCommand) Run(p *process) error {
	if c.Config == "" && c.Upstream == "" {
		return &exit{exitUsage, "upstream.url: required: the base URL of the API: give --upstream URL, or --config FILE"}
	}
	source := c.source(p)
	before := source.Fingerprint()
	cfg, err := config.Load(source)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	g, err := newGateway(cfg, log)
	if err != nil {
		return err
	}
	defer g.close()
	g.reload = func() error {
		changed, err := config.Load(source)
		return g.take(changed, err)
	}
	endpoints, err := g.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	if source.Path != "" {
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
		watching.Go(func() {
			err := config.Watch(ctx, source, before, hup, func(cause string, changed *config.Config, err error) {
				g.takeFrom(source.Path, cause, changed, err)
			})
			if err != nil {
				log.Error("the configuration is not watched", "error", err)
			}
		})
	}
	return serveAll(p.ctx, log, endpoints...)
}

// endpoint is a listener and who answers on it.
type endpoint struct {
	listener net.Listener
	handler  http.Handler
	tls      *tls.Config   // nil for plain HTTP
	timeout  time.Duration // to read a request, and to write its answer; 0 for as long as it takes
}

// serve answers until the server is shut down.
func (e endpoint) serve(s *http.Server) error {
	if e.tls != nil {
		return s.ServeTLS(e.listener, "", "")
	}
	return s.Serve(e.listener)
}

// drain is how long requests in flight may take when the process stops.
const drain = 10 * time.Second

// serveAll answers on every endpoint until ctx ends or one of them fails, then
// lets requests in flight end.
func serveAll(ctx context.Context, log *slog.Logger, endpoints ...endpoint) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	servers := make([]*http.Server, len(endpoints))
	for i, e := range endpoints {
		servers[i] = &http.Server{
			Handler:           e.handler,
			TLSConfig:         e.tls,
			ReadTimeout:       e.timeout,
			WriteTimeout:      e.timeout,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    proxy.MaxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		}
		serving.Go(func() {
			if err := e.serve(servers[i]); !errors.Is(err, http.ErrServerClosed) {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	failure := context.Cause(ctx)
	deadline, done := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer done()
	for _, s := range servers {
		if err := s.Shutdown(deadline); err != nil {
			log.Warn("requests were cut off", "error", err)
			_ = s.Close()
		}
	}
	serving.Wait()
	if errors.Is(failure, context.Canceled) {
		return nil
	}
	return failure
}
