package credential

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkIdentify identifies the callers of requests with an Authorization field that the registry has seen before.
func BenchmarkIdentify(b *testing.B) {
	w := newFakeIssuer(b)
	key, _ := NewKey()
	r := newRegistry(func(c *Config) {
		for i := range 20 {
			c.Clients = append(c.Clients, keyed(fmt.Sprint("other ", i), fmt.Sprint("key ", i), "ci"))
		}
		c.Clients = append(c.Clients, keyed("builds", key.Reveal(), "ci"), Client{
			Name: "tokens", Token: TokenMatch{Issuer: issuerAddress, Claims: builds}, Credentials: []string{"ci"},
		})
		c.IssuerKeys, c.Issuers = w.keys, []Issuer{testIssuer(issuerAddress)}
	})
	for _, bench := range []struct{ name, value string }{
		{"key", "Bearer " + key.Reveal()},
		{"passed-through token", "Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a"},
		{"passed-through pair", basic("x-access-token:ghs_16C7e42F292c6912E7710c838347Ae178B4a")},
		{"token of an issuer", "Bearer " + w.token(map[string]any{"exp": time.Now().Add(time.Hour).Unix()})},
	} {
		b.Run(bench.name, func(b *testing.B) {
			request := requestWith(bench.value)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Identify(request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
