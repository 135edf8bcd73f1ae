package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const heldAndIssuers = minimal + `credentials: [{name: ci, kind: user, token: x}]
issuers: [{name: actions, url: "https://issuer.example", audiences: [weir]}]
`

func TestMistakesOfRecognition(t *testing.T) {
	algorithms := "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"
	for _, c := range []struct{ name, text, want string }{
		{"a fingerprint that is too short", "clients: [{name: a, certificate: \"sha256:00\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "sha256:00": the fingerprint must be 64 hexadecimal digits`},
		{"a certificate by nothing", "clients: [{name: a, certificate: builds, credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "builds": must be sha256:FINGERPRINT, subject:NAME, dns:NAME, uri:URI or email:ADDRESS`},
		{"a name without an authority", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "dns:a": a name counts when tls.client_ca vouches for it, which is not set`},
		{"a certificate where there is no TLS", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]", "4:34: clients[0].certificate: no connection shows one: tls.domains and tls.certificates are empty"},
		{"authorities that are none", "tls: {client_ca: clients.go}", `4:18: tls.client_ca: "clients.go": must be certificates in PEM, and nothing after them`},
		{"an issuer that does not exist", "clients: [{name: a, jwt: {issuer: b, claims: {sub: x}}, credentials: [ci]}]", `4:35: clients[0].jwt.issuer: "b" is not among issuers`},
		{"claims of no issuer", "clients: [{name: a, jwt: {claims: {sub: x}}, credentials: [ci]}]", `4:26: clients[0].jwt.issuer: "" is not among issuers`},
		{"everybody's tokens", "clients: [{name: a, jwt: {issuer: actions}, credentials: [ci]}]", `4:26: clients[0].jwt.claims: required: which of the issuer's tokens are this client's, for example {sub: "repo:acme/widgets:*"}`},
		{"a claim that is empty", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: \"\"}}, credentials: [ci]}]", "4:58: clients[0].jwt.claims.sub: must not be empty"},
		{"a method in lower case", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, methods: [get], credentials: [ci]}]", `4:73: clients[0].methods[0]: "get": must be one of GET, POST, PUT, PATCH, DELETE, OPTIONS`},
		{"an operation with a slip", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [gitignore/get-templates], credentials: [ci]}]", `4:76: clients[0].operations[0]: "gitignore/get-templates": names no operation; did you mean "gitignore/get-template"?`},
		{"a pattern for nothing", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [\"nothing/*\"], credentials: [ci]}]", `4:76: clients[0].operations[0]: "nothing/*": names no operation; weir explain METHOD PATH tells the name`},
		{"an issuer in the open", "issuers: [{name: b, url: \"http://b.example\", audiences: [weir]}]", `4:26: issuers[0].url: "http://b.example": must begin with https://, unless it is on this machine`},
		{"an issuer without a URL", "issuers: [{name: b, audiences: [weir]}]", "4:11: issuers[0].url: required"},
		{"an issuer for everybody", "issuers: [{name: b, url: \"https://b.example\"}]", "4:11: issuers[0].audiences: must name this gateway as the issuer's tokens do: one for another service would do else"},
		{"no signature", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [none]}]", `4:79: issuers[0].algorithms[0]: "none": must be one of ` + algorithms},
		{"a signature by a shared secret", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [HS256]}]", `4:79: issuers[0].algorithms[0]: "HS256": must be one of ` + algorithms},
		{"no algorithm", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: []}]", "4:78: issuers[0].algorithms: must not be empty"},
		{"a clock that nobody can use", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], skew: 6m}]", "4:72: issuers[0].skew: 6m0s: must be 5m0s or less"},
		{"issuers of one URL", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir]}, {name: c, url: \"https://b.example\", audiences: [weir]}]", `4:82: issuers[1].url: "https://b.example" stands twice`},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := heldAndIssuers + c.text
			if strings.HasPrefix(c.text, "issuers") {
				text = minimal + "credentials: [{name: ci, kind: user, token: x}]\n\n" + c.text
			}
			_, err := parse(t, text)
			if err == nil || err.Error() != "weir.yaml:"+c.want {
				t.Errorf("got %v\nwant weir.yaml:%s", err, c.want)
			}
		})
	}
}

func TestClientsByWhatTheyShow(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	c := valid(t, heldAndIssuers+`tls: {domains: [weir.example], client_ca: "`+path+`"}
clients:
  - {name: a, certificate: "dns:a.example", methods: [GET], operations: ["search/*", unknown], credentials: [ci]}
  - {name: b, jwt: {issuer: actions, claims: {sub: "repo:acme/*"}}, credentials: [ci]}
  - {name: c, certificate: "sha256:`+strings.Repeat("0", 64)+`", credentials: [ci]}
`)
	if c.Clients[0].Share != 1 || c.Clients[2].Priority != "normal" {
		t.Errorf("%+v", c.Clients)
	}
	want := []Issuer{{Name: "actions", URL: "https://issuer.example", Audiences: []string{"weir"}, Algorithms: []string{"RS256", "ES256"}, Skew: 30 * time.Second}}
	if diff := cmp.Diff(want, c.Issuers); diff != "" {
		t.Error(diff)
	}
	if _, err := parse(t, heldAndIssuers+`tls: {client_ca: /nonexistent}`); err == nil || !strings.Contains(err.Error(), "4:18: tls.client_ca: open /nonexistent: no such file") {
		t.Errorf("authorities that cannot be read: %v", err)
	}
}
