package config

import (
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
)

// maxSkew bounds how long a token may outlive itself.
const maxSkew = 5 * time.Minute

// issuers returns the names of those that are configured.
func (d *decoder) issuers(issuers []Issuer) map[string]bool {
	names, urls := map[string]bool{}, map[string]bool{}
	for i, entry := range issuers {
		key := fmt.Sprintf("issuers[%d]", i)
		d.name(key+".name", entry.Name, names)
		d.name(key+".url", entry.URL, urls)
		if err := credential.CheckIssuerURL(entry.URL); err != nil {
			d.wrong(key+".url", "%q: %v", redacted(entry.URL), err)
		}
		if len(entry.Audiences) == 0 || slices.Contains(entry.Audiences, "") {
			d.wrong(key+".audiences", "must name this gateway as the issuer's tokens do: one for another service would do else")
		}
		if len(entry.Algorithms) == 0 {
			d.wrong(key+".algorithms", "must not be empty")
		}
		for j, name := range entry.Algorithms {
			if !slices.Contains(credential.SigningAlgorithms(), name) {
				d.wrong(fmt.Sprintf("%s.algorithms[%d]", key, j), "%q: must be one of %s", name, strings.Join(credential.SigningAlgorithms(), ", "))
			}
		}
		if entry.Skew > maxSkew {
			d.wrong(key+".skew", "%s: must be %s or less", entry.Skew, maxSkew)
		}
	}
	return names
}

// recognized checks what the client at a path is known by, and what it may ask
// for.
func (d *decoder) recognized(key string, client Client, c *Config, issuers map[string]bool) {
	byToken := client.JWT.Issuer != "" || len(client.JWT.Claims) > 0
	if client.Key == "" && client.Certificate == "" && !byToken {
		d.wrong(key+".key", "required: weir key new makes one; or give certificate or jwt")
	}
	if client.Certificate != "" {
		certificate, err := credential.ParseCertificate(client.Certificate)
		switch {
		case err != nil:
			d.wrong(key+".certificate", "%q: %v", client.Certificate, err)
		case !c.TLS.Enabled():
			d.wrong(key+".certificate", "no connection shows one: tls.domains and tls.certificates are empty")
		case certificate.NeedsAuthority() && c.TLS.ClientCA == "":
			d.wrong(key+".certificate", "%q: a name counts when tls.client_ca vouches for it, which is not set", client.Certificate)
		}
	}
	if byToken {
		d.tokens(key+".jwt", client.JWT, issuers)
	}
	for i, method := range client.Methods {
		if methods := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}; !slices.Contains(methods, method) {
			d.wrong(fmt.Sprintf("%s.methods[%d]", key, i), "%q: must be one of %s", method, strings.Join(methods, ", "))
		}
	}
	for i, pattern := range client.Operations {
		if !policy.Embedded().Names(pattern) {
			d.wrong(fmt.Sprintf("%s.operations[%d]", key, i), "%q: names no operation; %s", pattern, suggestion(pattern))
		}
	}
}

func (d *decoder) tokens(key string, j JWT, issuers map[string]bool) {
	if !issuers[j.Issuer] {
		d.wrong(key+".issuer", "%q is not among issuers", j.Issuer)
	}
	if len(j.Claims) == 0 {
		d.wrong(key+".claims", `required: which of the issuer's tokens are this client's, for example {sub: "repo:acme/widgets:*"}`)
	}
	for _, name := range slices.Sorted(maps.Keys(j.Claims)) {
		if j.Claims[name] == "" {
			d.wrong(key+".claims."+name, "must not be empty")
		}
	}
}

// Authorities reads the certificates of those who vouch for clients; none where the
// file names none.
func (t TLS) Authorities() ([]*x509.Certificate, error) {
	if t.ClientCA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, err
	}
	authorities, err := credential.ParseAuthorities(string(text))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", t.ClientCA, err)
	}
	return authorities, nil
}

// authorities puts the path of those who vouch for clients on the file's folder, and
// checks what is there.
func (d *decoder) authorities(t *TLS) {
	if t.ClientCA != "" {
		t.ClientCA = d.path(t.ClientCA)
	}
	if _, err := t.Authorities(); err != nil {
		d.wrong("tls.client_ca", "%v", err)
	}
}
