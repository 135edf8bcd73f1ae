package main

import (
	"context"
	"embed"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"
)

//go:embed conf
var conf embed.FS

// stage is what all measurements stand on: a folder, the servers behind those that are
// measured, and the processes that end with it.
type stage struct {
	options
	dir   string
	self  string // this program
	cores int
	// upstream, sink and redis are addresses.
	upstream, sink, redis string
	running               sync.WaitGroup
	stop                  context.CancelFunc
}

// child is a process that was started. Its descendants are part of it.
type child struct {
	address string
	process *os.Process
	// end tells it to end, and waits until it has.
	end func()
}

// newStage builds the gateway, and starts what stands behind it. All processes end with
// ctx, which stop ends.
func newStage(ctx context.Context, stop context.CancelFunc, o options) (*stage, error) {
	for _, program := range []string{"wrk", "taskset", "redis-server"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not installed: make bench does that: %w", program, err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-benchmark-")
	if err != nil {
		return nil, err
	}
	s := &stage{options: o, dir: dir, self: self, cores: runtime.NumCPU(), stop: stop}
	err = os.Chmod(dir, 0o755) // workers of peers may run as somebody else
	if err == nil {
		err = s.set(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// set starts everything that is not measured.
func (s *stage) set(ctx context.Context) error {
	if err := s.build(ctx, s.compile); err != nil {
		return err
	}
	for _, kind := range []struct {
		name    string
		address *string
	}{{"upstream", &s.upstream}, {"sink", &s.sink}} {
		c, err := s.start(ctx, s.elsewhere([]string{s.self, kind.name, address}), nil)
		if err != nil {
			return err
		}
		*kind.address = c.address
	}
	c, err := s.start(ctx, s.elsewhere([]string{"redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", s.dir}), nil)
	if err == nil {
		s.redis = c.address
	}
	return err
}

// build runs a command that compiles, in the environment and what is added to it.
func (s *stage) build(ctx context.Context, command []string, env ...string) error {
	build := exec.CommandContext(ctx, command[0], command[1:]...)
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", build, err, out)
	}
	return nil
}

// close ends all processes, and forgets what they wrote.
func (s *stage) close() {
	s.stop()
	s.running.Wait()
	_ = os.RemoveAll(s.dir)
}

// pinned is a command that has the first core to itself, where there are others.
func (s *stage) pinned(command []string) []string {
	if s.cores == 1 {
		return command
	}
	return append([]string{"taskset", "-c", "0"}, command...)
}

// elsewhere is a command that has all other cores.
func (s *stage) elsewhere(command []string) []string {
	if s.cores == 1 {
		return command
	}
	return append([]string{"taskset", "-c", fmt.Sprintf("1-%d", s.cores-1)}, command...)
}

// machine says what the figures are of.
func (s *stage) machine() string {
	pins := "server on the first, load, upstream and Redis on the others"
	if s.cores == 1 {
		pins = "server, load and upstream share it"
	}
	return fmt.Sprintf("%s, %d cores (%s), %s; rounds: %d, of %s each", processor(), s.cores, pins, runtime.Version(), s.rounds, s.time)
}

// processor is what the first core calls itself.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // what is not told is not needed
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimLeft(strings.TrimSpace(name), ": ")
		}
	}
	return runtime.GOARCH
}

// What stands in a command for its own address, and for the port of it alone.
const address, port = "{address}", "{port}"

// start starts a command on a free port, and waits until it listens.
func (s *stage) start(ctx context.Context, command, env []string) (*child, error) {
	at, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	return s.startAt(ctx, at, command, env)
}

// startAt starts a command, and waits until it listens on its address.
func (s *stage) startAt(ctx context.Context, at string, command, env []string) (*child, error) {
	_, number, _ := net.SplitHostPort(at)
	for i, arg := range command {
		command[i] = strings.NewReplacer(address, at, port, number).Replace(arg)
	}
	log, err := os.CreateTemp(s.dir, "log-")
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	process := exec.CommandContext(running, command[0], command[1:]...)
	process.Env, process.Stdout, process.Stderr = append(os.Environ(), env...), log, log
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	process.WaitDelay = 15 * time.Second
	if err := process.Start(); err != nil {
		stop()
		return nil, err
	}
	ended := make(chan struct{})
	s.running.Go(func() {
		defer close(ended)
		_ = process.Wait() // it was told to end, or does not listen
		_ = log.Close()
	})
	c := &child{address: at, process: process.Process, end: func() {
		stop()
		<-ended
	}}
	if err := listens(running, at, ended); err != nil {
		c.end()
		said, _ := os.ReadFile(log.Name()) // what it said is all that can be told
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, said)
	}
	return c, nil
}

// listens waits until a server does.
func listens(ctx context.Context, at string, ended <-chan struct{}) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not listen: %w", err)
		case <-ended:
			return fmt.Errorf("it has ended: %w", err)
		case <-again.C:
		}
	}
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// configure writes one of the files in conf, and returns where it is.
func (s *stage) configure(name, at string, values map[string]string) (string, error) {
	t, err := template.ParseFS(conf, "conf/"+name)
	if err != nil {
		return "", err
	}
	host, number, _ := net.SplitHostPort(s.upstream)
	all := map[string]string{"Address": at, "Dir": s.dir, "Upstream": s.upstream, "UpstreamHost": host, "UpstreamPort": number}
	for key, value := range values {
		all[key] = value
	}
	_, number, _ = net.SplitHostPort(at)
	path := filepath.Join(s.dir, number+"-"+name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := t.Execute(f, all); err != nil {
		_ = f.Close()
		return "", err
	}
	return path, f.Close()
}

// startWeir starts a gateway over a store. Its operator's listener is at admin.
func (s *stage) startWeir(ctx context.Context, store string) (c *child, admin string, err error) {
	at, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	if admin, err = freeAddress(ctx); err != nil {
		return nil, "", err
	}
	file, err := s.configure("weir.yaml", at, map[string]string{"Admin": admin, "Store": store})
	if err != nil {
		return nil, "", err
	}
	binary, err := filepath.Abs(s.weir)
	if err != nil {
		return nil, "", err
	}
	c, err = s.startAt(ctx, at, s.pinned([]string{binary, "serve", "--config", file}), []string{"GOMAXPROCS=1", "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + s.sink})
	return c, admin, err
}

// get asks once.
func get(ctx context.Context, client *http.Client, url string, fields map[string]string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	for name, value := range fields {
		request.Header.Set(name, value)
	}
	return client.Do(request)
}
