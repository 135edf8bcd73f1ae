package tlsauto

import (
	"bytes"
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

	"github.com/weirgate/weir/internal/acmetest"
	"github.com/weirgate/weir/internal/redistest"
)

const name = "weir.example.com"

// site is a manager with listeners of its own, as cmd/weir has them.
type site struct {
	*testing.T
	*Manager
	secure, plain net.Listener
	log           *transcript
}

// transcript is what was logged.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *transcript) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *transcript) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// newSite makes a site; begin begins it.
func newSite(t *testing.T, c Config, names Names) *site {
	t.Helper()
	s := &site{T: t, secure: listen(t), plain: listen(t), log: &transcript{}}
	c.Log = slog.New(slog.NewTextHandler(s.log, nil))
	m, err := NewManager(c, names)
	if err != nil {
		t.Fatal(err)
	}
	s.Manager = m
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(s.log)
		}
	})
	return s
}

// begin answers on both listeners, on the plain one only where it is to.
func (s *site) begin(plain bool) *site {
	s.Helper()
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	misdirected := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMisdirectedRequest) })
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	secure := &http.Server{Handler: hello, TLSConfig: s.TLS(), ErrorLog: quiet}
	servers := []*http.Server{secure}
	var serving sync.WaitGroup
	serving.Go(func() { _ = secure.ServeTLS(s.secure, "", "") }) // ends by Close
	var at net.Addr
	if plain {
		at = s.plain.Addr()
		server := &http.Server{Handler: s.Redirect(s.secure.Addr(), at, misdirected), ErrorLog: quiet}
		serving.Go(func() { _ = server.Serve(s.plain) })
		servers = append(servers, server)
	}
	s.Cleanup(func() {
		for _, server := range servers {
			_ = server.Close()
		}
		serving.Wait()
	})
	s.Start(s.secure.Addr(), at)
	return s
}

// shake does a handshake.
func (s *site) shake(ctx context.Context, c *tls.Config) (tls.ConnectionState, error) {
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", s.secure.Addr().String())
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// serial waits for a certificate that the CA vouches for.
func (s *site) serial(ca *acmetest.Server, server string) (serial string) {
	s.Helper()
	redistest.Eventually(s, "there is a certificate for "+server, func(ctx context.Context) bool {
		state, err := s.shake(ctx, &tls.Config{ServerName: server, RootCAs: ca.Roots})
		if err != nil {
			return false
		}
		serial = state.PeerCertificates[0].SerialNumber.Text(16)
		return true
	})
	return serial
}

func TestCertificateByEachChallenge(t *testing.T) {
	for _, c := range []struct {
		name  string
		plain bool // HTTP-01 can be asked for
		alpn  bool // TLS-ALPN-01 can be asked for
		says  string
	}{
		{"HTTP-01 alone", true, false, "challenge=http-01"},
		{"TLS-ALPN-01 alone", false, true, "challenge=tls-alpn-01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := newSite(t, Config{Storage: NewFolder(dir)}, Names{Domains: []string{name}})
			nowhere := listen(t)
			_ = nowhere.Close()
			ca := acmetest.New(t, port(s.plain), port(nowhere))
			if c.alpn {
				ca = acmetest.New(t, port(nowhere), port(s.secure))
			}
			s.config.CA, s.config.Roots = ca.URL, ca.Trust
			s.begin(c.plain)
			first := s.serial(ca, name)
			if end := s.Expiries()[name]; !end.After(time.Now()) {
				t.Errorf("the certificate ends at %v", end)
			}
			if !strings.Contains(s.log.String(), c.says) {
				t.Errorf("never said %s", c.says)
			}
			orders := ca.Orders() // the other challenge may have been tried first
			again := newSite(t, Config{Storage: NewFolder(dir), CA: ca.URL, Roots: ca.Trust}, Names{Domains: []string{name}}).begin(c.plain)
			if second := again.serial(ca, name); second != first || ca.Orders() != orders {
				t.Errorf("after a start: %s for %s, %d more orders", second, first, ca.Orders()-orders)
			}
		})
	}
}

func TestAttack49OnlyListedNamesAreOrdered(t *testing.T) {
	s := newSite(t, Config{Storage: NewMemory()}, Names{Domains: []string{name}})
	ca := acmetest.New(t, port(s.plain), port(s.secure))
	s.config.CA, s.config.Roots = ca.URL, ca.Trust
	s.begin(true)
	s.serial(ca, name)
	for _, c := range []*tls.Config{
		{ServerName: "other.example.com"},
		{ServerName: "sub." + name},
		{ServerName: "other.example.com", NextProtos: []string{"acme-tls/1"}},
		{ServerName: name, NextProtos: []string{"acme-tls/1"}}, // no challenge is on
	} {
		c.InsecureSkipVerify = true
		if _, err := s.shake(t.Context(), c); err == nil {
			t.Errorf("%s %v: got a certificate", c.ServerName, c.NextProtos)
		}
	}
	if state, err := s.shake(t.Context(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}); err != nil {
		t.Errorf("by address: %v", err)
	} else if err := state.PeerCertificates[0].VerifyHostname(name); err != nil || state.NegotiatedProtocol != "h2" {
		t.Errorf("by address: %v, %q", err, state.NegotiatedProtocol)
	}
	if state, err := s.shake(t.Context(), &tls.Config{ServerName: "WEIR.example.com", InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err != nil || state.Version != tls.VersionTLS12 {
		t.Errorf("TLS 1.2, in capitals: %v", err)
	}
	if _, err := s.shake(t.Context(), &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	if n := ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
	if err := s.Change(Names{Domains: []string{"second.example.com"}}); err != nil {
		t.Fatal(err)
	}
	s.serial(ca, "second.example.com")
	if _, err := s.shake(t.Context(), &tls.Config{ServerName: name, InsecureSkipVerify: true}); err == nil {
		t.Error("a name that is no longer listed is served")
	}
	if ca.Orders() != 2 || ca.Accounts() != 1 {
		t.Errorf("%d orders of %d accounts", ca.Orders(), ca.Accounts())
	}
}
