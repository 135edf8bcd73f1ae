package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// figure is one that stands beside the rounds.
type figure struct{ what, value, wanted string }

// beside measures what is not asked of every server: size, start, memory, growth.
func (s *stage) beside(ctx context.Context) ([]figure, error) {
	var figures []figure
	for _, measure := range []func(context.Context) ([]figure, error){s.binary, s.startUp, s.memory, s.growth, s.catalogue} {
		more, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			fmt.Printf("%s: %s; wanted: %s\n", f.what, f.value, f.wanted)
		}
		figures = append(figures, more...)
	}
	return figures, nil
}

// libraries are those of the stack that Weir is built on, without what it chose besides.
var libraries = []string{
	"net/http/httputil", "github.com/redis/go-redis/v9", "golang.org/x/time/rate", "github.com/caddyserver/certmagic",
	"go.opentelemetry.io/contrib/exporters/autoexport",
}

// binary is how long the gateway takes to build, how much of that its libraries take
// alone, and how large it is.
func (s *stage) binary(ctx context.Context) ([]figure, error) {
	var whole, bare []float64
	for range s.builds {
		for _, one := range []struct {
			command []string
			took    *[]float64
		}{{s.compile, &whole}, {s.bare, &bare}} {
			seconds, err := s.fromNothing(ctx, one.command)
			if err != nil {
				return nil, err
			}
			*one.took = append(*one.took, seconds)
		}
	}
	info, err := os.Stat(s.weir)
	if err != nil {
		return nil, err
	}
	figures := []figure{{"size of the binary", megabytes(info.Size()), "below 40 MB"}}
	if s.builds > 0 {
		figures = append(figures, figure{
			fmt.Sprintf("build of the binary, modules at hand, nothing compiled, median of %d", s.builds),
			fmt.Sprintf("%.1f s; the libraries of the stack alone %.1f s", middle(whole), middle(bare)), "below 60 s",
		})
	}
	return figures, nil
}

// fromNothing is how many seconds a command takes that finds no package compiled.
func (s *stage) fromNothing(ctx context.Context, command []string) (float64, error) {
	cache := filepath.Join(s.dir, "gocache")
	began := time.Now()
	if err := s.build(ctx, command, "GOCACHE="+cache); err != nil {
		return 0, err
	}
	return time.Since(began).Seconds(), os.RemoveAll(cache)
}

// startUp is how long it takes from the start of the process to its first answer.
func (s *stage) startUp(ctx context.Context) ([]figure, error) {
	var took []float64
	for range s.starts {
		began := time.Now()
		c, _, err := s.startWeir(ctx, "memory:")
		if err != nil {
			return nil, err
		}
		_, err = (column{path: small}).answered(ctx, c.address)
		took = append(took, time.Since(began).Seconds()*1000)
		c.end()
		if err != nil {
			return nil, err
		}
	}
	return []figure{{fmt.Sprintf("start to first answer, median of %d", s.starts), fmt.Sprintf("%.0f ms", middle(took)), "below 150 ms"}}, nil
}

// memory is what the gateway has resident when it is idle, and when it knows many
// accounts.
func (s *stage) memory(ctx context.Context) ([]figure, error) {
	c, _, err := s.startWeir(ctx, "memory:")
	if err != nil {
		return nil, err
	}
	defer c.end()
	if _, err := (column{path: small}).answered(ctx, c.address); err != nil {
		return nil, err
	}
	idle, err := resident(c.process.Pid)
	if err != nil {
		return nil, err
	}
	if err := fill(ctx, c, s.accounts, 0); err != nil {
		return nil, err
	}
	known, err := resident(c.process.Pid)
	return []figure{
		{"resident, idle", megabytes(idle), "below 40 MB"},
		{fmt.Sprintf("resident, %d accounts", s.accounts), megabytes(known), "at most 100 MB"},
	}, err
}

// crowd is a gateway that knows so many accounts, and holds so many entries.
type crowd struct {
	*child
	accounts, entries int
}

// growth compares what a hit costs where little is held with what it costs where much is.
func (s *stage) growth(ctx context.Context) ([]figure, error) {
	var figures []figure
	for _, pair := range []struct {
		what     string
		of, with crowd
	}{
		// Both hold as many entries: in the second they are those of many.
		{"accounts", crowd{accounts: 1, entries: s.accounts}, crowd{accounts: s.accounts, entries: 1}},
		{"entries", crowd{accounts: 1, entries: s.few}, crowd{accounts: 1, entries: s.entries}},
	} {
		crowds := []crowd{pair.of, pair.with}
		costs, err := s.costOf(ctx, crowds)
		if err != nil {
			return nil, err
		}
		from, to := pair.of.accounts, pair.with.accounts
		if pair.what == "entries" {
			from, to = pair.of.entries, pair.with.entries
			held, err := resident(crowds[1].process.Pid)
			if err != nil {
				return nil, err
			}
			figures = append(figures, figure{fmt.Sprintf("resident, %d answers of 2 KB", to), megabytes(held), "at most 350 MB"})
		}
		cpu := func(m sample) float64 { return m.cpu }
		figures = append(figures, figure{
			fmt.Sprintf("CPU of a hit with %d %s, to that with %d", to, pair.what, from),
			fmt.Sprintf("%.2f (%.2f to %.2f s for 100,000)", paired(costs[1], costs[0], cpu), median(costs[1], cpu), median(costs[0], cpu)), "at most 1.10",
		})
		for _, c := range crowds {
			c.end()
		}
	}
	return figures, nil
}

// catalogue compares what it costs to find a request's operation among many with what it
// costs among few. The catalogue is part of the gateway, so a benchmark of its package has
// both; nothing else of a request looks at more than one operation.
func (s *stage) catalogue(ctx context.Context) ([]figure, error) {
	var ratios []float64
	for range s.rounds {
		out, err := exec.CommandContext(ctx, "go", slices.Concat([]string{"test"}, s.flags, []string{"-run", "^$", "-bench", "^BenchmarkGrowth$", "./policy"})...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go test -bench: %w: %s", err, out)
		}
		ratio, err := parseMetric(string(out), "ratio")
		if err != nil {
			return nil, err
		}
		ratios = append(ratios, ratio)
	}
	return []figure{{"finding the operation among 1,000, to that among 60", fmt.Sprintf("%.2f", middle(ratios)), "at most 1.10"}}, nil
}

// growthTurns is how many times as many rounds growth is measured in: it is a few in a hundred,
// and from one round to the next what a hit costs differs by more.
const growthTurns = 4

// costOf starts and fills each crowd, and measures them in turns.
func (s *stage) costOf(ctx context.Context, crowds []crowd) ([][]sample, error) {
	script, err := s.script("report.lua", "spread.lua")
	if err != nil {
		return nil, err
	}
	for i, c := range crowds {
		started, admin, err := s.startWeir(ctx, "memory:")
		if err != nil {
			return nil, err
		}
		crowds[i].child = started
		if err := fill(ctx, started, c.accounts, c.entries); err != nil {
			return nil, err
		}
		if err := holds(ctx, admin, c.accounts*c.entries); err != nil {
			return nil, err
		}
	}
	samples := make([][]sample, len(crowds))
	for round := range 1 + growthTurns*s.rounds { // the first warms up
		for i := range crowds {
			i := (i + round) % len(crowds)
			c := crowds[i]
			l := load{url: "http://" + c.address, connections: 64, script: script, args: []string{strconv.Itoa(c.accounts), strconv.Itoa(c.entries)}}
			m, err := s.sample(ctx, column{kept: true, path: small}, c.child, l, round == 0)
			if err != nil {
				return nil, fmt.Errorf("%d accounts with %d entries: %w", c.accounts, c.entries, err)
			}
			if round > 0 {
				samples[i] = append(samples[i], m)
			}
		}
	}
	return samples, nil
}

// fill asks a gateway once for each entry by each account; without entries, for what is
// not kept.
func fill(ctx context.Context, c *child, accounts, entries int) error {
	const atOnce = 16
	transport := &http.Transport{MaxIdleConnsPerHost: atOnce, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(atOnce)
	for n := range accounts * max(1, entries) {
		asking.Go(func() error {
			path := passing
			if entries > 0 {
				path = fmt.Sprintf("/repos/o/r%d/subscribers", n/accounts)
			}
			resp, err := get(ctx, client, "http://"+c.address+path, map[string]string{"Authorization": fmt.Sprintf("Bearer account-%d", n%accounts)})
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: answered %d", path, resp.StatusCode)
			}
			_ = resp.Body.Close() // it was read
			return err
		})
	}
	return asking.Wait()
}

// holds makes sure that a gateway has kept everything.
func holds(ctx context.Context, admin string, want int) error {
	resp, err := get(ctx, http.DefaultClient, "http://"+admin+"/metrics", nil)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "weir_cache_entries") {
			value := line[strings.LastIndexByte(line, ' ')+1:]
			if got, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil || int(got) < want {
				return fmt.Errorf("holds %s entries, want %d", strings.TrimSpace(value), want)
			}
			return nil
		}
	}
	return fmt.Errorf("no metric tells how many entries are held")
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
