package tlsauto

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Pair is a certificate and its private key, in PEM files. The certificate file holds the chain, leaf first.
type Pair struct {
	Certificate, Key string // paths
}

// pollInterval is the interval at which the operator's files are read.
const pollInterval = 10 * time.Second

// loadedPair is the last valid state of a pair of files.
type loadedPair struct {
	pair        Pair
	text        [2][]byte // last contents of the certificate and the key file
	certificate atomic.Pointer[tls.Certificate]
}

func load(p Pair) (*loadedPair, error) {
	l := &loadedPair{pair: p}
	_, err := l.reload()
	return l, err
}

// reload reads the files and reports whether it loaded a new certificate.
func (l *loadedPair) reload() (changed bool, err error) {
	var text [2][]byte
	for i, path := range []string{l.pair.Certificate, l.pair.Key} {
		if text[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	if bytes.Equal(text[0], l.text[0]) && bytes.Equal(text[1], l.text[1]) {
		return false, nil
	}
	l.text = text
	c, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return false, fmt.Errorf("load certificate %s with key %s: %w", l.pair.Certificate, l.pair.Key, err)
	}
	l.certificate.Store(&c)
	return true, nil
}

// covers reports whether a client that connects to the host can verify the certificate.
func (l *loadedPair) covers(host string) bool {
	return !strings.Contains(host, "*") && l.certificate.Load().Leaf.VerifyHostname(host) == nil
}

// watchPairs reloads changed files. It polls, because file events are not reliable for renames, moving
// symbolic links and network file systems.
func (m *Manager) watchPairs() {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	logged := map[Pair]string{} // the last error of each pair
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.changing.Lock()
		for _, l := range m.current.Load().pairs {
			switch changed, err := l.reload(); {
			case err != nil && logged[l.pair] != err.Error():
				logged[l.pair] = err.Error()
				m.log.Error("certificate not reloaded, the previous one stays in use", "file", l.pair.Certificate, "error", err)
			case changed:
				delete(logged, l.pair)
				leaf := l.certificate.Load().Leaf
				m.log.Info("certificate loaded", "file", l.pair.Certificate, "serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter)
			}
		}
		m.changing.Unlock()
	}
}
