// Command benchmark measures the gateway beside its peers, and writes what it finds into
// docs/performance.md and docs/performance.svg: make bench.
//
// Every server is a process of its own on 127.0.0.1, pinned to the first core and given
// one worker; load, upstream and Redis have the others. Rounds are interleaved: each
// visits every server once, in an order that rotates, so that what else the machine does
// meets all of them alike. Figures are medians of the rounds, ratios medians of the
// ratios of each round.
//
// Invariants: a run in which any request failed, was not answered from the cache where it
// should have been, or was where it should not, ends with an error and writes nothing.
// It is not a test of speed: nothing here has a threshold.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// options say how much is measured, and where the figures go.
type options struct {
	columns []column
	rounds  int
	time    time.Duration // of each server in a column and round
	turns   int           // of each server that one connection asks
	starts  int           // from which the median start is taken
	entries int           // in the larger of two caches
	few     int           // in the smaller
	// accounts is how many callers the larger of two gateways knows.
	accounts int
	compile  []string // the command that makes weir
	bare     []string // one that compiles the libraries weir is made of, and nothing of it
	builds   int      // how often both are done from nothing but the sources
	flags    []string // of go test
	weir     string   // the gateway's binary
	docs     string   // where the figures go
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

// run is the benchmark, or one of the processes that it starts.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "turns" {
		return turns(ctx, os.Stdout, args[1:])
	}
	if len(args) > 0 {
		return serve(ctx, args[0], args[1:])
	}
	o := options{
		columns: columns(), turns: 200, starts: 20, entries: 100_000, few: 1_000, accounts: 10_000,
		compile: []string{".ci/build", "-o", "bin/weir", "./cmd/weir"}, bare: append([]string{".ci/build"}, libraries...), builds: 3, weir: "bin/weir", docs: "docs",
	}
	var err error
	if o.rounds, err = strconv.Atoi(cmp.Or(os.Getenv("WEIR_BENCH_ROUNDS"), "5")); err != nil || o.rounds < 1 {
		return fmt.Errorf("WEIR_BENCH_ROUNDS must be a number from 1")
	}
	seconds, err := strconv.ParseFloat(cmp.Or(os.Getenv("WEIR_BENCH_SECONDS"), "5"), 64)
	if err != nil || seconds <= 0 {
		return fmt.Errorf("WEIR_BENCH_SECONDS must be a number above 0")
	}
	o.time = time.Duration(seconds * float64(time.Second))
	return bench(ctx, o)
}

// bench measures everything and writes it down.
func bench(ctx context.Context, o options) error {
	ctx, stop := context.WithCancel(ctx)
	s, err := newStage(ctx, stop, o)
	if err != nil {
		return err
	}
	defer s.close()
	fmt.Println(s.machine())
	beside, err := s.beside(ctx)
	if err != nil {
		return err
	}
	field, err := s.openField(ctx)
	if err != nil {
		return err
	}
	results, err := s.compare(ctx, field)
	if err != nil {
		return err
	}
	added, err := s.added(ctx, field)
	if err != nil {
		return err
	}
	return write(o, s.machine(), field, results, append(added, beside...))
}
