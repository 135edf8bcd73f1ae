package tlsauto

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"go.uber.org/zap"
)

// Config configures a manager.
type Config struct {
	Storage Storage        // holds certificates, the account and locks; the manager closes it
	CA      string         // URL of the ACME directory; empty for Let's Encrypt
	Email   string         // of the ACME account; optional
	Roots   *x509.CertPool // trusted roots for the connection to the ACME server; nil for the system's roots
	Check   time.Duration  // interval between checks for due renewals; 0 for the library's default
	Log     *slog.Logger
	// Proxy returns the proxy for a request to the ACME server; nil for no proxy. Variables of the environment have no effect.
	Proxy func(*http.Request) (*url.URL, error)
}

// Names are the names for which the gateway has certificates.
type Names struct {
	Domains []string // names to order from the ACME server, in lower case
	Pairs   []Pair   // the operator's certificates, which take precedence over certificates from ACME
}

const (
	// orderTimeout bounds one order, including the wait for the lock of the name. certmagic retries within this time.
	orderTimeout = 10 * time.Minute
	// minOrderPause and maxOrderPause bound the backoff between two orders of a name.
	minOrderPause = 15 * time.Second
	maxOrderPause = time.Hour
)

// Manager serves and renews certificates. It is safe for concurrent use.
type Manager struct {
	config   Config
	cache    *certmagic.Cache
	magic    atomic.Pointer[certmagic.Config] // nil before Start
	issuer   atomic.Pointer[certmagic.ACMEIssuer]
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
	changing sync.Mutex
	current  atomic.Pointer[served]
}

// served is the set of names in force.
type served struct {
	domains []string
	pairs   []*loadedPair
	orders  map[string]context.CancelFunc // by domain
}

// NewManager returns a manager for the names, or an error if a pair of files is invalid. [Manager.Close] closes the
// manager and its storage.
func NewManager(c Config, names Names) (*Manager, error) {
	m := &Manager{config: c}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.current.Store(&served{})
	if err := m.Change(names); err != nil {
		m.stop()
		m.config.Storage.Close()
		return nil, err
	}
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic.Load(), nil },
		RenewCheckInterval: c.Check,
		Logger:             zapLogger(c.Log),
	})
	m.running.Go(m.watchPairs)
	return m, nil
}

// Start starts the orders of missing certificates and the renewals of due certificates. secure is the address of the
// TLS listener. plain is the address of the listener that serves [Manager.Redirect]; a nil plain disables HTTP-01. Both
// listeners must be open.
func (m *Manager) Start(secure, plain net.Addr) {
	logger := zapLogger(m.config.Log)
	proxy := m.config.Proxy
	if proxy == nil {
		proxy = http.ProxyURL(nil)
	}
	magic := certmagic.New(m.cache, certmagic.Config{Storage: m.config.Storage, Logger: logger, OCSP: certmagic.OCSPConfig{HTTPProxy: proxy}})
	host, port := splitAddress(secure)
	template := certmagic.ACMEIssuer{
		CA: m.config.CA, Email: m.config.Email, Agreed: true, TrustedRoots: m.config.Roots, Logger: logger,
		ListenHost: host, AltTLSALPNPort: port, DisableHTTPChallenge: plain == nil, HTTPProxy: proxy,
	}
	if plain != nil {
		_, template.AltHTTPPort = splitAddress(plain)
	}
	issuer := certmagic.NewACMEIssuer(magic, template)
	magic.Issuers = []certmagic.Issuer{issuer}
	m.issuer.Store(issuer)
	m.magic.Store(magic)
	m.changing.Lock()
	defer m.changing.Unlock()
	m.orderLocked(m.current.Load())
}

// splitAddress returns host and port of a listener. The host is empty for all interfaces.
func splitAddress(a net.Addr) (host string, port int) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return "", 0
	}
	if t.IP.IsUnspecified() {
		return "", t.Port
	}
	return t.IP.String(), t.Port
}

// Change replaces the names. If a pair of files is invalid, Change returns an error and keeps the names.
func (m *Manager) Change(names Names) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	next := &served{domains: slices.Clone(names.Domains), orders: map[string]context.CancelFunc{}}
	for _, p := range names.Pairs {
		l, err := load(p)
		if err != nil {
			return err
		}
		next.pairs = append(next.pairs, l)
	}
	var removed []certmagic.SubjectIssuer
	for name, cancel := range m.current.Load().orders {
		if slices.Contains(next.domains, name) {
			next.orders[name] = cancel
			continue
		}
		cancel()
		removed = append(removed, certmagic.SubjectIssuer{Subject: name})
	}
	m.current.Store(next)
	if len(removed) > 0 {
		m.cache.RemoveManaged(removed)
	}
	m.orderLocked(next)
	return nil
}

// orderLocked starts the orders that are not running. changing must be held.
func (m *Manager) orderLocked(s *served) {
	if m.magic.Load() == nil {
		return // Start will start the orders
	}
	for _, name := range s.domains {
		if s.orders[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(m.ctx)
		s.orders[name] = cancel
		m.running.Go(func() { m.order(ctx, name) })
	}
}

// order retries until a certificate for the name is in use or the context ends. Afterwards the cache renews the
// certificate.
func (m *Manager) order(ctx context.Context, name string) {
	for pause := minOrderPause; ; pause = min(2*pause, maxOrderPause) {
		err := m.obtain(ctx, name)
		if err == nil || ctx.Err() != nil {
			return
		}
		m.config.Log.Error("certificate order failed", "name", name, "retry_in", pause, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// obtain loads the certificate from the storage. A missing certificate is ordered, and a due certificate is renewed.
func (m *Manager) obtain(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	magic := m.magic.Load()
	if err := magic.ObtainCertAsync(ctx, name); err != nil {
		return err
	}
	cert, err := magic.CacheManagedCertificate(ctx, name)
	if err == nil && cert.NeedsRenewal(magic) {
		if err = magic.RenewCertAsync(ctx, name, false); err == nil {
			cert, err = magic.CacheManagedCertificate(ctx, name)
		}
	}
	if err != nil {
		return err
	}
	m.config.Log.Info("certificate loaded", "name", name, "serial", cert.Leaf.SerialNumber.Text(16), "expires", cert.Leaf.NotAfter)
	return nil
}

// Expiries returns the expiry times of the served certificates by name. The name is the domain for a certificate from
// ACME, and the first name of the certificate for an operator's certificate.
func (m *Manager) Expiries() map[string]time.Time {
	s := m.current.Load()
	expiries := make(map[string]time.Time, len(s.domains)+len(s.pairs))
	for _, name := range s.domains {
		for _, c := range m.cache.AllMatchingCertificates(name) {
			if c.Leaf.NotAfter.After(expiries[name]) {
				expiries[name] = c.Leaf.NotAfter
			}
		}
	}
	for _, l := range s.pairs {
		leaf := l.certificate.Load().Leaf
		name := leaf.Subject.CommonName
		if len(leaf.DNSNames) > 0 {
			name = leaf.DNSNames[0]
		}
		if other, ok := expiries[name]; !ok || leaf.NotAfter.Before(other) {
			expiries[name] = leaf.NotAfter
		}
	}
	return expiries
}

// Close stops all orders and renewals, releases the locks and closes the storage.
func (m *Manager) Close() {
	m.stop()
	m.running.Wait()
	m.cache.Stop()
	m.config.Storage.Close()
}

// TLS returns the configuration for a listener: TLS 1.2 or later, Go's default cipher suites, HTTP/2, and
// TLS-ALPN-01 challenges.
func (m *Manager) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1", acmez.ACMETLS1Protocol},
		GetCertificate: m.certificate,
	}
}

// certificate selects the certificate for a handshake. A client without a server name gets the first certificate. An
// unknown server name is an error.
func (m *Manager) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	s, name := m.current.Load(), strings.ToLower(hello.ServerName)
	listed := slices.Contains(s.domains, name)
	if slices.Contains(hello.SupportedProtos, acmez.ACMETLS1Protocol) {
		if magic := m.magic.Load(); listed && magic != nil {
			return magic.GetCertificate(hello)
		}
		return nil, fmt.Errorf("no challenge for %q", name)
	}
	if c := s.pair(hello, name); c != nil {
		return c, nil
	}
	if name == "" && len(s.domains) > 0 {
		named := *hello
		named.ServerName, hello, listed = s.domains[0], &named, true
	}
	if magic := m.magic.Load(); listed && magic != nil {
		return magic.GetCertificate(hello)
	}
	return nil, fmt.Errorf("no certificate for %q", name)
}

// pair returns the operator's certificate for a name. A certificate that the client supports is preferred, otherwise
// the first certificate for the name is returned. If no pair covers the name, pair returns nil.
func (s *served) pair(hello *tls.ClientHelloInfo, name string) *tls.Certificate {
	var found *tls.Certificate
	for _, l := range s.pairs {
		c := l.certificate.Load()
		if name != "" && !l.covers(name) {
			continue
		}
		if hello.SupportsCertificate(c) == nil {
			return c
		}
		if found == nil {
			found = c
		}
	}
	return found
}

// serves reports whether a host is configured.
func (s *served) serves(host string) bool {
	return slices.Contains(s.domains, host) ||
		slices.ContainsFunc(s.pairs, func(l *loadedPair) bool { return l.covers(host) })
}

// zapLogger returns a logger for the ACME library that writes to slog.
func zapLogger(log *slog.Logger) *zap.Logger { return zap.New(zapCore{log.Handler()}) }
