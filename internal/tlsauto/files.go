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

// Pair is a certificate and its private key, in PEM files. The certificate's file
// holds the chain, the leaf first.
type Pair struct {
	Certificate, Key string // paths
}

// loaded is a pair as it was last read.
type loaded struct {
	pair        Pair
	text        [2][]byte // of the certificate and the key, when last looked at
	certificate atomic.Pointer[tls.Certificate]
}

// load reads a pair.
func load(p Pair) (*loaded, error) {
	l := &loaded{pair: p}
	_, err := l.look()
	return l, err
}

// look reads the files, and takes them up where they have changed and fit.
func (l *loaded) look() (changed bool, err error) {
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
		return false, fmt.Errorf("%s with %s: %w", l.pair.Certificate, l.pair.Key, err)
	}
	l.certificate.Store(&c)
	return true, nil
}

// covers reports whether a client that asks for the host can verify the certificate.
func (l *loaded) covers(host string) bool {
	return !strings.Contains(host, "*") && l.certificate.Load().Leaf.VerifyHostname(host) == nil
}

// watchPairs looks at the files again and again. It reads rather than waits for
// events: files come by renaming, by links that move and over networks.
func (m *Manager) watchPairs() {
	tick := time.NewTicker(filesEvery)
	defer tick.Stop()
	said := map[Pair]string{}
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.changing.Lock()
		for _, l := range m.current.Load().pairs {
			switch changed, err := l.look(); {
			case err != nil && said[l.pair] != err.Error():
				said[l.pair] = err.Error()
				m.log.Error("the changed certificate is not used; the old one stays", "file", l.pair.Certificate, "error", err)
			case changed:
				delete(said, l.pair)
				leaf := l.certificate.Load().Leaf
				m.log.Info("certificate", "file", l.pair.Certificate, "serial", leaf.SerialNumber.Text(16), "until", leaf.NotAfter)
			}
		}
		m.changing.Unlock()
	}
}
