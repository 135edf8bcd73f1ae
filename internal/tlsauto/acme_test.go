package tlsauto

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

const name = "weir.example.com"

// site is a manager with a TLS and a plain HTTP listener, like the gateway.
type site struct {
	*testing.T
	*Manager
	secure, plain net.Listener
	log           *testservers.Output
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// newSite returns a site with open listeners. The method serve starts the servers.
func newSite(t *testing.T, c Config, names Names) *site {
	t.Helper()
	s := &site{T: t, secure: listen(t), plain: listen(t), log: &testservers.Output{}}
	c.Log = slog.New(slog.NewTextHandler(s.log, nil))
	m, err := NewManager(c, names)
	noError(t, err)
	s.Manager = m
	t.Cleanup(func() {
		m.Close()
		if t.Failed() {
			t.Log(s.log)
		}
	})
	return s
}

// serve starts the TLS server and, if plain is set, the plain HTTP server.
func (s *site) serve(plain bool) *site {
	s.Helper()
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMisdirectedRequest) })
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	secure := &http.Server{Handler: hello, TLSConfig: s.TLS(), ErrorLog: quiet}
	servers := []*http.Server{secure}
	var serving sync.WaitGroup
	serving.Go(func() { _ = secure.ServeTLS(s.secure, "", "") }) // ends with Close
	var plainAddress net.Addr
	if plain {
		plainAddress = s.plain.Addr()
		server := &http.Server{Handler: s.Redirect(s.secure.Addr(), plainAddress, misdirected), ErrorLog: quiet}
		serving.Go(func() { _ = server.Serve(s.plain) })
		servers = append(servers, server)
	}
	s.Cleanup(func() {
		for _, server := range servers {
			_ = server.Close()
		}
		serving.Wait()
	})
	s.Start(s.secure.Addr(), plainAddress)
	return s
}

// handshake returns the state of a new TLS connection.
func (s *site) handshake(ctx context.Context, c *tls.Config) (tls.ConnectionState, error) {
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", s.secure.Addr().String())
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// serial waits for a certificate of the CA and returns its serial number.
func (s *site) serial(ca *testservers.ACME, server string) (serial string) {
	s.Helper()
	testservers.Eventually(s, "certificate for "+server, func(ctx context.Context) bool {
		state, err := s.handshake(ctx, &tls.Config{ServerName: server, RootCAs: ca.Roots})
		if err != nil {
			return false
		}
		serial = state.PeerCertificates[0].SerialNumber.Text(16)
		return true
	})
	return serial
}

// The orders run in sequence, because certmagic shares challenges within one process.
func TestOnlyConfiguredNamesAreOrdered(t *testing.T) {
	t.Parallel() // beside TestReplicasShareOneCertificate
	t.Run("only configured names", onlyConfiguredNamesAreOrdered)
	for _, c := range []struct {
		name   string
		plain  bool // HTTP-01 is possible
		alpn   bool // TLS-ALPN-01 is possible
		logged string
	}{
		{"HTTP-01", true, false, "challenge=http-01"},
		{"TLS-ALPN-01", false, true, "challenge=tls-alpn-01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := newSite(t, Config{Storage: NewFolder(dir)}, Names{Domains: []string{name}})
			closed := listen(t)
			_ = closed.Close()
			ca := testservers.NewACME(t, port(s.plain), port(closed))
			if c.alpn {
				ca = testservers.NewACME(t, port(closed), port(s.secure))
			}
			s.config.CA, s.config.Roots = ca.URL, ca.Trust
			s.serve(c.plain)
			first := s.serial(ca, name)
			expiry := s.Expiries()[name]
			failIf(t, !expiry.After(time.Now()), "the certificate expires at %v", expiry)
			failIf(t, !strings.Contains(s.log.String(), c.logged), "the log lacks %s", c.logged)
			orders := ca.Orders() // certmagic may have tried the other challenge first
			restarted := newSite(t, Config{Storage: NewFolder(dir), CA: ca.URL, Roots: ca.Trust}, Names{Domains: []string{name}}).serve(c.plain)
			second := restarted.serial(ca, name)
			failIf(t, second != first || ca.Orders() != orders, "after a restart: certificate %s, want %s; %d more orders", second, first, ca.Orders()-orders)
		})
	}
}

func onlyConfiguredNamesAreOrdered(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory()}, Names{Domains: []string{name}})
	ca := testservers.NewACME(t, port(s.plain), port(s.secure))
	s.config.CA, s.config.Roots = ca.URL, ca.Trust
	s.serve(true)
	s.serial(ca, name)
	for _, c := range []struct {
		name      string
		config    *tls.Config
		protocol  string // negotiated
		completes bool
	}{
		{"other name", &tls.Config{ServerName: "other.example.com"}, "", false},
		{"name below", &tls.Config{ServerName: "sub." + name}, "", false},
		{"challenge of another name", &tls.Config{ServerName: "other.example.com", NextProtos: []string{"acme-tls/1"}}, "", false},
		{"challenge that is not pending", &tls.Config{ServerName: name, NextProtos: []string{"acme-tls/1"}}, "", false},
		{"no name", &tls.Config{NextProtos: []string{"h2"}}, "h2", true},
		{"capitals and TLS 1.2", &tls.Config{ServerName: "WEIR.example.com", MaxVersion: tls.VersionTLS12}, "", true},
		{"TLS 1.1", &tls.Config{ServerName: name, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "", false},
	} {
		c.config.InsecureSkipVerify = true
		state, err := s.handshake(t.Context(), c.config)
		rightVersion := !c.completes || c.config.MaxVersion == 0 || state.Version == c.config.MaxVersion
		failIf(t, (err == nil) != c.completes || state.NegotiatedProtocol != c.protocol || !rightVersion, "%s: %v, protocol %q, version %x", c.name, err, state.NegotiatedProtocol, state.Version)
		if c.completes {
			err := state.PeerCertificates[0].VerifyHostname(name)
			failIf(t, err != nil, "%s: %v", c.name, err)
		}
	}
	n := ca.Orders()
	failIf(t, n != 1, "%d orders, want 1", n)
	noError(t, s.Change(Names{Domains: []string{"second.example.com"}}))
	s.serial(ca, "second.example.com")
	_, err := s.handshake(t.Context(), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	failIf(t, err == nil, "a removed name is still served")
	failIf(t, ca.Orders() != 2 || ca.Accounts() != 1, "%d orders and %d accounts, want 2 and 1", ca.Orders(), ca.Accounts())
}
