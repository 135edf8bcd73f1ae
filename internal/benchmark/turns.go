package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// perTurn is how often a server is asked before the next: a twentieth of a second.
const perTurn = 100

// added is the latency that Weir adds to that of a bare reverse proxy, and a call to Redis
// likewise, where nobody else asks: a process of its own asks all of them in short turns
// for what passes through. Loads of seconds differ by more than what is looked for: in two
// runs of them Weir added 6 µs and 208, in five of turns 15 to 30, for how soon a shared
// machine wakes who waits changes.
func (s *stage) added(ctx context.Context, f *field) ([]figure, error) {
	names := []string{proxyName, weir, proxyRedis, weirRedis}
	args := []string{s.self, "turns", strconv.Itoa(s.turns)}
	for _, name := range names {
		args = append(args, f.servers[name].address)
	}
	args = s.elsewhere(args)
	before, err := s.reached(ctx)
	if err != nil {
		return nil, err
	}
	asking := exec.CommandContext(ctx, args[0], args[1:]...)
	text, err := asking.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return nil, err
	}
	after, err := s.reached(ctx)
	if err != nil {
		return nil, err
	}
	if want := int64(s.turns * perTurn * len(names)); after-before < want {
		return nil, fmt.Errorf("in turns: only %d of %d requests have reached the upstream", after-before, want)
	}
	var p50 []time.Duration
	if err := json.Unmarshal(text, &p50); err != nil {
		return nil, err
	}
	return addedFigures(p50[0], p50[1], p50[2], p50[3]), nil
}

// addedFigures are made of the medians of a bare reverse proxy, of Weir, and of both over
// Redis.
func addedFigures(bare, memory, called, redis time.Duration) []figure {
	return []figure{
		{
			"p50 that Weir adds, memory ledger, to that of the ReverseProxy, in turns",
			fmt.Sprintf("%d µs to %d", (memory - bare).Microseconds(), bare.Microseconds()), "below 60 µs",
		},
		{
			"the same, Redis ledger",
			fmt.Sprintf("%d µs; one call to Redis adds %d µs", (redis - bare).Microseconds(), (called - bare).Microseconds()), "below 1.5 calls",
		},
	}
}

// turns gives servers so many turns, each over a connection of its own and one after the
// other, and writes the medians of their latencies, in nanoseconds, as a JSON array.
func turns(ctx context.Context, out io.Writer, args []string) error {
	if len(args) < 2 {
		return errors.New("turns: want a number and addresses")
	}
	times, err := strconv.Atoi(args[0])
	if err != nil || times < 1 {
		return fmt.Errorf("turns: %q is no number from 1", args[0])
	}
	asked := make([]*asker, len(args)-1)
	for i, address := range args[1:] {
		if asked[i], err = newAsker(ctx, address); err != nil {
			return err
		}
		defer func() { _ = asked[i].Close() }()
	}
	for turn := range times {
		for i := range asked {
			for range perTurn {
				if err := asked[(i+turn)%len(asked)].ask(); err != nil {
					return err
				}
			}
		}
	}
	p50 := make([]time.Duration, len(asked))
	for i, a := range asked {
		slices.Sort(a.took)
		p50[i] = a.took[len(a.took)/2]
	}
	return json.NewEncoder(out).Encode(p50)
}

// asker asks one server, and remembers how long each answer took.
type asker struct {
	net.Conn
	answers *bufio.Reader
	took    []time.Duration
}

func newAsker(ctx context.Context, address string) (*asker, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &asker{Conn: conn, answers: bufio.NewReader(conn)}, nil
}

// ask sends a request and reads its answer to the end.
func (a *asker) ask() error {
	began := time.Now()
	if err := a.SetDeadline(began.Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(a, "GET "+passing+" HTTP/1.1\r\nHost: "+a.RemoteAddr().String()+"\r\nAuthorization: "+token+"\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(a.answers, nil)
	if err != nil {
		return err
	}
	size, err := io.Copy(io.Discard, resp.Body)
	if err := resp.Body.Close(); err != nil {
		return err
	}
	a.took = append(a.took, time.Since(began))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK || size != smallSize:
		return fmt.Errorf("%s answered %d with %d bytes, want %d with %d", a.RemoteAddr(), resp.StatusCode, size, http.StatusOK, smallSize)
	}
	return nil
}
