package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/tlsauto"
)

// openTLS makes what has the certificates; nil where clients come by plain HTTP.
func openTLS(c *config.Config, log *slog.Logger) (*tlsauto.Manager, error) {
	if !c.TLS.Enabled() {
		return nil, nil
	}
	storage, err := openStorage(c, log)
	if err != nil {
		return nil, err
	}
	return tlsauto.NewManager(tlsauto.Config{Storage: storage, CA: c.TLS.CA, Email: c.TLS.Email, Log: log}, tlsNames(c))
}

// openStorage opens where certificates by ACME are kept.
func openStorage(c *config.Config, log *slog.Logger) (tlsauto.Storage, error) {
	if c.TLS.Storage != "store" {
		return tlsauto.NewFolder(c.TLS.Storage), nil
	}
	if strings.HasPrefix(c.Store.URL, "memory:") {
		if len(c.TLS.Domains) > 0 {
			log.Warn("certificates end with this process, and the next one orders new ones: let tls.storage name a folder, or store.url a Redis")
		}
		return tlsauto.NewMemory(), nil
	}
	if c.Cache.Key == "" && len(c.TLS.Domains) > 0 {
		log.Warn("private keys lie open in Redis: set cache.key")
	}
	client, err := redisclient.Open(c.Store.URL, nil)
	if err != nil {
		return nil, err
	}
	return tlsauto.NewRedis(client, []byte(c.Cache.Key.Reveal()), log)
}

// tlsNames are what the configuration wants to be answered for.
func tlsNames(c *config.Config) tlsauto.Names {
	names := tlsauto.Names{Domains: c.TLS.Domains}
	for _, own := range c.TLS.Certificates {
		names.Pairs = append(names.Pairs, tlsauto.Pair{Certificate: own.Certificate, Key: own.Key})
	}
	return names
}

// secure makes an endpoint for clients answer TLS, and adds the one for plain HTTP,
// where the configuration has them. It begins to order certificates.
func (g *gateway) secure(clients endpoint, c *config.Config) ([]endpoint, error) {
	if g.tls == nil {
		return []endpoint{clients}, nil
	}
	clients.tls = g.asking(g.tls.TLS())
	if c.TLS.HTTP == "" {
		g.tls.Start(clients.listener.Addr(), nil)
		return []endpoint{clients}, nil
	}
	plain, err := net.Listen("tcp", c.TLS.HTTP)
	if err != nil {
		return nil, fmt.Errorf("tls.http: %w", err)
	}
	g.log.Info("redirect", "address", plain.Addr().String())
	g.tls.Start(clients.listener.Addr(), plain.Addr())
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.current.Load().proxy.Misdirected(w, r) })
	return []endpoint{clients, {listener: g.connections.Listener(plain, clientPatience, g.log), handler: g.tls.Redirect(clients.listener.Addr(), plain.Addr(), misdirected)}}, nil
}

// asking makes a TLS configuration ask for clients' certificates as the gateway's
// configuration in force at each handshake has it.
func (g *gateway) asking(base *tls.Config) *tls.Config {
	asking := base.Clone()
	asking.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		one := base.Clone()
		one.ClientAuth, one.ClientCAs = g.current.Load().callers.ClientAuth()
		return one, nil
	}
	return asking
}

// changeTLS takes up the names of a configuration read anew; an error is of a
// certificate of one's own. Whether there is TLS at all is for the next start.
func (g *gateway) changeTLS(c *config.Config) error {
	if g.tls == nil || !c.TLS.Enabled() {
		return nil
	}
	return g.tls.Change(tlsNames(c))
}
