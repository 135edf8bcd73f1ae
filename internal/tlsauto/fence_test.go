package tlsauto

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/certmagic"
)

// slow is an issuer whose order takes so long that the lock is lost meanwhile.
type slow struct {
	certmagic.Issuer
	server *miniredis.Miniredis
}

// IssuerKey implements certmagic.Issuer.
func (slow) IssuerKey() string { return "ca" }

// Issue implements certmagic.Issuer.
func (s slow) Issue(context.Context, *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if err := s.server.Set(lockPrefix+"issue_cert_"+name, "somebody else"); err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: []byte("late")}, nil
}

// TestWhoLostTheLockWritesNothing holds the names of locks against the library's own.
func TestWhoLostTheLockWritesNothing(t *testing.T) {
	server := miniredis.RunT(t)
	s, _ := openRedis(t, "tcp", server.Addr(), nil)
	later, _ := openRedis(t, "tcp", server.Addr(), nil)
	ctx := t.Context()
	var magic *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return magic, nil },
		Logger:           zapLogger(s.log),
	})
	defer cache.Stop()
	magic = certmagic.New(cache, certmagic.Config{Storage: s, Issuers: []certmagic.Issuer{slow{server: server}}, Logger: zapLogger(s.log)})
	if err := magic.ObtainCertSync(ctx, name); err == nil {
		t.Error("a late certificate was stored")
	}
	if s.Exists(ctx, "certificates") {
		t.Error("something of it was stored")
	}
	server.Del(lockPrefix + "issue_cert_" + name)
	const key = "certificates/ca/" + name + "/" + name + ".key"
	if err := errors.Join(later.Lock(ctx, "issue_cert_"+name), later.Store(ctx, key, []byte("new"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Lock(ctx, "issue_cert_second"); err != nil {
		t.Fatal(err)
	}
	server.Del(lockPrefix + "issue_cert_second")
	if err := s.Delete(ctx, "certificates/ca/second"); !errors.Is(err, errLost) {
		t.Errorf("deleted without the lock: %v", err)
	}
	if got, err := later.Load(ctx, key); string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
}
