package tlsauto

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Pair is a certificate and its private key, in PEM files. The certificate file contains the chain, leaf first.
type Pair struct {
	Certificate, Key string // paths
}

// pollInterval is the interval at which the operator's files are read.
const pollInterval = 10 * time.Second

// loadedPair is the last valid state of a pair of files.
type loadedPair struct {
	pair        Pair
	certificate atomic.Pointer[tls.Certificate]
}

func load(p Pair) (*loadedPair, error) {
	l := &loadedPair{pair: p}
	_, err := l.reload()
	return l, err
}

// reload reads the files and reports whether it loaded a new certificate.
func (l *loadedPair) reload() (changed bool, err error) {
	c, err := tls.LoadX509KeyPair(l.pair.Certificate, l.pair.Key)
	if err != nil {
		return false, fmt.Errorf("load certificate %s with key %s: %w", l.pair.Certificate, l.pair.Key, err)
	}
	current := l.certificate.Load()
	if current != nil && slices.EqualFunc(current.Certificate, c.Certificate, bytes.Equal) {
		return false, nil
	}
	l.certificate.Store(&c)
	return true, nil
}

// covers reports whether the certificate names the host. covers checks neither the expiry nor the chain. A host with a
// wildcard is not covered.
func (l *loadedPair) covers(host string) bool {
	return !strings.Contains(host, "*") && l.certificate.Load().Leaf.VerifyHostname(host) == nil
}

// watchPairs reloads changed files. The files are polled, because file events are not reliable for renames, moving
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
			changed, err := l.reload()
			if err == nil {
				delete(logged, l.pair)
			} else if logged[l.pair] != err.Error() {
				logged[l.pair] = err.Error()
				m.config.Log.Error("certificate not reloaded, the previous one stays in use", "file", l.pair.Certificate, "error", err)
			}
			if changed {
				leaf := l.certificate.Load().Leaf
				m.config.Log.Info("certificate loaded", "file", l.pair.Certificate, "serial", leaf.SerialNumber.Text(16), "expires", leaf.NotAfter)
			}
		}
		m.changing.Unlock()
	}
}
