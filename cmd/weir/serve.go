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
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/screen"
)

type serveCommand struct {
	Config   string `help:"Configuration file." placeholder:"FILE"`
	Listen   string `help:"Address for clients." placeholder:"ADDRESS"`
	Admin    string `help:"Address of the admin listener." placeholder:"ADDRESS"`
	Upstream string `help:"Base URL of the API." placeholder:"URL"`
	Store    string `help:"memory:, memory:/FILE, or a Redis URL." placeholder:"URL"`
	Dialect  string `help:"service or github." placeholder:"NAME"`
}

// source returns the configuration file with the given flags, which override the file.
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

// Run starts the gateway, applies changes of its configuration, and shuts down when the process receives a signal.
func (c *serveCommand) Run(p *process) (err error) {
	if c.Config == "" && c.Upstream == "" {
		return &exit{exitUsage, "upstream.url: required: the base URL of the API: give --upstream URL, or --config FILE"}
	}
	source := c.source(p)
	fingerprint := source.Fingerprint()
	cfg, err := config.Load(source)
	if err != nil {
		return err
	}
	g, err := newGateway(cfg, p.stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	g.load = func() (*config.Config, error) { return config.Load(source) }
	endpoints, err := g.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer cancel()
	if source.Path != "" {
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
		watcher.Go(func() {
			err := config.Watch(ctx, source, fingerprint, hup, func(cause string) {
				if err := notifyReload(func() { g.reloadFor(cause, source.Path) }); err != nil {
					g.log.Warn("systemd could not be notified", "error", err)
				}
			})
			if err != nil {
				g.log.Error("watching the configuration failed; send SIGHUP after a change", "error", err)
			}
		})
	}
	if err := notify("READY=1"); err != nil {
		g.log.Warn("systemd could not be notified", "error", err)
	}
	return serveAll(p.ctx, g.log, g.drainPlan, endpoints...)
}

// endpoint is a listener and its handler.
type endpoint struct {
	listener net.Listener
	handler  http.Handler
	tls      *tls.Config   // nil for plain HTTP
	timeout  time.Duration // for reading a request, and for writing its response; 0 is unlimited
	// An endpoint with last set shuts down after the other endpoints. The admin listener stays reachable during the
	// drain, and the demo's upstream completes forwarded requests.
	last       bool
	onShutdown func() // ends endless responses such as event streams; may be nil
	// connections bounds the connections of the listener; nil without bounds. The connections of a listener with accepted
	// set have been accepted by another listener with the same bounds.
	connections *inbound.Connections
	accepted    bool
}

// drainPlan describes how a process stops.
type drainPlan struct {
	begin   func()        // fails the readiness check and closes the connections of clients after their next response
	delay   time.Duration // the time between begin and the end of listening
	timeout time.Duration // for requests in progress
}

// drainPlan returns the plan of the current configuration.
func (g *gateway) drainPlan() drainPlan {
	c := g.current.Load().config.Drain
	return drainPlan{g.drain.Begin, c.Delay, c.Timeout}
}

// noDrain returns the plan of a process whose clients have no other replica.
func noDrain() drainPlan { return drainPlan{func() {}, 0, 10 * time.Second} }

const (
	// finalTimeout is the additional time to write error responses for requests that were
	// canceled when the drain timed out.
	finalTimeout = time.Second
	// clientWriteTimeout bounds each write to a client.
	clientWriteTimeout = 30 * time.Second
)

// newServer returns a server with timeouts for headers and idle connections. The caller bounds the time for bodies: by
// endpoint.timeout, or in the gateway and its listener.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    screen.MaxHeaderBytes,
		// Without this, net/http would answer "OPTIONS *" before any check of the handler.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100, // clients may assume 100 until they know the number
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     clientWriteTimeout,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// serveAll serves all endpoints until ctx ends or an endpoint fails, and then drains them.
func serveAll(ctx context.Context, log *slog.Logger, plan func() drainPlan, endpoints ...endpoint) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	requests, cancelRequests := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelRequests(nil)
	var serving, handling sync.WaitGroup
	var first, last []*http.Server
	for _, e := range endpoints {
		s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handling.Add(1)
			defer handling.Done()
			e.handler.ServeHTTP(w, r)
		}), log)
		s.TLSConfig = e.tls
		s.ReadTimeout, s.WriteTimeout = e.timeout, e.timeout
		listener := e.listener
		if e.connections != nil {
			e.connections.Observe(s)
			if !e.accepted {
				listener = e.connections.Listener(listener, clientWriteTimeout, log)
			}
		}
		s.BaseContext = func(net.Listener) context.Context { return requests }
		if e.onShutdown != nil {
			s.RegisterOnShutdown(e.onShutdown)
		}
		if e.last {
			last = append(last, s)
		} else {
			first = append(first, s)
		}
		serving.Go(func() {
			serve := s.Serve
			if e.tls != nil {
				serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
			}
			if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
				stop(err)
			}
		})
	}

	<-ctx.Done()
	cause := context.Cause(ctx)
	failed := !errors.Is(cause, context.Canceled)
	p := plan()
	p.begin()
	if err := notify("STOPPING=1"); err != nil {
		log.Warn("systemd could not be notified", "error", err)
	}
	if !failed && p.delay > 0 {
		log.Info("drain started", "delay", p.delay, "timeout", p.timeout)
		<-time.After(p.delay)
	}
	end := time.Now().Add(p.timeout + finalTimeout)
	timer := time.AfterFunc(p.timeout, func() { cancelRequests(inbound.ErrDrained) })
	defer timer.Stop()
	shutDown(ctx, log, p.timeout+finalTimeout, first)
	shutDown(ctx, log, finalTimeout, last)
	serving.Wait()
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		handling.Wait() // also for the handlers of closed connections, and for tunnels, which no server counts
	}()
	select {
	case <-handled:
	case <-time.After(max(finalTimeout, time.Until(end))):
	}
	if failed {
		return cause
	}
	return nil
}

// shutDown shuts servers down and closes the connections that are active at the timeout.
func shutDown(ctx context.Context, log *slog.Logger, timeout time.Duration, servers []*http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	var group sync.WaitGroup
	for _, s := range servers {
		group.Go(func() {
			if err := s.Shutdown(ctx); err != nil {
				log.Warn("requests were cut off", "error", err)
				_ = s.Close()
			}
		})
	}
	group.Wait()
}
