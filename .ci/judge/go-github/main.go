// Command go-github performs the tasks of "weir judge" with go-github and its own checks. After a limit error it waits as
// long as the error says, and repeats the task. With the argument gofri, the transport of gofri/go-github-ratelimit
// replaces the checks. With the argument paced, creations are sent one after another, with a pause of a second.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit/github_primary_ratelimit"
	"github.com/google/go-github/v89/github"
)

// workers is the number of requests of one kind in progress at the same time.
const workers = 4

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go-github:", err)
		os.Exit(1)
	}
}

func run() error {
	mode := strings.Join(os.Args[1:], " ")
	ctx, url := context.Background(), os.Getenv("WEIR_JUDGE_URL")+"/"
	options := []github.ClientOptionsFunc{github.WithAuthToken(os.Getenv("WEIR_JUDGE_TOKEN")), github.WithURLs(&url, nil)}
	if mode == "gofri" {
		options = append(options, github.WithHTTPClient(github_ratelimit.NewClient(nil)))
		ctx = context.WithValue(ctx, github.BypassRateLimitCheck, true)
	}
	client, err := github.NewClient(options...)
	if err != nil {
		return err
	}
	queues := map[string]chan []string{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		task := append(strings.SplitN(lines.Text(), " ", 4), "")
		if queues[task[0]] == nil {
			queues[task[0]] = make(chan []string, 10_000)
		}
		queues[task[0]] <- task
	}
	var running sync.WaitGroup
	for kind, queue := range queues {
		close(queue)
		workers, pause := workers, time.Duration(0)
		if mode == "paced" && kind == "create" {
			workers, pause = 1, time.Second
		}
		for range workers {
			running.Go(func() {
				for task := range queue {
					time.Sleep(pause)
					for wait := send(ctx, client, task); wait > 0; wait = send(ctx, client, task) {
						time.Sleep(wait)
					}
				}
			})
		}
	}
	running.Wait()
	return lines.Err()
}

// send sends a task and returns the time to wait before its repetition, or 0. Failures without a limit error are not
// repeated.
func send(ctx context.Context, client *github.Client, task []string) time.Duration {
	var body any
	if task[3] != "" {
		body = json.RawMessage(task[3])
	}
	req, err := client.NewRequest(ctx, task[1], strings.TrimPrefix(task[2], "/"), body)
	if err != nil {
		return 0
	}
	_, err = client.Do(req, nil)
	var primary *github.RateLimitError
	var secondary *github.AbuseRateLimitError
	var reached *github_primary_ratelimit.RateLimitReachedError
	switch {
	case errors.As(err, &primary):
		return time.Until(primary.Rate.Reset.Time) + time.Second
	case errors.As(err, &reached):
		return time.Until(*reached.ResetTime) + time.Second
	case errors.As(err, &secondary):
		return secondary.GetRetryAfter()
	}
	return 0
}
