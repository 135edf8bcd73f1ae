package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// noEnv is an environment without variables.
func noEnv(string) (string, bool) { return "", false }

// TestTheDemoAnswersWhoIsWaiting: the API behind it ends after the gateway, which may have
// to ask it once more for who waits still.
func TestTheDemoAnswersWhoIsWaiting(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	in, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0", "--traffic", "off"}, noEnv, out, io.Discard)
		_ = out.Close()
	}()
	var welcome strings.Builder
	url := ""
	for url == "" {
		b := make([]byte, 4<<10)
		n, err := in.Read(b)
		if err != nil {
			t.Fatal(err, welcome.String())
		}
		welcome.Write(b[:n])
		if found := regexp.MustCompile(`gateway +(http://\S+)`).FindStringSubmatch(welcome.String()); found != nil {
			url = found[1]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, in) }()
	time.AfterFunc(1500*time.Millisecond, stop) // statistics take 3 seconds
	resp, err := http.Get(url + "/repos/acme/widgets/stats/code_frequency")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s, %s", resp.Status, resp.Header.Get("Cache-Status"))
	}
	if code := <-ended; code != exitOK {
		t.Errorf("ended with %d", code)
	}
}

// TestAnAddressThatIsTakenIsNamedByItsKey, for who has set it, or has left the default.
func TestAnAddressThatIsTakenIsNamedByItsKey(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, address := "127.0.0.1:0", taken.Addr().String()
	serve := func(listen, admin string) []string {
		return []string{"serve", "--upstream", "http://127.0.0.1:1", "--listen", listen, "--admin", admin}
	}
	demo := func(listen, admin, service string) []string {
		return []string{"demo", "--listen", listen, "--admin", admin, "--service", service}
	}
	for _, c := range []struct {
		args []string
		key  string
	}{
		{serve(address, free), "listen"}, {serve(free, address), "admin.listen"},
		{demo(address, free, free), "listen"}, {demo(free, address, free), "admin.listen"}, {demo(free, free, address), "service"},
	} {
		var problems bytes.Buffer
		code := run(t.Context(), c.args, noEnv, io.Discard, &problems)
		if said := problems.String(); code != exitFailure || !strings.Contains(said, "weir: "+c.key+": listen tcp "+address) {
			t.Errorf("%q ended with %d, and said %q", c.args, code, said)
		}
	}
}
