package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// sample is what one server did in one round of a column.
type sample struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
	cpu      float64 // seconds for 100,000 requests
}

// cell is where samples belong.
type cell struct{ column, server string }

// results are the samples of all rounds, in their order.
type results map[cell][]sample

// compare measures every server in every column and round.
func (s *stage) compare(ctx context.Context, f *field) (results, error) {
	script, err := s.script("report.lua")
	if err != nil {
		return nil, err
	}
	got := results{}
	for round := range 1 + s.rounds { // the first warms up
		for _, c := range f.columns {
			for i := range c.servers {
				name := c.servers[(i+round)%len(c.servers)]
				server := f.servers[name]
				if server == nil {
					continue
				}
				m, err := s.sample(ctx, c, server, c.load(server.address, script), round == 0)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", c.title, name, err)
				}
				fmt.Printf("round %d: %s, %s: %.0f/s, %.2f CPU s\n", round, c.title, name, m.rate, m.cpu)
				if at := (cell{c.title, name}); round > 0 {
					got[at] = append(got[at], m)
				}
			}
		}
	}
	return got, nil
}

// sample measures a server once.
func (s *stage) sample(ctx context.Context, c column, server *child, l load, warmUp bool) (sample, error) {
	d := s.time
	if warmUp {
		d = min(d, time.Second)
	}
	reached, err := s.reached(ctx)
	if err != nil {
		return sample{}, err
	}
	m, err := s.cost(ctx, server, l, d)
	if err != nil {
		return sample{}, err
	}
	after, err := s.reached(ctx)
	if err != nil {
		return sample{}, err
	}
	return m.sample, c.check(m.measured, after-reached)
}

// check says what is wrong with a measurement: of the requests so many have reached the
// upstream.
func (c column) check(m measured, reached int64) error {
	each := int(m.bytes / m.requests)
	switch {
	case m.failures != "":
		return fmt.Errorf("%d requests, and %s", m.requests, m.failures)
	case c.kept && reached > m.requests/1000:
		return fmt.Errorf("%d of %d hits have reached the upstream", reached, m.requests)
	case !c.kept && reached < m.requests:
		return fmt.Errorf("only %d of %d requests have reached the upstream", reached, m.requests)
	case each < c.size(), c.conditional && each >= smallSize:
		return fmt.Errorf("answers of %d bytes with their fields, want bodies of %d", each, c.size())
	}
	return nil
}

// costs is a load and what it took.
type costs struct {
	sample
	measured
}

// cost loads a server, and counts the CPU that it needs for it.
func (s *stage) cost(ctx context.Context, server *child, l load, d time.Duration) (costs, error) {
	before, err := cpuSeconds(server.process.Pid)
	if err != nil {
		return costs{}, err
	}
	m, err := s.run(ctx, l, d)
	if err != nil {
		return costs{}, err
	}
	after, err := cpuSeconds(server.process.Pid)
	if err != nil {
		return costs{}, err
	}
	requests := float64(m.requests)
	return costs{measured: m, sample: sample{rate: requests / m.time.Seconds(), p50: m.p50, p99: m.p99, cpu: (after - before) / requests * 100_000}}, nil
}

// reached is how many requests the upstream has answered.
func (s *stage) reached(ctx context.Context) (int64, error) {
	resp, err := get(ctx, http.DefaultClient, "http://"+s.upstream+seen, nil)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		return 0, err
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// script writes one of wrk's.
func (s *stage) script(names ...string) (string, error) {
	var text []byte
	for _, name := range names {
		part, err := conf.ReadFile("conf/" + name)
		if err != nil {
			return "", err
		}
		text = append(text, part...)
	}
	path := filepath.Join(s.dir, names[len(names)-1])
	return path, os.WriteFile(path, text, 0o600)
}

// median of what a sample tells, over all rounds.
func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, m := range samples {
		values[i] = of(m)
	}
	return middle(values)
}

// middle is the median of values; of an even number of them the mean of the two in the
// middle. There must be one.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// paired is the median of the ratios of each round.
func paired(samples, baseline []sample, of func(sample) float64) float64 {
	ratios := make([]float64, min(len(samples), len(baseline)))
	for i := range ratios {
		ratios[i] = of(samples[i]) / of(baseline[i])
	}
	return middle(ratios)
}
