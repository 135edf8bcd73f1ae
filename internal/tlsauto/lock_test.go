package tlsauto

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/caddyserver/certmagic"
)

// slowIssuer loses the lock of its order before it issues a certificate.
type slowIssuer struct {
	certmagic.Issuer
	server *miniredis.Miniredis
}

// IssuerKey implements certmagic.Issuer.
func (slowIssuer) IssuerKey() string { return "ca" }

// Issue implements certmagic.Issuer.
func (s slowIssuer) Issue(context.Context, *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if err := s.server.Set(lockPrefix+"issue_cert_"+name, "another replica"); err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: []byte("late")}, nil
}

// The storage depends on the lock names of certmagic, so the test orders through certmagic.
func TestStoreAndDeleteFailAfterLockIsLost(t *testing.T) {
	server, o := inMemory(t)
	s, _ := openRedis(t, o, nil)
	later, _ := openRedis(t, o, nil)
	ctx := t.Context()
	var magic *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return magic, nil },
		Logger:           zapLogger(s.log),
	})
	defer cache.Stop()
	magic = certmagic.New(cache, certmagic.Config{Storage: s, Issuers: []certmagic.Issuer{slowIssuer{server: server}}, Logger: zapLogger(s.log)})
	if err := magic.ObtainCertSync(ctx, name); err == nil {
		t.Error("a certificate was stored after its lock was lost")
	}
	failIf(t, s.Exists(ctx, "certificates"), "the storage has files of the failed order")
	server.Del(lockPrefix + "issue_cert_" + name)
	const key = "certificates/ca/" + name + "/" + name + ".key"
	noError(t, errors.Join(later.Lock(ctx, "issue_cert_"+name), later.Store(ctx, key, []byte("new")), s.Lock(ctx, "issue_cert_second")))
	server.Del(lockPrefix + "issue_cert_second")
	if err := s.Delete(ctx, "certificates/ca/second"); !errors.Is(err, errLockLost) {
		t.Errorf("deleted without the lock: %v", err)
	}
	got, err := later.Load(ctx, key)
	failIf(t, string(got) != "new", "got %q, %v, want new", got, err)
}
