package proxy

import (
	"log/slog"
	"net/http"
	"net/url"
	"testing"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/fields"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/secrets"
)

// BenchmarkHitParts runs the parts of a hit that read each byte of the target or of the credential.
func BenchmarkHitParts(b *testing.B) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		b.Fatal(err)
	}
	g := New(Config{
		Dialect: dialect, Upstream: &url.URL{Scheme: "https", Host: "api.github.com"}, Catalogue: policy.CatalogueOf("github"), Log: slog.New(slog.DiscardHandler),
	})
	m, err := g.Catalogue.Classify(http.MethodGet, "/repos/acme/widgets/pulls/17/comments", "page=2&per_page=100")
	if err != nil {
		b.Fatal(err)
	}
	header := http.Header{
		"Authorization": {"Bearer ghp_16C7e42F292c6912E7710c838347Ae178B4a"}, "Accept": {"application/vnd.github+json"},
		"X-Github-Api-Version": {"2022-11-28"}, "User-Agent": {"octokit.js/4.0.0"},
	}
	q := &question{match: m, Outgoing: fields.Outgoing{Header: header}}
	ex := &exchange{question: q, in: &http.Request{Header: header}, record: &record.Record{}}
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"mask the path", func() { ex.maskedPath() }},
		{"hash the target", func() { q.targetHash() }},
		{"key", func() { g.keyWithoutClass(q) }},
		{"check a tag", func() { secrets.IsTag("acme/widgets@run-1234567890") }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				part.run()
			}
		})
	}
}
