package policy

import (
	"fmt"
	"testing"
	"time"
)

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

// BenchmarkGrowth compares Classify with a catalogue of 1,000 operations and with a catalogue of 60 operations. Both
// catalogues alternate.
func BenchmarkGrowth(b *testing.B) {
	catalogueOf := func(n int) *Catalogue {
		var operations []*Operation
		for i := range n {
			operations = append(operations, &Operation{ID: fmt.Sprint("things/get-", i), Method: "GET", Path: fmt.Sprintf("/repos/{owner}/{repo}/things-%d", i), Resource: Core})
		}
		return index(operations, nil)
	}
	const each = 1000
	catalogues := [2]*Catalogue{catalogueOf(60), catalogueOf(1000)}
	var paths [60]string
	for i := range paths {
		paths[i] = fmt.Sprintf("/repos/acme/widgets/things-%d", i)
	}
	var took [2]time.Duration
	for b.Loop() {
		for i, c := range catalogues {
			began := time.Now()
			for n := range each {
				if m, err := c.Classify("GET", paths[n%len(paths)], ""); err != nil || !m.Operation.Known() {
					b.Fatal(m.Operation, err)
				}
			}
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N*each), "ns/of-60")
	b.ReportMetric(float64(took[1].Nanoseconds())/float64(b.N*each), "ns/of-1000")
}
