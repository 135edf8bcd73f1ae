package policy

import "testing"

func BenchmarkClassify(b *testing.B) {
	for _, bench := range []struct{ name, path, query string }{
		{"literal path", "/rate_limit", ""},
		{"no query", "/repos/acme/widgets/stats/participation", ""},
		{"canonical query", "/repos/acme/widgets/subscribers", "page=2&per_page=100"},
		{"query out of order", "/repos/acme/widgets/subscribers", "per_page=100&page=2"},
		{"escaped query", "/search/commits", "q=fix+leak+repo%3Aacme%2Fwidgets"},
		{"capitals and escapes", "/repos/ACME/Widgets/rules/branches/release%2f1.x", ""},
		{"numeric alias", "/repositories/42/subscribers", "page=2"},
		{"unknown route", "/repos/acme/widgets/issues/17/comments", ""},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Embedded().Classify("GET", bench.path, bench.query); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPreflight(b *testing.B) {
	m, err := Embedded().Classify("GET", "/search/code", "q=leak+language%3Ago+repo%3Aacme%2Fwidgets")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if f := m.Preflight(User); f != nil {
			b.Fatal(f)
		}
	}
}
