package main

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/tlsauto"
)

// openTLS returns the manager of the certificates for clients, or nil without TLS.
func openTLS(c *config.Config, client redis.UniversalClient, out *egress, log *slog.Logger) (*tlsauto.Manager, error) {
	if !c.TLS.Enabled() {
		return nil, nil
	}
	storage, err := openCertificateStorage(c, client, log)
	if err != nil {
		return nil, err
	}
	return tlsauto.NewManager(tlsauto.Config{Storage: storage, CA: c.TLS.CA, Email: c.TLS.Email, Proxy: out.proxy, Log: log}, tlsNames(c))
}

// openCertificateStorage opens the storage of ACME certificates: a folder, Redis or memory.
func openCertificateStorage(c *config.Config, client redis.UniversalClient, log *slog.Logger) (tlsauto.Storage, error) {
	if c.TLS.Storage != "store" {
		return tlsauto.NewFolder(c.TLS.Storage), nil
	}
	acme := len(c.TLS.Domains) > 0
	if client == nil {
		if acme {
			log.Warn("certificates will be lost at the end of this process; set tls.storage to a folder, or store.url to a Redis")
		}
		return tlsauto.NewMemory(), nil
	}
	if acme && c.Cache.Key == "" {
		log.Warn("private keys are stored unencrypted in Redis; set cache.key")
	}
	return tlsauto.NewRedis(client, []byte(c.Cache.Key.Reveal()), log)
}

// tlsNames returns the domains and certificate files of a configuration.
func tlsNames(c *config.Config) tlsauto.Names {
	names := tlsauto.Names{Domains: c.TLS.Domains}
	for _, own := range c.TLS.Certificates {
		names.Pairs = append(names.Pairs, tlsauto.Pair{Certificate: own.Certificate, Key: own.Key})
	}
	return names
}

// redirectTimeout bounds the time to read a request on the redirect listener, and the time to write its response.
const redirectTimeout = 10 * time.Second

// withTLS adds TLS to the endpoint for clients and starts the ACME orders. withTLS also
// returns the endpoint that redirects plain HTTP, if configured.
func (g *gateway) withTLS(clients endpoint, c *config.Config) ([]endpoint, error) {
	if g.tls == nil {
		return []endpoint{clients}, nil
	}
	base := g.tls.TLS()
	clients.tls = base.Clone()
	// Each handshake requests client certificates as the current configuration requires.
	clients.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		handshake := base.Clone()
		handshake.ClientAuth, handshake.ClientCAs = g.current.Load().callers.ClientAuth()
		return handshake, nil
	}
	address := clients.listener.Addr()
	if c.TLS.HTTP == "" {
		g.tls.Start(address, nil)
		return []endpoint{clients}, nil
	}
	plain, err := listenTCP("tls.http", c.TLS.HTTP)
	if err != nil {
		return nil, err
	}
	g.log.Info("redirect listener started", "address", plain.Addr().String())
	g.tls.Start(address, plain.Addr())
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.current.Load().proxy.Misdirected(w, r) })
	redirect := endpoint{
		listener: plain,
		handler:  g.tls.Redirect(address, plain.Addr(), misdirected), connections: &g.connections, timeout: redirectTimeout,
	}
	return []endpoint{clients, redirect}, nil
}
