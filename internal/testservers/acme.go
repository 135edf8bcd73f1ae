package testservers

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/core"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// ACME is an ACME server, Pebble, in the process of the test. It validates domains with real challenges, and resolves
// every domain to 127.0.0.1.
type ACME struct {
	URL   string         // URL of the ACME directory
	Trust *x509.CertPool // roots for the server's own TLS certificate
	File  string         // path of a PEM file with the same roots

	Roots *x509.CertPool // roots of the issued certificates

	pebble  http.Handler
	store   *db.MemoryStore
	started time.Time

	mu               sync.Mutex
	due              map[string]bool // by certificate identifier (RFC 9773): whether renewal is due
	replaced         []string        // identifiers of the certificates that orders replace; empty for a first order
	accounts, orders int             // number of created accounts and orders
	issued           int             // number of issued certificates
	waiting          int             // number of orders that Hold has delayed
	gate             chan struct{}   // new orders wait until gate is closed; nil without Hold
}

// validateAtOnce makes Pebble validate without random pauses. The variable remains set, so that tests can run in parallel.
var validateAtOnce = sync.OnceFunc(func() { _ = os.Setenv("PEBBLE_VA_NOSLEEP", "1") }) // a valid name has no error

// NewACME starts an ACME server that sends challenges to the given ports of 127.0.0.1.
func NewACME(t testing.TB, httpPort, tlsPort int) *ACME {
	t.Helper()
	validateAtOnce()
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s := &ACME{Trust: x509.NewCertPool(), Roots: x509.NewCertPool(), started: time.Now(), due: map[string]bool{}}
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "valid for 90 days"}})
	validator := va.New(quiet, httpPort, tlsPort, false, resolver(t), store)
	frontend := wfe.New(quiet, store, validator, issuer, []string{"ca.example"}, false, false, 1, 1)
	s.pebble, s.store = frontend.Handler(), store
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

// RenewNow marks all issued certificates as due for renewal (RFC 9773). Certificates that are issued later are due in a
// month. Each response requests a poll after one second.
func (s *ACME) RenewNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.due {
		s.due[id] = true
	}
}

// renewalInfo writes the renewal window of a certificate.
func (s *ACME) renewalInfo(w http.ResponseWriter, id string) {
	start := s.started.Add(30 * 24 * time.Hour)
	s.mu.Lock()
	if s.due[id] {
		start = s.started.Add(-2 * time.Hour)
	} else {
		s.due[id] = false // RenewNow will set this entry
	}
	s.mu.Unlock()
	s.permitRenewal(id)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	const window = `{"suggestedWindow": {"start": %q, "end": %q}}`
	_, _ = fmt.Fprintf(w, window, start.Format(time.RFC3339), start.Add(time.Hour).Format(time.RFC3339))
}

// permitRenewal lets Pebble find the order of a certificate by its identifier (RFC 9773 section 4.1). Pebble stores the
// order by the serial number without the zero byte with which the DER form of one number in 256 begins, and refuses the
// renewal of such a certificate.
func (s *ACME) permitRenewal(id string) {
	_, encoded, _ := strings.Cut(id, ".")
	serial, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(serial) == 0 || serial[0] != 0 {
		return
	}
	if _, err := s.store.GetOrderByIssuedSerial(hex.EncodeToString(serial)); err == nil {
		return
	}
	if order, err := s.store.GetOrderByIssuedSerial(hex.EncodeToString(serial[1:])); err == nil {
		_ = s.store.AddOrderByIssuedSerial(&core.Order{ // fails without a certificate only
			Order: order.Order, ID: order.ID, AccountID: order.AccountID,
			CertificateObject: &core.Certificate{ID: hex.EncodeToString(serial)},
		})
	}
}

// Orders returns the number of created orders.
func (s *ACME) Orders() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders
}

// Replaced returns the identifiers of the certificates that the orders replace, in their order. It is empty for an order
// that replaces none.
func (s *ACME) Replaced() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.replaced)
}

// Issued returns the number of issued certificates.
func (s *ACME) Issued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued
}

// Accounts returns the number of created accounts.
func (s *ACME) Accounts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accounts
}

// Waiting returns the number of orders that Hold has delayed.
func (s *ACME) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Hold delays new orders until release is called.
func (s *ACME) Hold() (release func()) {
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
func (s *ACME) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	var replaces string
	if order {
		body, err := io.ReadAll(r.Body) // net/http detects a disconnected client only after the body of the request is read
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		replaces = replacedBy(body)
	}
	if order && gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return // the client has disconnected
		}
	}
	response := &status{ResponseWriter: w}
	s.pebble.ServeHTTP(response, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case response.code == http.StatusOK && strings.HasPrefix(r.URL.Path, "/finalize-order/"):
		s.issued++
	case response.code != http.StatusCreated: // a nonce was invalid, or the account existed
	case order:
		s.orders++
		s.replaced = append(s.replaced, replaces)
	case strings.HasPrefix(r.URL.Path, "/sign-me-up"):
		s.accounts++
	}
}

// replacedBy returns the identifier of the certificate that an order replaces, from the signed body of its request.
func replacedBy(body []byte) string {
	var signed struct{ Payload string }
	var order struct{ Replaces string }
	_ = json.Unmarshal(body, &signed) // Pebble refuses other bodies
	payload, _ := base64.RawURLEncoding.DecodeString(signed.Payload)
	_ = json.Unmarshal(payload, &order)
	return order.Replaces
}

// status records the status code of a response.
type status struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// resolver starts a DNS server that resolves every name to 127.0.0.1, and returns its
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
		_ = w.WriteMsg(a) // a client that misses the response retries
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.ActivateAndServe() }) // until the listener is closed
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}
