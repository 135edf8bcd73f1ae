package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/weirgate/weir/internal/authority"
)

// serviceNames are the hosts of the reference service with TLS. The first is that of clients that name none.
var serviceNames = []string{
	"localhost", "api.localhost", "uploads.localhost", "raw.localhost", "codeload.localhost", "objects.localhost", "github.localhost",
}

// withServiceTLS adds TLS to the listener of the reference service. It creates an authority for this run, and returns the
// file of its certificate. The caller removes the folder of the file, which also has the key.
func withServiceTLS(l net.Listener) (tlsListener net.Listener, file string, err error) {
	certificate, key, err := authority.Create(serviceNames, 30*24*time.Hour, time.Now())
	if err != nil {
		return nil, "", err
	}
	folder, err := os.MkdirTemp("", "weir-service-")
	if err != nil {
		return nil, "", err
	}
	file, keyFile := filepath.Join(folder, "authority.crt"), filepath.Join(folder, "authority.key")
	if err = errors.Join(os.WriteFile(file, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		return nil, file, err
	}
	a, err := authority.Load(file, keyFile)
	if err != nil {
		return nil, file, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.Certificate(cmp.Or(hello.ServerName, serviceNames[0]))
		},
	}
	return tls.NewListener(l, config), file, nil
}
