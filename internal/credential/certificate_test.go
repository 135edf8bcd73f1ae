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

// authority signs certificates.
type authority struct {
	testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{TB: t}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	made := a.issue(template)
	a.certificate, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue makes a certificate, valid for an hour unless the template says; without a
// key of its own it signs itself.
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

// certified is a book of clients by their certificates' names, in that order.
func certified(t testing.TB, passThrough bool, authorities []*x509.Certificate, names ...string) *Registry {
	t.Helper()
	config := Config{Dialect: &policy.Dialect{}, HashKey: NewHashKey(), Egress: "shared", PassThrough: passThrough, Authorities: authorities, Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}}}
	for _, name := range names {
		config.Clients = append(config.Clients, Client{Name: name, Certificate: certificate(t, name), Credentials: []string{"ci"}})
	}
	return NewRegistry(config)
}

// seen connects over TLS, as the listener of a book, and returns what a handler
// is told of the connection; nil when the handshake fails.
func seen(t testing.TB, b *Registry, with ...tls.Certificate) *tls.ConnectionState {
	t.Helper()
	var state *tls.ConnectionState
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { state = r.TLS }))
	auth, pool := b.ClientAuth()
	server.TLS = &tls.Config{ClientAuth: auth, ClientCAs: pool}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // handshakes fail
	server.StartTLS()
	defer server.Close()
	transport := server.Client().Transport.(*http.Transport)
	transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(with) == 0 {
			return &tls.Certificate{}, nil
		}
		return &with[0], nil // whether or not the server would like it
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

func TestCertificatesOverTLS(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "ours") // of one name
	self := &authority{TB: t}
	spiffe, err := url.Parse("spiffe://example/builds")
	if err != nil {
		t.Fatal(err)
	}
	dns := &x509.Certificate{DNSNames: []string{"other.example", "Builds.example"}}
	uri := &x509.Certificate{URIs: []*url.URL{spiffe}}
	pinned, selfSigned := ours.issue(named("pinned")), self.issue(named("self"))
	names := []string{"dns:builds.example", "uri:spiffe://example/builds", "email:builds@example", "subject:CN=builds,O=Acme", fingerprint(pinned), fingerprint(selfSigned)}
	b := certified(t, false, []*x509.Certificate{ours.certificate}, names...)
	past := named("builds")
	past.NotBefore, past.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	for _, c := range []struct {
		name string
		with tls.Certificate
		want string // the client; empty for none
	}{
		{"a DNS name, whatever its case", ours.issue(dns), "dns:builds.example"},
		{"a URI", ours.issue(uri), "uri:spiffe://example/builds"},
		{"an address", ours.issue(&x509.Certificate{EmailAddresses: []string{"builds@example"}}), "email:builds@example"},
		{"a subject", ours.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "builds", Organization: []string{"Acme"}}}), "subject:CN=builds,O=Acme"},
		{"a fingerprint", pinned, fingerprint(pinned)},
		{"a name that another authority vouches for", theirs.issue(dns), ""},
		{"a name that it vouches for itself", self.issue(dns), ""},
		{"a part of a subject", ours.issue(named("builds")), ""},
		{"a subject with the separator in its name", ours.issue(named("builds,O=Acme")), ""},
		{"a name in the subject, where a DNS name is meant", ours.issue(named("builds.example")), ""},
		{"a wildcard", ours.issue(&x509.Certificate{DNSNames: []string{"*.example"}}), ""},
		{"several names, the first client's", ours.issue(&x509.Certificate{URIs: []*url.URL{spiffe}, DNSNames: []string{"builds.example"}}), "dns:builds.example"},
		{"one that has expired", ours.issue(past), ""},
	} {
		who, err := b.Identify(&http.Request{TLS: seen(t, b, c.with)})
		if who.Client != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, who.Client, err)
		}
	}
	if _, err := b.Identify(&http.Request{TLS: seen(t, b)}); err == nil {
		t.Error("without a certificate")
	}
	if _, err := b.Identify(&http.Request{}); err == nil {
		t.Error("without TLS")
	}
	alone := certified(t, false, nil, fingerprint(selfSigned))
	if who, err := alone.Identify(&http.Request{TLS: seen(t, alone, selfSigned)}); err != nil || who.Client != fingerprint(selfSigned) {
		t.Errorf("a fingerprint without any authority: %q, %v", who.Client, err)
	}
	old := named("old")
	old.NotBefore, old.NotAfter = past.NotBefore, past.NotAfter
	expired := self.issue(old)
	pins := certified(t, false, nil, fingerprint(expired))
	if who, err := pins.Identify(&http.Request{TLS: seen(t, pins, expired)}); err == nil {
		t.Errorf("a fingerprint of one that has expired: %q", who.Client)
	}
	if who, err := alone.Identify(&http.Request{TLS: seen(t, alone, pinned)}); err == nil {
		t.Errorf("another: %q", who.Client)
	}
}

// TestAttack50AConnectionIsNoBetterThanTheConfiguration: what a handshake has verified
// counts no longer than its authority is configured and its certificates are
// valid.
func TestAttack50AConnectionIsNoBetterThanTheConfiguration(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	authorities := []*x509.Certificate{ours.certificate}
	b := certified(t, false, authorities, "dns:builds.example")
	state := seen(t, b, ours.issue(&x509.Certificate{DNSNames: []string{"builds.example"}}))
	who := func(b *Registry, state *tls.ConnectionState) string {
		c, _ := b.Identify(&http.Request{TLS: state})
		return c.Client
	}
	if got := who(b, state); got != "dns:builds.example" {
		t.Fatalf("as it was: %q", got)
	}
	for name, other := range map[string]*Registry{
		"another authority": certified(t, false, []*x509.Certificate{theirs.certificate}, "dns:builds.example"),
		"no authority":      certified(t, false, nil, "dns:builds.example"),
		"no such client":    certified(t, false, authorities, "dns:deploys.example"),
	} {
		if got := who(other, state); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	unverified := *state
	unverified.VerifiedChains = nil
	expired := *state
	for _, i := range []int{0, 1} { // the leaf, the authority
		chain := append([]*x509.Certificate(nil), state.VerifiedChains[0]...)
		old := *chain[i]
		old.NotAfter = time.Now().Add(-time.Second)
		chain[i] = &old
		expired.VerifiedChains = [][]*x509.Certificate{chain}
		if got := who(b, &expired); got != "" {
			t.Errorf("certificate %d has expired meanwhile: %q", i, got)
		}
	}
	unfinished := *state
	unfinished.HandshakeComplete = false
	for name, state := range map[string]*tls.ConnectionState{"never verified": &unverified, "a handshake that goes on": &unfinished} {
		if got := who(b, state); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAuthorizationComesBeforeTheCertificate(t *testing.T) {
	ours := newAuthority(t, "ours")
	b := certified(t, true, []*x509.Certificate{ours.certificate}, "dns:builds.example")
	state := seen(t, b, ours.issue(&x509.Certificate{DNSNames: []string{"builds.example"}}))
	own := with("Bearer ghp_own")
	own.TLS = state
	if c, err := b.Identify(own); err != nil || c.Client != "" || c.Authorization.Reveal() != "Bearer ghp_own" {
		t.Errorf("a token of its own: %+v, %v", c, err)
	}
	blank := with("  ")
	blank.TLS = state
	if c, err := b.Identify(blank); err != nil || c.Client != "dns:builds.example" || c.Authorization.Reveal() != "Bearer held" {
		t.Errorf("an empty field: %+v, %v", c, err)
	}
	if c, err := b.Identify(&http.Request{TLS: seen(t, b, ours.issue(named("x")))}); err != nil || c.Kind != policy.Unauthenticated {
		t.Errorf("a certificate of no client: %+v, %v", c, err)
	}
}

func TestClientAuth(t *testing.T) {
	ours := newAuthority(t, "ours")
	authorities := []*x509.Certificate{ours.certificate}
	for name, c := range map[string]struct {
		book *Registry
		want tls.ClientAuthType
	}{
		"nobody has one":    {certified(t, true, authorities), tls.NoClientCert},
		"fingerprints":      {certified(t, true, nil, "sha256:"+strings.Repeat("0", 64)), tls.RequestClientCert},
		"names":             {certified(t, true, authorities, "dns:a"), tls.VerifyClientCertIfGiven},
		"both":              {certified(t, true, authorities, "dns:a", "sha256:"+strings.Repeat("0", 64)), tls.VerifyClientCertIfGiven},
		"names of nobody's": {certified(t, true, nil, "dns:a"), tls.RequestClientCert},
	} {
		if got, pool := c.book.ClientAuth(); got != c.want || (pool != nil) != (c.want == tls.VerifyClientCertIfGiven) {
			t.Errorf("%s: %s, %v", name, got, pool)
		}
	}
}

func TestParseCertificate(t *testing.T) {
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
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestParseAuthorities(t *testing.T) {
	ours := newAuthority(t, "ours")
	one := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ours.certificate.Raw}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"one", one, 1}, {"two", one + "\n" + one, 2}, {"a comment before it", "# ours\n" + one, 1},
		{"none", "", 0}, {"a path", "/etc/ca.pem", 0}, {"a key", key, 0}, {"a key after it", one + key, 0}, {"one that is cut off", one + one[:60], 0},
		{"no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0},
	} {
		if got, err := ParseAuthorities(c.text); len(got) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d, %v", c.name, len(got), err)
		}
	}
}
