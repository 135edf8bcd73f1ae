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
	"github.com/weirgate/weir/internal/front"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/inbound"
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
				g.log.Error("the configuration is not watched", "error", err)
			}
		})
	}
	return serveAll(p.ctx, g.log, g.ending, endpoints...)
}

// endpoint is a listener and who answers on it.
type endpoint struct {
	listener net.Listener
	handler  http.Handler
	front    front.Handler // answers before handler does, by plain HTTP; nil for nobody
	tls      *tls.Config   // nil for plain HTTP
	timeout  time.Duration // to read a request, and to write its answer; 0 for as long as it takes
	// outlives is set for who ends after the others: who watches them, or answers them. Answers of
	// its own that go on and on are ended by ending.
	outlives bool
	ending   func()
}

// serve answers until the server is shut down. What is answered in front of it is of inFront.
func (e endpoint) serve(s *http.Server, inFront *sync.WaitGroup) error {
	switch {
	case e.tls != nil:
		return s.ServeTLS(e.listener, "", "")
	case e.front != nil:
		return front.Serve(s, e.listener, e.front, inFront)
	}
	return s.Serve(e.listener)
}

// ending is how a process ends that answers clients.
type ending struct {
	begin   func()        // tells everybody to go elsewhere
	delay   time.Duration // until everybody has heard it
	timeout time.Duration // what is in flight then may take
}

// ending is as the configuration in force has it.
func (g *gateway) ending() ending {
	c := g.current.Load().config.Drain
	return ending{g.drain.Begin, c.Delay, c.Timeout}
}

// atOnce is the ending of who has no clients that go elsewhere.
func atOnce() ending { return ending{func() {}, 0, 10 * time.Second} }

// lastWords is how long is waited, beyond that, for answers to those who were told that
// they are waited for no longer.
const lastWords = time.Second

// newServer returns a server of bounded patience. What a body and its answer may take
// is for the gateway, and for its listener.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    proxy.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     clientPatience,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// clientPatience is how long a client may take to take in a piece of what it is sent.
const clientPatience = 30 * time.Second

// serveAll answers on every endpoint until ctx ends or one of them fails, then
// lets requests in flight end.
func serveAll(ctx context.Context, log *slog.Logger, end func() ending, endpoints ...endpoint) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	requests, cutOff := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutOff(nil)
	var serving, answering, inFront sync.WaitGroup
	var first, then []*http.Server
	for _, e := range endpoints {
		s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answering.Add(1)
			defer answering.Done()
			e.handler.ServeHTTP(w, r)
		}), log)
		s.TLSConfig = e.tls
		s.ReadTimeout, s.WriteTimeout = e.timeout, e.timeout
		s.BaseContext = func(net.Listener) context.Context { return requests }
		if e.ending != nil {
			s.RegisterOnShutdown(e.ending)
		}
		if e.outlives {
			then = append(then, s)
		} else {
			first = append(first, s)
		}
		serving.Go(func() {
			if err := e.serve(s, &inFront); !errors.Is(err, http.ErrServerClosed) {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	failure := context.Cause(ctx)
	told := errors.Is(failure, context.Canceled)
	last := end()
	if last.begin(); told && last.delay > 0 {
		log.Info("the process stops; clients are still let in for a while", "delay", last.delay, "timeout", last.timeout)
		<-time.After(last.delay)
	}
	late := time.AfterFunc(last.timeout, func() { cutOff(inbound.ErrDrained) })
	defer late.Stop()
	deadline := time.Now().Add(last.timeout + lastWords)
	shutDown(ctx, log, last.timeout+lastWords, first)
	if !awaited(&inFront, time.Until(deadline)) { // of which net/http knows nothing
		log.Warn("requests were cut off", "error", context.DeadlineExceeded)
	}
	shutDown(ctx, log, lastWords, then)
	serving.Wait()
	awaited(&answering, lastWords) // where connections were cut off, who answered over them
	if told {
		return nil
	}
	return failure
}

// shutDown lets servers take no more requests, and waits so long for those in flight.
func shutDown(ctx context.Context, log *slog.Logger, patience time.Duration, servers []*http.Server) {
	deadline, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	var ending sync.WaitGroup
	for _, s := range servers {
		ending.Go(func() {
			if err := s.Shutdown(deadline); err != nil {
				log.Warn("requests were cut off", "error", err)
				_ = s.Close()
			}
		})
	}
	ending.Wait()
}

// awaited waits for a group, but not for longer than so long, and reports whether it has ended.
func awaited(group *sync.WaitGroup, most time.Duration) bool {
	all := make(chan struct{})
	go func() {
		defer close(all)
		group.Wait()
	}()
	select {
	case <-all:
		return true
	case <-time.After(most):
		return false
	}
}
