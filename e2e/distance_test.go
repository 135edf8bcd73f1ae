//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirgate/weir/internal/testservers"
)

// A connection to farAddress reaches a server at nearAddress over a round trip of 100 ms.
const (
	nearAddress, farAddress = "10.77.0.1", "10.77.0.2"
	oneWay                  = 50 * time.Millisecond
)

// TestDistantDownloadIsFast downloads a large body over a round trip of 100 ms, with TLS and the TCP of the kernel. The kernel gets
// the send buffer that docs/internals/performance.md names. The first bytes do not count, because TCP looks for the rate of the path.
func TestDistantDownloadIsFast(t *testing.T) {
	if os.Getenv("WEIR_DISTANCE") == "" {
		again := exec.CommandContext(t.Context(), "unshare", "--net", "--", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), "WEIR_DISTANCE=1")
		text, err := again.CombinedOutput()
		t.Logf("%s", text)
		must(t, err)
		return
	}
	const first, part, parts, minRate = 48 << 20, 32 << 20, 8, 40e6
	must(t, os.WriteFile("/proc/sys/net/ipv4/tcp_wmem", []byte("4096 16384 16777216"), 0))
	delayPackets(t)
	dir := t.TempDir()
	certificate, err := testservers.SelfSigned(&x509.Certificate{
		IPAddresses: []net.IP{net.ParseIP(nearAddress), net.ParseIP(farAddress)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	must(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	must(t, err)
	file := write(t, filepath.Join(dir, "tls.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})))
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Leaf)
	for _, c := range []struct {
		name             string
		client, upstream string // addresses by which Weir and the upstream are reached
		path             string
		http1            bool
	}{
		{"far client with HTTP/1.1", farAddress, nearAddress, "/zen", true},
		{"far client with HTTP/2", farAddress, nearAddress, "/zen", false},
		{"far API with HTTP/1.1", nearAddress, farAddress, "/zen", true},
		{"far API with HTTP/2", nearAddress, farAddress, "/zen", false},
		{"far host", nearAddress, farAddress, "/files/x", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Cache-Control", "no-store")
				_, _ = io.CopyN(w, zeros{}, first+parts*part) // the client measures
			}))
			_ = up.Listener.Close()
			up.Listener, err = net.Listen("tcp", nearAddress+":0")
			must(t, err)
			up.EnableHTTP2, up.TLS = !c.http1, &tls.Config{Certificates: []tls.Certificate{certificate}}
			up.StartTLS()
			t.Cleanup(up.Close)
			url := strings.Replace(up.URL, nearAddress, c.upstream, 1)
			config := write(t, filepath.Join(dir, "weir.yaml"), fmt.Sprintf("upstream: {url: %q, dialect: github}\ntls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n"+
				"hosts: [{name: files.example.com, url: %q, path: /files}]\n", url, url))
			weir := serveAt(t, config, nearAddress+":0", anyPort, "SSL_CERT_FILE="+file)
			client := &http.Client{Transport: &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: !c.http1, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 20},
			}}
			t.Cleanup(client.CloseIdleConnections)
			resp, err := client.Do(newRequest(t.Context(), http.MethodGet, strings.Replace("https://"+weir.address, nearAddress, c.client, 1)+c.path, ""))
			must(t, err)
			defer func() { _ = resp.Body.Close() }()
			_, err = io.CopyN(io.Discard, resp.Body, first)
			must(t, err)
			rate := 0.0
			for i := 0; i < parts && rate < minRate; i++ { // the machine may be busy
				began := time.Now()
				_, err = io.CopyN(io.Discard, resp.Body, part)
				must(t, err)
				rate = max(rate, part/time.Since(began).Seconds())
			}
			t.Logf("%s: %.0f MB/s", c.name, rate/1e6)
			failIf(t, rate < minRate, "want at least %.0f MB/s", minRate/1e6)
		})
	}
}

// delayPackets creates a network interface that returns each packet after oneWay with source and destination swapped. The
// checksums stay valid.
func delayPackets(t *testing.T) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	must(t, err)
	request, err := unix.NewIfreq("distance")
	must(t, err)
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
	tun := os.NewFile(uintptr(fd), "tun")
	for _, command := range []string{"link set lo up", "addr add " + nearAddress + "/24 dev distance", "link set distance up mtu 9000"} {
		if text, err := exec.CommandContext(t.Context(), "ip", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", command, err, text)
		}
	}
	type packet struct {
		data []byte
		due  time.Time
	}
	inFlight := make(chan packet, 1<<14) // further packets are lost
	go func() {
		defer close(inFlight)
		for {
			p := packet{data: make([]byte, 9000)}
			n, err := tun.Read(p.data)
			if err != nil {
				return // closed
			}
			p.data, p.due = p.data[:n], time.Now().Add(oneWay)
			if p.data[0]>>4 != 4 { // IPv6
				continue
			}
			var source [4]byte
			copy(source[:], p.data[12:16])
			copy(p.data[12:16], p.data[16:20])
			copy(p.data[16:20], source[:])
			select {
			case inFlight <- p:
			default:
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p := range inFlight {
			time.Sleep(time.Until(p.due))
			_, _ = tun.Write(p.data)
		}
	}()
	t.Cleanup(func() { _ = tun.Close(); <-done })
}
