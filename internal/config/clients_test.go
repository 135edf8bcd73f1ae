package config

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"
)

const heldAndIssuers = minimal + `credentials: [{name: ci, kind: user, token: x}]
issuers: [{name: actions, url: "https://issuer.example", audiences: [weir]}]
`

func TestIdentityMistakesAreReported(t *testing.T) {
	algorithms := "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"
	mistakes := []mistake{
		{"short fingerprint", "clients: [{name: a, certificate: \"sha256:00\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "sha256:00": the fingerprint must have 64 hexadecimal digits`},
		{"certificate without a form", "clients: [{name: a, certificate: builds, credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "builds": must be sha256:FINGERPRINT, subject:NAME, dns:NAME, uri:URI or email:ADDRESS`},
		{"name without an authority", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]\ntls: {domains: [weir.example]}", `4:34: clients[0].certificate: "dns:a": a name needs tls.client_ca, which is not set`},
		{"certificate without HTTPS", "clients: [{name: a, certificate: \"dns:a\", credentials: [ci]}]", "4:34: clients[0].certificate: HTTPS is off, because tls.domains and tls.certificates are empty"},
		{"client_ca without certificates", "tls: {client_ca: config.go}", `4:18: tls.client_ca: "config.go": must contain certificates in PEM, and nothing after them`},
		{"unknown issuer", "clients: [{name: a, jwt: {issuer: b, claims: {sub: x}}, credentials: [ci]}]", `4:35: clients[0].jwt.issuer: "b" is not among issuers`},
		{"claims without an issuer", "clients: [{name: a, jwt: {claims: {sub: x}}, credentials: [ci]}]", `4:26: clients[0].jwt.issuer: "" is not among issuers`},
		{"no claims", "clients: [{name: a, jwt: {issuer: actions}, credentials: [ci]}]", `4:26: clients[0].jwt.claims: required; select this client's tokens, for example {sub: "repo:acme/widgets:*"}`},
		{"claim for tags without an issuer", "clients: [{name: a, key: \"sha256:" + strings.Repeat("0", 64) + "\", jwt: {tag: repository}, credentials: [ci]}]", "4:112: clients[0].jwt.tag: needs jwt.issuer and jwt.claims"},
		{"empty claim", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: \"\"}}, credentials: [ci]}]", "4:58: clients[0].jwt.claims.sub: must not be empty"},
		{"method in lower case", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, methods: [get], credentials: [ci]}]", `4:73: clients[0].methods[0]: "get": must be one of GET, POST, PUT, PATCH, DELETE, OPTIONS`},
		{"misspelled operation", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [gitignore/get-templates], credentials: [ci]}]", `4:76: clients[0].operations[0]: "gitignore/get-templates": matches no operation; did you mean "gitignore/get-template"?`},
		{"pattern without a match", "clients: [{name: a, jwt: {issuer: actions, claims: {sub: x}}, operations: [\"nothing/*\"], credentials: [ci]}]", `4:76: clients[0].operations[0]: "nothing/*": matches no operation; list the names with weir catalogue`},
		{"issuer without TLS", "issuers: [{name: b, url: \"http://b.example\", audiences: [weir]}]", `4:26: issuers[0].url: "http://b.example": must begin with https:// unless the host is loopback`},
		{"issuer without URL", "issuers: [{name: b, audiences: [weir]}]", "4:11: issuers[0].url: required"},
		{"issuer without audiences", "issuers: [{name: b, url: \"https://b.example\"}]", "4:11: issuers[0].audiences: must name this gateway; otherwise tokens for other services would be accepted"},
		{"algorithm none", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [none]}]", `4:79: issuers[0].algorithms[0]: "none": must be one of ` + algorithms},
		{"HMAC algorithm", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: [HS256]}]", `4:79: issuers[0].algorithms[0]: "HS256": must be one of ` + algorithms},
		{"no algorithms", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], algorithms: []}]", "4:78: issuers[0].algorithms: must not be empty"},
		{"large skew", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir], skew: 6m}]", "4:72: issuers[0].skew: 6m0s: must be 5m0s or less"},
		{"duplicate issuer URL", "issuers: [{name: b, url: \"https://b.example\", audiences: [weir]}, {name: c, url: \"https://b.example\", audiences: [weir]}]", `4:82: issuers[1].url: "https://b.example" is a duplicate`},
	}
	for _, m := range mistakes {
		beginning := heldAndIssuers
		if strings.HasPrefix(m.text, "issuers") {
			beginning = minimal + "credentials: [{name: ci, kind: user, token: x}]\n\n"
		}
		checkMistakes(t, beginning, []mistake{m})
	}
}

func TestClientsWithCertificatesAndTokens(t *testing.T) {
	c := valid(t, heldAndIssuers+`tls: {domains: [weir.example], client_ca: "`+certificates(t)+`/own.pem"}
clients:
  - {name: a, certificate: "dns:a.example", methods: [GET], operations: ["search/*", unknown], credentials: [ci]}
  - {name: b, jwt: {issuer: actions, claims: {sub: "repo:acme/*"}}, credentials: [ci]}
  - {name: c, certificate: "sha256:`+strings.Repeat("0", 64)+`", credentials: [ci]}
`)
	if c.Clients[0].Share != 1 || c.Clients[2].Priority != "normal" {
		t.Errorf("clients %+v", c.Clients)
	}
	want := []Issuer{{
		Name: "actions", URL: "https://issuer.example", Audiences: []string{"weir"}, Algorithms: []string{"RS256", "ES256"}, Skew: 30 * time.Second,
	}}
	equal(t, "configuration", c.Issuers, want)
	_, err := parse(t, heldAndIssuers+`tls: {client_ca: /nonexistent}`)
	if err == nil || !strings.Contains(message(err), "4:18: tls.client_ca: open /nonexistent: no such file") {
		t.Errorf("unreadable client_ca: %v", err)
	}
}

// The guarantees of many interactive clients exceed a window together. The ledger shrinks them.
func TestManyInteractiveClientsAreValid(t *testing.T) {
	var clients []string
	for i := range 30 {
		name := fmt.Sprint("person-", i)
		clients = append(clients, fmt.Sprintf(`{name: %s, key: "sha256:%x", credentials: [ci], priority: interactive}`, name, sha256.Sum256([]byte(name))))
	}
	valid(t, heldAndIssuers+"clients: ["+strings.Join(clients, ", ")+"]")
}
