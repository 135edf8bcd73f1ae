package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
)

// listenerTimeout bounds reading a request of the operator's, and writing its answer.
const listenerTimeout = 30 * time.Second

// operator opens the operator's listener. One that others than this machine reach is
// closed again unless it asks for a token or a certificate, whatever the configuration
// calls its address.
func (g *gateway) operator(a config.Admin) (endpoint, error) {
	listener, err := net.Listen("tcp", a.Listen)
	if err != nil {
		return endpoint{}, fmt.Errorf("admin.listen: %w", err)
	}
	if !g.access(a).Guarded() && !onLoopback(listener.Addr()) {
		_ = listener.Close()
		return endpoint{}, fmt.Errorf("admin.listen: %s is not on loopback: set admin.token, or admin.tls.client_ca", listener.Addr())
	}
	e := endpoint{listener: listener, handler: g.admin(a), timeout: listenerTimeout, outlives: true, ending: g.history.Close}
	if current := g.adminTLS.Load(); current != nil {
		e.tls = current.Clone()
		e.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.adminTLS.Load(), nil }
	}
	return e, nil
}

// onLoopback reports whether nobody but this machine reaches an address.
func onLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// changeAdminTLS reads the files of the operator's HTTPS, at the start and with each
// reload. Whether there is any, and whether it lets in by certificates, is for the
// next start: nothing that a reload does makes the listener easier to enter.
func (g *gateway) changeAdminTLS(a config.Admin) error {
	t, started := a.TLS, g.started.Admin.TLS
	if !t.Enabled() || !started.Enabled() || (t.ClientCA == "") != (started.ClientCA == "") {
		return nil
	}
	loaded, err := t.Load()
	if err != nil {
		return fmt.Errorf("admin.tls: %w", err)
	}
	g.adminTLS.Store(loaded)
	return nil
}

func (g *gateway) access(a config.Admin) admin.Access {
	access := admin.Access{Token: a.Token, Hosts: a.Hosts}
	if a.TLS.ClientCA != "" {
		access.Authorities = func() *x509.CertPool { return g.adminTLS.Load().ClientCAs }
	}
	return access
}

func (g *gateway) admin(a config.Admin) http.Handler {
	return admin.Handler(g.access(a), admin.Sources{
		Ready:    func() bool { return !g.drain.Begun() },
		Accounts: g.store.Accounts,
		Refused:  func() any { return g.credentialHealth.Quarantined() },
		Requests: g.requests,
		Config:   func() any { return g.current.Load().config.Masked() },
		Reload:   func() error { return g.reload() },
		Cache:    g.cache.Size,
		Metrics:  g.telemetry,
		Purge:    g.purge,
		Trail:    g.trail,
		State:    g.state,
		History:  g.history,
	})
}

// requests are the last ones, each with its explanation.
func (g *gateway) requests() any {
	recent := g.current.Load().proxy.Recent()
	told := make([]history.Request, len(recent))
	for i := range recent {
		told[i] = history.NewRequest(&recent[i])
	}
	return told
}

// purge makes stale, or drops, what the cache holds of a tag or a target.
func (g *gateway) purge(p admin.Purge) (entries int, err error) {
	tag := p.Tag
	if p.URL != "" {
		if tag, err = g.current.Load().proxy.TagOf(p.URL); err != nil {
			return 0, err
		}
	}
	if p.Hard {
		return g.cache.PurgeHard(context.Background(), tag), nil
	}
	entries = g.cache.Count(tag)
	g.cache.Purge(context.Background(), tag)
	return entries, nil
}

// takeFrom is take of a configuration that was read anew for a cause that is no
// request, on the record.
func (g *gateway) takeFrom(path, cause string, c *config.Config, err error) {
	err = g.take(c, err)
	g.trail.Record(admin.Change{Operator: cause, Action: "reload", Target: path, Outcome: admin.Outcome(err, "in force")})
}
