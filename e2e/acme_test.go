//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

const domain = "weir.example.com"

// startTLS starts a replica that gets its certificate by ACME. Plain HTTP is served at plain.
func (f *fleet) startTLS(ca *testservers.ACME, secure, plain string) *process {
	f.Helper()
	config := f.file("gateway.yaml", fmt.Sprintf(`upstream: {url: "http://127.0.0.1:1"}
store: {url: %q}
cache: {key: %q}
tls: {domains: [%s], ca: %q, http: %q}
`, f.store, strings.Repeat("k", 32), domain, ca.URL, plain))
	return startWith(f.T, []string{"SSL_CERT_FILE=" + ca.File}, "serve", "--config", config, "--listen", secure, "--admin", anyPort)
}

// httpsClient returns a client that trusts roots and connects to address for every name.
func httpsClient(roots *x509.CertPool, address string) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			},
		},
	}
}

// awaitCertificate waits until a replica serves an issued certificate over HTTP/2, and
// returns its serial number.
func (f *fleet) awaitCertificate(ca *testservers.ACME, address string) (serial string) {
	f.Helper()
	client := httpsClient(ca.Roots, address)
	f.eventually("the replica serves a certificate", func(ctx context.Context) bool {
		resp, _, err := do(client, newRequest(ctx, http.MethodGet, "https://"+domain+"/_weir/", ""))
		if err != nil {
			return false
		}
		failIf(f, resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotFound, "got %s %s, want HTTP/2 404", resp.Proto, resp.Status)
		serial = resp.TLS.PeerCertificates[0].SerialNumber.Text(16)
		return true
	})
	return serial
}

// TestCertificateOrderSurvivesKilledReplica kills the replica that orders the certificate. The second replica must
// order the certificate instead. After its restart, the first replica must serve the same certificate.
func TestCertificateOrderSurvivesKilledReplica(t *testing.T) {
	t.Parallel() // mostly waits for the end of a lock
	f := emptyFleet(t)
	f.store = oneRedis(f)
	free := testservers.FreeAddress
	secure, plain := []string{free(t), free(t)}, []string{free(t), free(t)}
	ca := testservers.NewACME(t, testservers.NewBalancer(t, plain...).Port(), testservers.NewBalancer(t, secure...).Port())
	release := ca.Hold()
	t.Cleanup(release)
	first := f.startTLS(ca, secure[0], plain[0])
	f.eventually("the first replica orders", func(context.Context) bool { return ca.Waiting() == 1 })
	f.startTLS(ca, secure[1], plain[1])
	client := redis.NewClient(&redis.Options{Addr: f.address})
	defer func() { _ = client.Close() }()
	const lock = "weir:{tls}:lock:issue_cert_" + domain
	holder := client.Get(t.Context(), lock).Val()
	first.signal(syscall.SIGKILL)
	f.eventually("the lock of the first replica expires", func(ctx context.Context) bool { return client.Get(ctx, lock).Val() != holder })
	f.eventually("the second replica orders", func(context.Context) bool { return ca.Waiting() == 2 })
	release()
	serial := f.awaitCertificate(ca, secure[1])
	f.startTLS(ca, secure[0], plain[0])
	if got := f.awaitCertificate(ca, secure[0]); got != serial || ca.Orders() != 1 || ca.Issued() != 1 || ca.Accounts() != 1 {
		t.Errorf("certificates %s and %s; %d orders, %d issued, %d accounts; want one of each", serial, got, ca.Orders(), ca.Issued(), ca.Accounts())
	}
	redirects := httpsClient(nil, plain[1])
	for host, location := range map[string]string{domain: "308 https://" + domain + "/user", "other.example.com": "421 "} {
		resp, _ := sendWith(t, redirects, http.MethodGet, "http://"+host+"/user", "")
		want(t, "plain HTTP for "+host, fmt.Sprintf("%d %s", resp.StatusCode, resp.Header.Get("Location")), location)
	}
}
