package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/durations"
)

type caCommand struct {
	Init initCACommand `cmd:"" help:"Create the authority of the forward proxy for the hosts of a configuration."`
}

type initCACommand struct {
	Config   string        `help:"Configuration file, for the names of the API and its hosts." placeholder:"FILE"`
	Name     []string      `help:"Another host name; repeat the flag for several." placeholder:"NAME"`
	Out      string        `help:"Folder for the files, which is created; the working folder if empty." placeholder:"FOLDER"`
	Validity time.Duration `default:"8760h" help:"Life of the authority."`
}

// anotherFolder is the remedy if an authority exists.
const anotherFolder = "choose another folder with --out, and trust both authorities until all programs trust the new one"

// maxValidity is the longest life of an authority.
const maxValidity = 5 * 365 * 24 * time.Hour

// Run writes the certificate and the key of a new authority.
func (c *initCACommand) Run(p *process) error {
	names, err := c.names(p)
	if err != nil {
		return err
	}
	if c.Validity < time.Hour || c.Validity > maxValidity {
		return &exit{exitUsage, fmt.Sprintf("--validity: %v: must be from 1h to %s", durations.Text(c.Validity), durations.Text(maxValidity))}
	}
	now := time.Now()
	certificate, key, err := authority.Create(names, c.Validity, now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cmp.Or(c.Out, "."), 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	certificateFile, keyFile := filepath.Join(c.Out, "weir-ca.crt"), filepath.Join(c.Out, "weir-ca.key")
	if err := writeNewFile(keyFile, key, 0o600, anotherFolder); err != nil {
		return err
	}
	if err := writeNewFile(certificateFile, certificate, 0o644, anotherFolder); err != nil {
		return err
	}
	block, _ := pem.Decode(certificate)
	p.printf("created an authority for %s\n", strings.Join(names, ", "))
	p.printf("  certificate  %s, which programs must trust\n", certificateFile)
	p.printf("  key          %s, for the gateway only\n", keyFile)
	p.printf("  expires      %s\n", now.Add(c.Validity).Format(time.DateOnly))
	p.printf("  SHA-256      %X\n", sha256.Sum256(block.Bytes))
	p.printf("lines for the configuration:\n  proxy:\n    listen: \":3128\"\n    ca: {certificate: %q, key: %q}\n", certificateFile, keyFile)
	p.printf("trust the certificate where programs run (docs/proxy.md has the details):\n")
	for _, store := range trustStores {
		p.printf("  %-24s  %s\n", store.name, strings.ReplaceAll(store.do, "{FILE}", certificateFile))
	}
	p.printf("  a variable with BUNDLE replaces the system's list: cat /etc/ssl/certs/ca-certificates.crt %s >BUNDLE\n", certificateFile)
	return nil
}

// trustStores describes how programs trust a certificate. {FILE} is its file, BUNDLE also has the certificates of the system.
var trustStores = []struct{ name, do string }{
	{"Debian, Ubuntu, Alpine", "cp {FILE} /usr/local/share/ca-certificates/ && update-ca-certificates"},
	{"Fedora, RHEL", "cp {FILE} /etc/pki/ca-trust/source/anchors/ && update-ca-trust"},
	{"macOS", "sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {FILE}"},
	{"Windows", "certutil -addstore Root {FILE}"},
	{"Java", "keytool -importcert -cacerts -alias weir -file {FILE} -storepass changeit -noprompt"},
	{"Node, Actions toolkit", "NODE_EXTRA_CA_CERTS={FILE}"},
	{"Python requests", "REQUESTS_CA_BUNDLE=BUNDLE"},
	{"Go, gh, Terraform", "the system's list, or SSL_CERT_FILE=BUNDLE"},
	{"curl", "the system's list, or CURL_CA_BUNDLE=BUNDLE"},
	{"git", "the system's list, or git config --global http.sslCAInfo BUNDLE"},
	{"self-hosted runner", "the system's list, and NODE_EXTRA_CA_CERTS={FILE} in its .env file"},
}

// names returns the names of the API and its hosts, and those of --name.
func (c *initCACommand) names(p *process) ([]string, error) {
	names := slices.Clone(c.Name)
	if c.Config != "" {
		// The configuration may already name the files that this command creates.
		source := config.Source{Path: c.Config, Getenv: p.getenv, Flags: map[string]string{"proxy.listen": ""}}
		cfg, err := config.Load(source)
		if err != nil {
			return nil, err
		}
		names = append(names, cfg.HostNames()...)
	}
	if len(names) == 0 {
		return nil, &exit{exitUsage, "no names: give --config FILE or --name NAME"}
	}
	for i, name := range names {
		if strings.ContainsAny(name, " \t/:@") {
			return nil, &exit{exitUsage, fmt.Sprintf("--name: %q: must be only a host name such as api.example.com, without scheme and port", name)}
		}
		names[i] = strings.ToLower(name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// writeNewFile writes a file that does not exist yet. The error for a file that exists ends with remedy.
func writeNewFile(path string, text []byte, mode os.FileMode, remedy string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if os.IsExist(err) {
		return fmt.Errorf("write %s: the file exists; %s", path, remedy)
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		_ = f.Close() // the error of Write explains the failure
		return err
	}
	return f.Close()
}
