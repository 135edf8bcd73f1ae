package tlsauto

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"go.uber.org/zap"
)

// Config is what a manager is made of.
type Config struct {
	Storage Storage        // of certificates, the account and locks; the manager closes it
	CA      string         // URL of the ACME directory; empty for the public default
	Email   string         // of the ACME account; may be empty
	Roots   *x509.CertPool // whom to trust as the ACME server; nil for the system's
	Check   time.Duration  // how often it is looked whether a certificate is due; 0 for ten minutes
	Log     *slog.Logger
}

// Names are what the gateway answers to.
type Names struct {
	Domains []string // to have certificates for by ACME, in lower case
	Pairs   []Pair   // the operator's own; they go before those of ACME
}

const (
	checkEvery = 10 * time.Minute
	// orderPatience bounds one attempt to have a certificate, in which the library
	// asks the CA again at growing distances, and the wait for the lock before. It
	// ends at once where the storage is away. orderPause is between two attempts,
	// doubled up to longestPause.
	orderPatience = 10 * time.Minute
	orderPause    = 15 * time.Second
	longestPause  = time.Hour
	// filesEvery is how often the operator's files are looked at.
	filesEvery = 10 * time.Second
)

// Manager has the certificates. It is safe for concurrent use.
type Manager struct {
	config   Config
	log      *slog.Logger
	cache    *certmagic.Cache
	magic    atomic.Pointer[certmagic.Config] // nil before Start
	issuer   atomic.Pointer[certmagic.ACMEIssuer]
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
	changing sync.Mutex
	current  atomic.Pointer[answers]
}

// answers is what is answered for, at a time.
type answers struct {
	domains []string
	pairs   []*loaded
	orders  map[string]context.CancelFunc // by domain, of those that were begun
}

// NewManager returns a manager of the names; an error is of a pair of files. Close
// it, which closes the storage, too.
func NewManager(c Config, names Names) (*Manager, error) {
	if c.Check == 0 {
		c.Check = checkEvery
	}
	m := &Manager{config: c, log: c.Log}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.current.Store(&answers{})
	if err := m.Change(names); err != nil {
		m.stop()
		return nil, errors.Join(err, m.config.Storage.Close())
	}
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic.Load(), nil },
		RenewCheckInterval: c.Check,
		Logger:             zapLogger(c.Log),
	})
	m.running.Go(m.watchPairs)
	return m, nil
}

// Start begins to order what is missing and to renew what is due. secure is where
// TLS is answered, plain where [Manager.Redirect] is, nil where it is nowhere:
// without it there are no HTTP-01 challenges. Both are listened on already.
func (m *Manager) Start(secure, plain net.Addr) {
	logger := zapLogger(m.log)
	magic := certmagic.New(m.cache, certmagic.Config{Storage: m.config.Storage, Logger: logger})
	host, port := split(secure)
	template := certmagic.ACMEIssuer{
		CA: m.config.CA, Email: m.config.Email, Agreed: true, TrustedRoots: m.config.Roots, Logger: logger,
		ListenHost: host, AltTLSALPNPort: port, DisableHTTPChallenge: plain == nil,
	}
	if plain != nil {
		_, template.AltHTTPPort = split(plain)
	}
	issuer := certmagic.NewACMEIssuer(magic, template)
	magic.Issuers = []certmagic.Issuer{issuer}
	m.issuer.Store(issuer)
	m.magic.Store(magic)
	m.changing.Lock()
	defer m.changing.Unlock()
	m.order(m.current.Load())
}

// split tells host and port of a listener's address.
func split(a net.Addr) (host string, port int) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return "", 0
	}
	if t.IP.IsUnspecified() {
		return "", t.Port
	}
	return t.IP.String(), t.Port
}

// Change puts other names in the place of the ones before. An error is of a pair of
// files, and then nothing has changed.
func (m *Manager) Change(names Names) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	next := &answers{domains: slices.Clone(names.Domains), orders: map[string]context.CancelFunc{}}
	for _, p := range names.Pairs {
		l, err := load(p)
		if err != nil {
			return err
		}
		next.pairs = append(next.pairs, l)
	}
	before := m.current.Load()
	var gone []certmagic.SubjectIssuer
	for name, cancel := range before.orders {
		if slices.Contains(next.domains, name) {
			next.orders[name] = cancel
			continue
		}
		cancel()
		gone = append(gone, certmagic.SubjectIssuer{Subject: name})
	}
	m.current.Store(next)
	if len(gone) > 0 {
		m.cache.RemoveManaged(gone)
	}
	m.order(next)
	return nil
}

// order begins to have what is not begun. The caller holds changing.
func (m *Manager) order(a *answers) {
	if m.magic.Load() == nil {
		return // Start will
	}
	for _, name := range a.domains {
		if a.orders[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(m.ctx)
		a.orders[name] = cancel
		m.running.Go(func() { m.have(ctx, name) })
	}
}

// have tries until there is a certificate for the name in use, or the context has
// ended. Renewal is the business of the cache from then on.
func (m *Manager) have(ctx context.Context, name string) {
	for pause := orderPause; ; pause = min(2*pause, longestPause) {
		err := m.obtain(ctx, name)
		if err == nil || ctx.Err() != nil {
			return
		}
		m.log.Error("there is no certificate yet", "name", name, "again_in", pause, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// obtain has a certificate in the storage and takes it up, renewed where it is due.
func (m *Manager) obtain(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, orderPatience)
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
	m.log.Info("certificate", "name", name, "serial", cert.Leaf.SerialNumber.Text(16), "until", cert.Leaf.NotAfter)
	return nil
}

// Expiries tells until when the certificates are valid that clients are shown, by name:
// those of ACME by their domain, the operator's own by their first.
func (m *Manager) Expiries() map[string]time.Time {
	a := m.current.Load()
	ends := make(map[string]time.Time, len(a.domains)+len(a.pairs))
	for _, name := range a.domains {
		for _, c := range m.cache.AllMatchingCertificates(name) {
			if c.Leaf.NotAfter.After(ends[name]) {
				ends[name] = c.Leaf.NotAfter
			}
		}
	}
	for _, l := range a.pairs {
		leaf := l.certificate.Load().Leaf
		name := leaf.Subject.CommonName
		if len(leaf.DNSNames) > 0 {
			name = leaf.DNSNames[0]
		}
		if before, ok := ends[name]; !ok || leaf.NotAfter.Before(before) {
			ends[name] = leaf.NotAfter
		}
	}
	return ends
}

// Close ends what Start has begun, releases locks, and closes the storage.
func (m *Manager) Close() error {
	m.stop()
	m.running.Wait()
	m.cache.Stop()
	return m.config.Storage.Close()
}

// TLS returns the configuration of a listener: TLS 1.2 and up with the cipher
// suites that Go has for good, HTTP/2, and TLS-ALPN-01 challenges.
func (m *Manager) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1", acmez.ACMETLS1Protocol},
		GetCertificate: m.certificate,
	}
}

// certificate chooses the one for a handshake. Who names nothing gets the first
// there is; who names what is not configured gets none.
func (m *Manager) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	a, name := m.current.Load(), strings.ToLower(hello.ServerName)
	listed := slices.Contains(a.domains, name)
	if slices.Contains(hello.SupportedProtos, acmez.ACMETLS1Protocol) {
		if magic := m.magic.Load(); listed && magic != nil {
			return magic.GetCertificate(hello)
		}
		return nil, fmt.Errorf("no challenge for %q", name)
	}
	if c := a.pair(hello, name); c != nil {
		return c, nil
	}
	if name == "" && len(a.domains) > 0 {
		anonymous := *hello
		anonymous.ServerName, hello, listed = a.domains[0], &anonymous, true
	}
	if magic := m.magic.Load(); listed && magic != nil {
		return magic.GetCertificate(hello)
	}
	return nil, fmt.Errorf("no certificate for %q", name)
}

// pair returns the operator's own certificate for a name that the client can
// verify, else one for the name; nil where there is none.
func (a *answers) pair(hello *tls.ClientHelloInfo, name string) *tls.Certificate {
	var found *tls.Certificate
	for _, l := range a.pairs {
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

// serves reports whether a host is one that is answered for.
func (a *answers) serves(host string) bool {
	return slices.Contains(a.domains, host) ||
		slices.ContainsFunc(a.pairs, func(l *loaded) bool { return l.covers(host) })
}

// zapLogger is where the ACME library writes what it has to say.
func zapLogger(log *slog.Logger) *zap.Logger { return zap.New(zapCore{log.Handler()}) }
