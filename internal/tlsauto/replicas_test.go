package tlsauto

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

// replica configures a replica process. Replicas need separate processes, because certmagic shares locks within
// one process.
type replica struct {
	Secure, Plain string // addresses
	CA, Trust     string // URL, PEM file
	Socket        string // of Redis
	Database      int
}

func TestMain(m *testing.M) {
	spec := os.Getenv("WEIR_TLSAUTO_REPLICA")
	if spec == "" {
		testservers.Main(m)
	}
	if err := serveReplica(spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveReplica serves until standard input is closed.
func serveReplica(spec string) error {
	var r replica
	if err := json.Unmarshal([]byte(spec), &r); err != nil {
		return err
	}
	trust, err := os.ReadFile(r.Trust)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trust)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	storage, err := NewRedis(redis.NewClient(&redis.Options{Network: "unix", Addr: r.Socket, DB: r.Database, MaxRetries: -1}), secret, log)
	if err != nil {
		return err
	}
	m, err := NewManager(Config{Storage: storage, CA: r.CA, Roots: roots, Check: 250 * time.Millisecond, Log: log}, Names{Domains: []string{name}})
	if err != nil {
		return err
	}
	secure, err := net.Listen("tcp", r.Secure)
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", r.Plain)
	if err != nil {
		return err
	}
	go func() { _ = (&http.Server{TLSConfig: m.TLS()}).ServeTLS(secure, "", "") }() // ends with the process
	go func() { _ = http.Serve(plain, m.Redirect(secure.Addr(), plain.Addr(), http.NotFoundHandler())) }()
	m.Start(secure.Addr(), plain.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	m.Close()
	return nil
}

func startReplica(t *testing.T, r replica, log io.Writer) {
	t.Helper()
	spec, err := json.Marshal(r)
	noError(t, err)
	self, err := os.Executable()
	noError(t, err)
	process := exec.Command(self)
	process.Env = append(os.Environ(), "WEIR_TLSAUTO_REPLICA="+string(spec))
	process.Stderr = log
	stdin, err := process.StdinPipe()
	noError(t, err)
	noError(t, process.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		err := process.Wait()
		failIf(t, err != nil, "replica exited: %v", err)
	})
}

// One replica orders and renews. Both replicas serve the result.
func TestReplicasShareOneCertificate(t *testing.T) {
	t.Parallel()
	o := onServer(t)
	var secure, plain [2]string
	for i := range 2 {
		secure[i], plain[i] = testservers.FreeAddress(t), testservers.FreeAddress(t)
	}
	ca := testservers.NewACME(t, testservers.NewBalancer(t, plain[:]...).Port(), testservers.NewBalancer(t, secure[:]...).Port())
	var log testservers.Output
	defer func() {
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	for i := range 2 {
		startReplica(t, replica{Secure: secure[i], Plain: plain[i], CA: ca.URL, Trust: ca.File, Socket: o.Addr, Database: o.DB}, &log)
	}
	serial := func(i int, not string) (serial string) {
		testservers.Eventually(t, fmt.Sprintf("replica %d serves a certificate other than %q", i, not), func(ctx context.Context) bool {
			conn, err := (&tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: ca.Roots}}).DialContext(ctx, "tcp", secure[i])
			if err != nil {
				testservers.Sleep(ctx, 50*time.Millisecond)
				return false
			}
			defer func() { _ = conn.Close() }()
			serial = conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Text(16)
			return serial != not
		})
		return serial
	}
	one, orders := serial(0, ""), ca.Orders()
	other := serial(1, "")
	failIf(t, other != one || orders != ca.Orders(), "certificates %s and %s; %d orders, then %d", one, other, orders, ca.Orders())
	ca.RenewNow()
	// If a replica reads the renewal window of the old certificate during the renewal, certmagic attributes the window to
	// the new certificate, and renews once more. The other replica may then keep the second certificate. Both replicas poll
	// every second here, and every few hours in production.
	testservers.Eventually(t, "both replicas serve the same renewed certificate", func(ctx context.Context) bool {
		renewed := serial(0, one)
		return (serial(1, one) == renewed || ca.Orders() > 2) && ca.Issued() == ca.Orders()
	})
	// Replicas that renew without each other replace the same certificate.
	replaced := ca.Replaced()
	n := len(slices.Compact(slices.Sorted(slices.Values(replaced))))
	failIf(t, n != len(replaced) || n > 3 || ca.Accounts() != 1, "the orders replace the certificates %q, %d accounts; want 2 or 3 orders for different certificates, 1 account", replaced, ca.Accounts())
	client := redis.NewClient(&o)
	defer func() { _ = client.Close() }()
	assertEveryKeyExpires(t, client)
	for _, key := range client.Keys(t.Context(), valuePrefix+"*").Val() {
		text := client.Get(t.Context(), key).Val()
		failIf(t, strings.Contains(text, "PRIVATE") || strings.Contains(text, "CERTIFICATE"), "%s is not sealed", key)
	}
}
