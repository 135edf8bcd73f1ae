package credential

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func named(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}}
}

func fingerprint(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	return "sha256:" + hex.EncodeToString(sum[:])
}

// certificateRegistry returns a registry of clients that are identified by certificates. The clients have the names of
// the certificates.
func certificateRegistry(passThrough bool, authority *testservers.CA, names ...string) *Registry {
	return newRegistry(func(c *Config) {
		c.PassThrough = passThrough
		if authority != nil {
			c.Authorities = []*x509.Certificate{authority.Certificate}
		}
		for _, name := range names {
			c.Clients = append(c.Clients, Client{Name: name, Certificate: must(ParseCertificate(name)), Credentials: []string{"ci"}})
		}
	})
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
		return &append(with, tls.Certificate{})[0], nil // even if the server does not accept the certificate
	}
	request := must(http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL, nil))
	if response, err := transport.RoundTrip(request); err == nil {
		_ = response.Body.Close()
	}
	return state
}

// connected returns a registry of one client, a connection with its certificate, and the authority of both.
func connected(t testing.TB, client string, certificate *x509.Certificate) (*Registry, *tls.ConnectionState, *testservers.CA) {
	ours := must(testservers.NewCA())
	b := certificateRegistry(true, ours, client)
	return b, connect(t, b, must(ours.Sign(certificate))), ours
}

func TestCertificateIdentifiesItsClient(t *testing.T) {
	ours, theirs := must(testservers.NewCA()), must(testservers.NewCA()) // same name, other key
	signed := func(c *x509.Certificate) []tls.Certificate { return []tls.Certificate{must(ours.Sign(c))} }
	self := func(c *x509.Certificate) []tls.Certificate { return []tls.Certificate{must(testservers.SelfSigned(c))} }
	uri := []*url.URL{must(url.Parse("spiffe://example/builds"))}
	dns := &x509.Certificate{DNSNames: []string{"other.example", "Builds.example"}}
	past, old := named("builds"), named("old")
	past.NotBefore, past.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	old.NotBefore, old.NotAfter = past.NotBefore, past.NotAfter
	pinned, selfSigned, expired := signed(named("pinned")), self(named("self")), self(old)
	names := []string{
		"dns:builds.example", "uri:spiffe://example/builds", "email:builds@example", "subject:CN=builds,O=Acme",
		fingerprint(pinned[0]), fingerprint(selfSigned[0]),
	}
	all, pinnedOnly := certificateRegistry(false, ours, names...), certificateRegistry(false, nil, fingerprint(selfSigned[0]))
	for _, c := range []struct {
		name     string
		registry *Registry
		with     []tls.Certificate
		want     string // the client; empty if no client matches
	}{
		{"DNS name in another case", all, signed(dns), "dns:builds.example"},
		{"URI", all, signed(&x509.Certificate{URIs: uri}), "uri:spiffe://example/builds"},
		{"email address", all, signed(&x509.Certificate{EmailAddresses: []string{"builds@example"}}), "email:builds@example"},
		{"subject", all, signed(&x509.Certificate{Subject: pkix.Name{CommonName: "builds", Organization: []string{"Acme"}}}), "subject:CN=builds,O=Acme"},
		{"fingerprint", all, pinned, fingerprint(pinned[0])},
		{"name signed by an unknown authority", all, []tls.Certificate{must(theirs.Sign(dns))}, ""},
		{"self-signed name", all, self(dns), ""},
		{"part of a subject", all, signed(named("builds")), ""},
		{"subject with a separator in its name", all, signed(named("builds,O=Acme")), ""},
		{"DNS name in the subject", all, signed(named("builds.example")), ""},
		{"wildcard", all, signed(&x509.Certificate{DNSNames: []string{"*.example"}}), ""},
		{"names of two clients", all, signed(&x509.Certificate{URIs: uri, DNSNames: []string{"builds.example"}}), "dns:builds.example"},
		{"expired", all, signed(past), ""},
		{"no certificate", all, nil, ""},
		{"fingerprint without any authority", pinnedOnly, selfSigned, fingerprint(selfSigned[0])},
		{"another certificate", pinnedOnly, pinned, ""},
		{"fingerprint of an expired certificate", certificateRegistry(false, nil, fingerprint(expired[0])), expired, ""},
	} {
		caller, err := c.registry.Identify(&http.Request{TLS: connect(t, c.registry, c.with...)})
		failIf(t, clientOf(caller) != c.want || (err == nil) != (c.want != ""), "%s: got client %q and error %v, want client %q", c.name, clientOf(caller), err, c.want)
	}
	_, err := all.Identify(&http.Request{})
	failIf(t, err == nil, "a connection without TLS was identified")
}

// A verified connection is trusted only as long as its authority is configured and its
// certificates are valid.
func TestCertificateIsCheckedAgainOnEachRequest(t *testing.T) {
	const client = "dns:builds.example"
	b, state, ours := connected(t, client, &x509.Certificate{DNSNames: []string{"builds.example"}})
	// changed returns a copy of the connection's state after a change.
	changed := func(change func(s *tls.ConnectionState)) *tls.ConnectionState {
		s := *state
		change(&s)
		return &s
	}
	// expired returns the state after one certificate of the chain has expired.
	expired := func(i int) *tls.ConnectionState {
		return changed(func(s *tls.ConnectionState) {
			chain := slices.Clone(state.VerifiedChains[0])
			old := *chain[i]
			old.NotAfter = time.Now().Add(-time.Second)
			chain[i], s.VerifiedChains = &old, [][]*x509.Certificate{chain}
		})
	}
	for _, c := range []struct {
		name     string
		registry *Registry
		state    *tls.ConnectionState
		want     string
	}{
		{"unchanged configuration", b, state, client},
		{"another authority", certificateRegistry(true, must(testservers.NewCA()), client), state, ""},
		{"no authority", certificateRegistry(true, nil, client), state, ""},
		{"no such client", certificateRegistry(true, ours, "dns:deploys.example"), state, ""},
		{"expired certificate", b, expired(0), ""},
		{"expired authority", b, expired(1), ""},
		{"unverified chain", b, changed(func(s *tls.ConnectionState) { s.VerifiedChains = nil }), ""},
		{"incomplete handshake", b, changed(func(s *tls.ConnectionState) { s.HandshakeComplete = false }), ""},
	} {
		got, _ := c.registry.Identify(&http.Request{TLS: c.state})
		failIf(t, clientOf(got) != c.want, "%s: got client %q, want %q", c.name, clientOf(got), c.want)
	}
}

func TestAuthorizationTakesPrecedenceOverTheCertificate(t *testing.T) {
	b, state, ours := connected(t, "dns:builds.example", &x509.Certificate{DNSNames: []string{"builds.example"}})
	for _, c := range []struct {
		name                  string
		request               *http.Request
		state                 *tls.ConnectionState
		client, authorization string
	}{
		{"own token", requestWith("Bearer ghp_own"), state, "", ""},
		{"empty Authorization", requestWith("  "), state, "dns:builds.example", "Bearer held"},
		{"unknown certificate", requestWith(), connect(t, b, must(ours.Sign(named("x")))), "", ""},
	} {
		c.request.TLS = c.state
		got, err := b.Identify(c.request)
		failIf(t, err != nil || got.Client != c.client || authorizationOf(got) != c.authorization ||
			got.Passed != (c.name == "own token"), "%s: %+v, %v", c.name, got, err)
	}
}

func TestClientAuthDependsOnTheClients(t *testing.T) {
	ours, pin := must(testservers.NewCA()), "sha256:"+strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		registry *Registry
		want     tls.ClientAuthType
	}{
		"no certificates":            {certificateRegistry(true, ours), tls.NoClientCert},
		"fingerprints":               {certificateRegistry(true, nil, pin), tls.RequestClientCert},
		"names":                      {certificateRegistry(true, ours, "dns:a"), tls.VerifyClientCertIfGiven},
		"names and fingerprints":     {certificateRegistry(true, ours, "dns:a", pin), tls.VerifyClientCertIfGiven},
		"names without an authority": {certificateRegistry(true, nil, "dns:a"), tls.RequestClientCert},
	} {
		got, pool := c.registry.ClientAuth()
		failIf(t, got != c.want || (pool != nil) != (c.want == tls.VerifyClientCertIfGiven), "%s: got %s with pool %v, want %s", name, got, pool, c.want)
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
		got, err := ParseCertificate(text)
		failIf(t, got != want || (err == nil) != (want != Certificate{}), "%s: got %v, %v, want %v", text, got, err, want)
	}
}

func TestParseAuthoritiesAcceptsOnlyCertificates(t *testing.T) {
	one := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: must(testservers.NewCA()).Certificate.Raw}))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	for _, c := range []struct {
		name, text string
		want       int
	}{
		{"one", one, 1}, {"two", one + "\n" + one, 2}, {"comment before the certificate", "# ours\n" + one, 1},
		{"none", "", 0}, {"path instead of a certificate", "/etc/ca.pem", 0}, {"private key", key, 0}, {"private key after a certificate", one + key, 0}, {"truncated", one + one[:60], 0},
		{"invalid certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", 0},
	} {
		got, err := ParseAuthorities(c.text)
		failIf(t, len(got) != c.want || (err == nil) != (c.want > 0), "%s: got %d certificates and error %v, want %d", c.name, len(got), err, c.want)
	}
}

// TestPageOfAnotherSiteCannotUseTheCertificateOfABrowser checks that an unsafe request of another site is refused,
// because a browser sends its certificate without being asked. Programs and pages of the same site are accepted, and a
// page of another site that knows a key may use the key.
func TestPageOfAnotherSiteCannotUseTheCertificateOfABrowser(t *testing.T) {
	b, state, _ := connected(t, "subject:CN=builds", named("builds"))
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
		failIf(t, !errors.Is(err, c.want), "%s: got the error %v, want %v", c.name, err, c.want)
		if own := r.Header.Get("Authorization") == ""; err == nil && (caller.Client == "subject:CN=builds") != own {
			t.Errorf("%s: got the client %q", c.name, clientOf(caller))
		}
	}
}
