package judge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Run starts a command as several programs and waits for them. Each program gets its tasks as lines of its standard
// input, and the URL and token of the upstream in WEIR_JUDGE_URL and WEIR_JUDGE_TOKEN. Run kills programs that are still
// running when ctx ends. The output must be safe for concurrent use.
func Run(ctx context.Context, command []string, url string, programs int, output io.Writer) error {
	problems := make([]error, programs)
	var running sync.WaitGroup
	for program := range programs {
		var input strings.Builder
		for _, task := range Tasks(program) {
			input.WriteString(task.String() + "\n")
		}
		process := exec.CommandContext(ctx, command[0], command[1:]...)
		process.Env = append(process.Environ(), "WEIR_JUDGE_URL="+url, "WEIR_JUDGE_TOKEN="+Token)
		process.Stdin = strings.NewReader(input.String())
		process.Stdout, process.Stderr = output, output
		process.WaitDelay = time.Second // for children of the program that keep its output open
		running.Go(func() {
			if err := process.Run(); err != nil && ctx.Err() == nil {
				problems[program] = fmt.Errorf("run program %d of %q: %w", program+1, command[0], err)
			}
		})
	}
	running.Wait()
	return errors.Join(problems...)
}

// Load sends the tasks of several programs to a URL until ctx ends, and returns the number of limit errors in the
// responses. After a limit error with Retry-After, Load repeats the task after that time. Load repeats no other failed
// task.
func Load(ctx context.Context, client *http.Client, url string, programs int) (limitErrors int, err error) {
	l := &load{client: client, url: strings.TrimSuffix(url, "/")}
	var workers sync.WaitGroup
	for program := range programs {
		for _, queue := range byKind(Tasks(program)) {
			for range Workers {
				workers.Go(func() {
					for task := range queue {
						l.perform(ctx, task)
					}
				})
			}
		}
	}
	workers.Wait()
	if l.responses == 0 {
		return 0, fmt.Errorf("send tasks to %s: no response: %w; start the proxy before the judge", url, l.failure)
	}
	return l.limitErrors, nil
}

// Probe sends one read through the proxy at a URL, and returns an error if it does not reach the upstream of the judge. So no
// other API gets the load of a run.
func Probe(ctx context.Context, client *http.Client, url string, u *Upstream, address string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	l := &load{client: client, url: strings.TrimSuffix(url, "/")}
	before := u.seen()
	if _, err := l.send(ctx, Task{Method: http.MethodGet, Path: "/user"}); err != nil {
		return fmt.Errorf("probe %s: no response: %w; start the proxy before the judge", url, err)
	}
	if u.seen() == before {
		return fmt.Errorf("probe %s: the proxy did not forward the request to the judge; set its upstream to %s", url, address)
	}
	return nil
}

// probeTimeout bounds the probe.
const probeTimeout = 10 * time.Second

// byKind returns a closed channel with the tasks of each kind.
func byKind(tasks []Task) map[string]chan Task {
	queues := map[string]chan Task{}
	for _, task := range tasks {
		if queues[task.Kind] == nil {
			queues[task.Kind] = make(chan Task, len(tasks))
		}
		queues[task.Kind] <- task
	}
	for _, queue := range queues {
		close(queue)
	}
	return queues
}

// load is the state of [Load].
type load struct {
	client *http.Client
	url    string

	mu          sync.Mutex // guards the fields below
	responses   int
	limitErrors int
	failure     error // of the last request without a response
}

// perform sends a task, and repeats it after each limit error with Retry-After.
func (l *load) perform(ctx context.Context, task Task) {
	for ctx.Err() == nil {
		wait, err := l.send(ctx, task)
		if err != nil {
			l.mu.Lock()
			l.failure = err
			l.mu.Unlock()
		}
		if wait == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// send sends a task once. It returns the Retry-After of a limit error.
func (l *load) send(ctx context.Context, task Task) (retryAfter time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, task.Method, l.url+task.Path, strings.NewReader(task.Body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+Token)
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.responses++
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
		return 0, nil
	}
	l.limitErrors++
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0 without the field
	seconds = min(max(0, seconds), int(Duration.Seconds()))
	return time.Duration(seconds) * time.Second, nil
}
