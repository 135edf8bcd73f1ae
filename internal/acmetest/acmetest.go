// Package acmetest runs a real ACME server, Pebble, in the process of a test.
//
// Invariants: it validates by real challenges, at ports of its own choice and at
// 127.0.0.1 whatever the name is; nothing but loopback is reached. It is not for
// production code.
package acmetest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// Server is an ACME server.
type Server struct {
	URL   string         // of its directory
	Trust *x509.CertPool // whom to trust as the ACME server
	File  string         // the same, as PEM

	Roots *x509.CertPool // whom to trust in what was issued

	pebble http.Handler
	began  time.Time

	mu               sync.Mutex
	due              map[string]bool // certificates, by their names of RFC 9773: those asked for
	accounts, orders int             // that were made
	issued           int             // certificates
	waiting          int             // orders that were held
	gate             chan struct{}   // nil, or what new orders wait for
}

// New starts a server that validates at ports of 127.0.0.1.
func New(t testing.TB, httpPort, tlsPort int) *Server {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s := &Server{Trust: x509.NewCertPool(), Roots: x509.NewCertPool(), began: time.Now(), due: map[string]bool{}}
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "of 90 days"}})
	checker := va.New(quiet, httpPort, tlsPort, false, resolver(t), store)
	front := wfe.New(quiet, store, checker, issuer, []string{"ca.example"}, false, false, 1, 1)
	s.pebble = front.Handler()
	s.Roots.AppendCertsFromPEM(issuer.GetRootCert(0).PEM())
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL + wfe.DirectoryPath
	s.Trust.AddCert(server.Certificate())
	s.File = filepath.Join(t.TempDir(), "acme.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(s.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// RenewNow says of all certificates that there are that they are due (RFC 9773).
// Of others it says that they are in a month, and to ask again in a second.
func (s *Server) RenewNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.due {
		s.due[id] = true
	}
}

// renewalInfo says when a certificate is due.
func (s *Server) renewalInfo(w http.ResponseWriter, id string) {
	start := s.began.Add(30 * 24 * time.Hour)
	s.mu.Lock()
	if s.due[id] {
		start = s.began.Add(-2 * time.Hour)
	} else {
		s.due[id] = false // it is one that there is
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	const window = `{"suggestedWindow": {"start": %q, "end": %q}}`
	_, _ = fmt.Fprintf(w, window, start.Format(time.RFC3339), start.Add(time.Hour).Format(time.RFC3339))
}

// Orders is how many orders were made.
func (s *Server) Orders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders
}

// Issued is how many certificates were.
func (s *Server) Issued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued
}

// Accounts is how many accounts were made.
func (s *Server) Accounts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accounts
}

// Waiting is how many orders have been held.
func (s *Server) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Hold keeps new orders waiting until release is called.
func (s *Server) Hold() (release func()) {
	gate := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = gate
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		close(gate)
	})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, ok := strings.CutPrefix(r.URL.Path, "/draft-ietf-acme-ari-03/renewalInfo/"); ok {
		s.renewalInfo(w, id)
		return
	}
	order := strings.HasPrefix(r.URL.Path, "/order-plz")
	s.mu.Lock()
	gate := s.gate
	if order && gate != nil {
		s.waiting++
	}
	s.mu.Unlock()
	if order && gate != nil {
		body, err := io.ReadAll(r.Body) // that who asked is gone is seen after its request only
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		select {
		case <-gate:
		case <-r.Context().Done():
			return // who asked is gone
		}
	}
	answer := &status{ResponseWriter: w}
	s.pebble.ServeHTTP(answer, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case answer.code == http.StatusOK && strings.HasPrefix(r.URL.Path, "/finalize-order/"):
		s.issued++
	case answer.code != http.StatusCreated: // a nonce was bad, or the account is known
	case order:
		s.orders++
	case strings.HasPrefix(r.URL.Path, "/sign-me-up"):
		s.accounts++
	}
}

// status notes the status of an answer.
type status struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// resolver starts a DNS server to which every name is 127.0.0.1, and returns its
// address.
func resolver(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg)
		a.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}
			a.Answer = append(a.Answer, &dns.A{Hdr: head, A: net.IPv4(127, 0, 0, 1)})
		}
		_ = w.WriteMsg(a) // who does not read it asks again
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.ActivateAndServe() }) // ends by Close
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}
