package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// authority is a certificate authority.
type authority struct {
	testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{TB: t}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	issued := a.issue(template)
	a.certificate, a.key = issued.Leaf, issued.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue returns a certificate that is valid for an hour unless the template has dates. An
// authority without a key returns a self-signed certificate.
func (a *authority) issue(template *x509.Certificate) tls.Certificate {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if a.key != nil {
		parent, signer = a.certificate, a.key
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func named(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}}
}

func certificate(t testing.TB, text string) Certificate {
	t.Helper()
	c, err := ParseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func fingerprint(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	return "sha256:" + hex.EncodeToString(sum[:])
}

// certificateRegistry returns a registry of clients that are identified by certificates. The
// clients have the names of the certificates.
func certificateRegistry(t testing.TB, passThrough bool, authorities []*x509.Certificate, names ...string) *Registry {
	t.Helper()
	config := Config{Dialect: &policy.Dialect{}, HashKey: NewHashKey(), Egress: "shared", PassThrough: passThrough, Authorities: authorities, Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}}}
	for _, name := range names {
		config.Clients = append(config.Clients, Client{Name: name, Certificate: certificate(t, name), Credentials: []string{"ci"}})
	}
	return NewRegistry(config)
}

// connect opens a TLS connection to a listener of the registry and returns the state that a
// handler sees, or nil if the handshake fails.
func connect(t testing.TB, b *Registry, with ...tls.Certificate) *tls.ConnectionState {
	t.Helper()
	var state *tls.ConnectionState
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { state = r.TLS }))
	auth, pool := b.ClientAuth()
	server.TLS = &tls.Config{ClientAuth: auth, ClientCAs: pool}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // hides expected handshake failures
	server.StartTLS()
	defer server.Close()
	transport := server.Client().Transport.(*http.Transport)
	transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(with) == 0 {
			return &tls.Certificate{}, nil
		}
		return &with[0], nil // even if the server does not accept the certificate
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := transport.RoundTrip(request); err == nil {
		_ = response.Body.Close()
	}
	return state
}

func TestCertificateIdentifiesItsClient(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "ours") // same name, other key
	self := &authority{TB: t}
	spiffe, err := url.Parse("spiffe://example/builds")
	if err != nil {
		t.Fatal(err)
	}
	dns := &x509.Certificate{DNSNames: []string{"other.example", "Builds.example"}}
	uri := &x509.Certificate{URIs: []*url.URL{spiffe}}
	pinned, selfSigned := ours.issue(named("pinned")), self.issue(named("self"))
	names := []string{"dns:builds.example", "uri:spiffe://example/builds", "email:builds@example", "subject:CN=builds,O=Acme", fingerprint(pinned), fingerprint(selfSigned)}
	b := certificateRegistry(t, false, []*x509.Certificate{ours.certificate}, names...)
	past := named("builds")
	past.NotBefore, past.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	for _, c := range []struct {
		name string
		with tls.Certificate
		want string // the client; empty if no client matches
	}{
		{"DNS name in another case", ours.issue(dns), "dns:builds.example"},
		{"URI", ours.issue(uri), "uri:spiffe://example/builds"},
		{"email address", ours.issue(&x509.Certificate{EmailAddresses: []string{"builds@example"}}), "email:builds@example"},
		{"subject", ours.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "builds", Organization: []string{"Acme"}}}), "subject:CN=builds,O=Acme"},
		{"fingerprint", pinned, fingerprint(pinned)},
		{"name signed by an unknown authority", theirs.issue(dns), ""},
		{"self-signed name", self.issue(dns), ""},
		{"part of a subject", ours.issue(named("builds")), ""},
		{"subject with a separator in its name", ours.issue(named("builds,O=Acme")), ""},
		{"DNS name in the subject", ours.issue(named("builds.example")), ""},
		{"wildcard", ours.issue(&x509.Certificate{DNSNames: []string{"*.example"}}), ""},
		{"names of two clients", ours.issue(&x509.Certificate{URIs: []*url.URL{spiffe}, DNSNames: []string{"builds.example"}}), "dns:builds.example"},
		{"expired", ours.issue(past), ""},
	} {
		caller, err := b.Identify(&http.Request{TLS: connect(t, b, c.with)})
		if caller.Client != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got client %q and error %v, want client %q", c.name, caller.Client, err, c.want)
		}
	}
	if _, err := b.Identify(&http.Request{TLS: connect(t, b)}); err == nil {
		t.Error("a connection without a certificate was identified")
	}
	if _, err := b.Identify(&http.Request{}); err == nil {
		t.Error("a connection without TLS was identified")
	}
	pinnedOnly := certificateRegistry(t, false, nil, fingerprint(selfSigned))
	if caller, err := pinnedOnly.Identify(&http.Request{TLS: connect(t, pinnedOnly, selfSigned)}); err != nil || caller.Client != fingerprint(selfSigned) {
		t.Errorf("fingerprint without any authority: %q, %v", caller.Client, err)
	}
	old := named("old")
	old.NotBefore, old.NotAfter = past.NotBefore, past.NotAfter
	expired := self.issue(old)
	pins := certificateRegistry(t, false, nil, fingerprint(expired))
	if caller, err := pins.Identify(&http.Request{TLS: connect(t, pins, expired)}); err == nil {
		t.Errorf("fingerprint of an expired certificate: %q", caller.Client)
	}
	if caller, err := pinnedOnly.Identify(&http.Request{TLS: connect(t, pinnedOnly, pinned)}); err == nil {
		t.Errorf("another certificate: %q", caller.Client)
	}
}

// A verified connection is trusted only as long as its authority is configured and its
// certificates are valid.
func TestCertificateIsCheckedAgainOnEachRequest(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	authorities := []*x509.Certificate{ours.certificate}
	b := certificateRegistry(t, false, authorities, "dns:builds.example")
	state := connect(t, b, ours.issue(&x509.Certificate{DNSNames: []string{"builds.example"}}))
	clientOf := func(b *Registry, state *tls.ConnectionState) string {
		c, _ := b.Identify(&http.Request{TLS: state})
		return c.Client
	}
	if got := clientOf(b, state); got != "dns:builds.example" {
		t.Fatalf("unchanged configuration: %q", got)
	}
	for name, other := range map[string]*Registry{
		"another authority": certificateRegistry(t, false, []*x509.Certificate{theirs.certificate}, "dns:builds.example"),
		"no authority":      certificateRegistry(t, false, nil, "dns:builds.example"),
		"no such client":    certificateRegistry(t, false, authorities, "dns:deploys.example"),
	} {
		if got := clientOf(other, state); got != "" {
			t.Errorf("%s: got client %q, want none", name, got)
		}
	}
	unverified := *state
	unverified.VerifiedChains = nil
	expired := *state
	for _, i := range []int{0, 1} { // leaf, authority
		chain := append([]*x509.Certificate(nil), state.VerifiedChains[0]...)
		old := *chain[i]
		old.NotAfter = time.Now().Add(-time.Second)
		chain[i] = &old
		expired.VerifiedChains = [][]*x509.Certificate{chain}
		if got := clientOf(b, &expired); got != "" {
			t.Errorf("expired certificate %d: %q", i, got)
		}
	}
	unfinished := *state
	unfinished.HandshakeComplete = false
	for name, state := range map[string]*tls.ConnectionState{"unverified chain": &unverified, "incomplete handshake": &unfinished} {
		if got := clientOf(b, state); got != "" {
			t.Errorf("%s: got client %q, want none", name, got)
		}
	}
}

func TestAuthorizationTakesPrecedenceOverTheCertificate(t *testing.T) {
	ours := newAuthority(t, "ours")
	b := certificateRegistry(t, true, []*x509.Certificate{ours.certificate}, "dns:builds.example")
	state := connect(t, b, ours.issue(&x509.Certificate{DNSNames: []string{"builds.example"}}))
	own := requestWith("Bearer ghp_own")
	own.TLS = state
	if c, err := b.Identify(own); err != nil || c.Client != "" || c.Authorization.Reveal() != "Bearer ghp_own" {
		t.Errorf("own token: %+v, %v", c, err)
	}
	blank := requestWith("  ")
	blank.TLS = state
	if c, err := b.Identify(blank); err != nil || c.Client != "dns:builds.example" || c.Authorization.Reveal() != "Bearer held" {
		t.Errorf("empty Authorization: %+v, %v", c, err)
	}
	if c, err := b.Identify(&http.Request{TLS: connect(t, b, ours.issue(named("x")))}); err != nil || c.Kind != policy.Unauthenticated {
		t.Errorf("unknown certificate: %+v, %v", c, err)
	}
}

func TestClientAuthDependsOnTheClients(t *testing.T) {
	ours := newAuthority(t, "ours")
	authorities := []*x509.Certificate{ours.certificate}
	for name, c := range map[string]struct {
		registry *Registry
		want     tls.ClientAuthType
	}{
		"no certificates":            {certificateRegistry(t, true, authorities), tls.NoClientCert},
		"fingerprints":               {certificateRegistry(t, true, nil, "sha256:"+strings.Repeat("0", 64)), tls.RequestClientCert},
		"names":                      {certificateRegistry(t, true, authorities, "dns:a"), tls.VerifyClientCertIfGiven},
		"names and fingerprints":     {certificateRegistry(t, true, authorities, "dns:a", "sha256:"+strings.Repeat("0", 64)), tls.VerifyClientCertIfGiven},
		"names without an authority": {certificateRegistry(t, true, nil, "dns:a"), tls.RequestClientCert},
	} {
		if got, pool := c.registry.ClientAuth(); got != c.want || (pool != nil) != (c.want == tls.VerifyClientCertIfGiven) {
			t.Errorf("%s: got %s with pool %v, want %s", name, got, pool, c.want)
		}
	}
}

func TestParseCertificateAcceptsKnownForms(t *testing.T) {
	hex := strings.Repeat("aB", 32)
	for text, want := range map[string]Certificate{
		"sha256:" + hex: {"sha256", strings.ToLower(hex)},
		"sha256:" + strings.TrimSuffix(strings.Repeat("AB:", 32), ":"): {"sha256", strings.ToLower(hex)},
		"dns:Builds.Example":     {"dns", "builds.example"},
		"uri:spiffe://Example/a": {"uri", "spiffe://Example/a"},
		"subject:CN=a,O=b":       {"subject", "CN=a,O=b"},
		"":                       {}, "dns:": {}, "builds": {}, "sha256:00": {}, "sha1:" + hex: {}, "DNS:a": {}, "sha256:" + hex + "00": {}, ":a": {},
	} {
		if got, err := ParseCertificate(text); got != want || (err == nil) != (want != Certificate{}) {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestParseAuthoritiesAcceptsOnlyCertificates(t *testing.T) {
	ours := newAuthority(t, "ours")
	one := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.certificate.Raw}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"one", one, 1}, {"two", one + "\n" + one, 2}, {"comment before the certificate", "# ours\n" + one, 1},
		{"none", "", 0}, {"path instead of a certificate", "/etc/ca.pem", 0}, {"private key", key, 0}, {"private key after a certificate", one + key, 0}, {"truncated", one + one[:60], 0},
		{"invalid certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0},
	} {
		if got, err := ParseAuthorities(c.text); len(got) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: got %d certificates and error %v, want %d", c.name, len(got), err, c.want)
		}
	}
}

// TestPageOfAnotherSiteCannotUseTheCertificateOfABrowser checks that an unsafe request of another site is refused,
// because a browser sends its certificate without being asked. Programs and pages of the same site are accepted, and a
// page of another site that knows a key may use the key.
func TestPageOfAnotherSiteCannotUseTheCertificateOfABrowser(t *testing.T) {
	ours := newAuthority(t, "ours")
	b := certificateRegistry(t, true, []*x509.Certificate{ours.certificate}, "subject:CN=builds")
	state := connect(t, b, ours.issue(named("builds")))
	for _, c := range []struct {
		name, method string
		fields       []string // name, value, ...
		want         error
	}{
		{"a program", "POST", nil, nil},
		{"a page of another site", "POST", []string{"Origin", "https://evil.test", "Sec-Fetch-Site", "cross-site"}, ErrOtherSite},
		{"a page of another site in a browser without fetch metadata", "DELETE", []string{"Origin", "https://evil.test"}, ErrOtherSite},
		{"a page of another name of the same domain", "PUT", []string{"Origin", "https://other.example.com", "Sec-Fetch-Site", "same-site"}, ErrOtherSite},
		{"a sandboxed frame", "POST", []string{"Origin", "null"}, ErrOtherSite},
		{"a host with the same prefix", "POST", []string{"Origin", "https://example.com.evil.test"}, ErrOtherSite},
		{"an image on a page of another site", "GET", []string{"Sec-Fetch-Site", "cross-site"}, nil}, // the page cannot read the response
		{"a page of the same origin", "POST", []string{"Origin", "https://example.com", "Sec-Fetch-Site", "same-origin"}, nil},
		{"a page of another site with a key of its own", "POST", []string{"Origin", "https://evil.test", "Authorization", "Bearer evil"}, nil},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "https://example.com/user", nil)
		r.TLS = state
		for i := 0; i < len(c.fields); i += 2 {
			r.Header.Set(c.fields[i], c.fields[i+1])
		}
		caller, err := b.Identify(r)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got the error %v, want %v", c.name, err, c.want)
		}
		if own := r.Header.Get("Authorization") == ""; err == nil && (caller.Client == "subject:CN=builds") != own {
			t.Errorf("%s: got the client %q", c.name, caller.Client)
		}
	}
}
