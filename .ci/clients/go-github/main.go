// Command go-github is the scenario of google/go-github. The scenario performs the usual operations of the client's
// users and reports the result of each step.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/google/go-github/v89/github"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	base := os.Getenv("WEIR") + "/"
	client, err := github.NewClient(github.WithAuthToken(os.Getenv("TOKEN")), github.WithURLs(&base, &base))
	if err != nil {
		return err
	}
	limits, _, err := client.RateLimit.Get(ctx)

	if err != nil || limits.Core.Limit != 5000 {
		return fmt.Errorf("rate limit: %v, %w", limits, err)
	}
	fmt.Printf("rate-limit: %d of %d left\n", limits.Core.Remaining, limits.Core.Limit)
	for _, step := range []func(context.Context, *github.Client) error{pagination, reference, statistics, conditional, graphQL, search, write} {
		if err := step(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

func pagination(ctx context.Context, client *github.Client) error {
	watchers := 0
	for opts := (&github.ListOptions{PerPage: 30}); ; {
		page, resp, err := client.Activity.ListWatchers(ctx, "acme", "widgets", opts)
		if err != nil {
			return fmt.Errorf("pagination: %w", err)
		}
		watchers += len(page)
		if resp.NextPage == 0 {
			break
		}
		opts.Page = resp.NextPage
	}
	if watchers != 64 {
		return fmt.Errorf("pagination: %d watchers", watchers)
	}
	fmt.Printf("pagination: %d watchers\n", watchers)
	return nil
}

func reference(ctx context.Context, client *github.Client) error {
	for range 2 {
		template, resp, err := client.Gitignores.Get(ctx, "Go")
		if err != nil || template.GetName() != "Go" {
			return fmt.Errorf("reference: %v, %w", template, err)
		}
		fmt.Println("reference:", resp.Header.Get("Cache-Status"))
	}
	return nil
}

// statistics requires the data in the first response. Without the gateway, the client returns an AcceptedError while
// the upstream computes the data.
func statistics(ctx context.Context, client *github.Client) error {
	weeks, _, err := client.Repositories.ListCommitActivity(ctx, "acme", "widgets")
	if err != nil || len(weeks) != 52 {
		return fmt.Errorf("statistics: %d weeks, %w", len(weeks), err)
	}
	fmt.Printf("statistics: %d weeks\n", len(weeks))
	return nil
}

func conditional(ctx context.Context, client *github.Client) error {
	get := func(etag string) (*github.Response, error) {
		req, err := client.NewRequest(ctx, http.MethodGet, "orgs/acme/members", nil)
		if err != nil {
			return nil, err
		}
		if etag != "" {
			req.Header.Set("If-None-Match", etag)
		}
		return client.Do(req, nil)
	}
	first, err := get("")
	if err != nil {
		return fmt.Errorf("conditional: %w", err)
	}
	etag := first.Header.Get("Etag")
	second, err := get(etag)
	var response *github.ErrorResponse
	if !errors.As(err, &response) || second.StatusCode != http.StatusNotModified {
		return fmt.Errorf("conditional: got %v, %w", second, err)
	}
	fmt.Println("conditional: 304 to", etag)
	return nil
}

func graphQL(ctx context.Context, client *github.Client) error {
	req, err := client.NewRequest(ctx, http.MethodPost, "graphql", map[string]string{"query": "{viewer{login}}"})
	if err != nil {
		return err
	}
	var result struct {
		Data struct{ Viewer struct{ Login string } }
	}
	if _, err := client.Do(req, &result); err != nil || result.Data.Viewer.Login != "acme-owner" {
		return fmt.Errorf("graphql: %+v, %w", result, err)
	}
	fmt.Println("graphql:", result.Data.Viewer.Login)
	return nil
}

// search repeats a search until the client refuses to send it, because the budget is used. Then search bypasses this
// check, and the gateway refuses the request. At last, the client sleeps until the reset, and the request passes.
func search(ctx context.Context, client *github.Client) error {
	request := func(ctx context.Context, n int) (*github.Response, error) {
		_, resp, err := client.Search.Commits(ctx, fmt.Sprintf("gear %d", n), nil)
		return resp, err
	}
	var limited *github.RateLimitError
	var err error
	n := 0
	for ; n < 10 && err == nil; n++ {
		_, err = request(ctx, n)
	}
	if !errors.As(err, &limited) || n < 5 {
		return fmt.Errorf("primary: %d searches, then %w", n, err)
	}
	fmt.Printf("primary: %d searches; the next is not sent: %v\n", n-1, limited)
	if _, err := request(context.WithValue(ctx, github.BypassRateLimitCheck, true), n); !errors.As(err, &limited) || limited.Response.Header.Get("Retry-After") == "" {
		return fmt.Errorf("primary: bypass of the check: %w", err)
	}
	fmt.Printf("primary: sent with a bypass: RateLimitError: %v\n", limited)
	began := time.Now()
	if _, err := request(context.WithValue(ctx, github.SleepUntilPrimaryRateLimitResetWhenRateLimited, true), n); err != nil {
		return fmt.Errorf("primary: after the reset: %w", err)
	}
	fmt.Printf("primary: passed after a sleep of %s\n", time.Since(began).Round(time.Second))
	return nil
}

// write creates tags until the gateway refuses a tag. Then the client refuses to send a tag until the time of
// Retry-After has passed.
func write(ctx context.Context, client *github.Client) error {
	found, _, err := client.Search.Commits(ctx, "gear", nil)
	if err != nil || len(found.Commits) == 0 {
		return fmt.Errorf("write: no commit: %w", err)
	}
	commit := found.Commits[0].GetSHA()
	tag := func(n int) (*github.Tag, error) {
		made, _, err := client.Git.CreateTag(ctx, "acme", "widgets", github.CreateTag{Tag: fmt.Sprintf("v%d", n), Message: "made by go-github", Object: commit, Type: "commit"})
		return made, err
	}
	var limited *github.AbuseRateLimitError
	n := 0
	for ; n < 10 && err == nil; n++ {
		var made *github.Tag
		if made, err = tag(n); err == nil {
			fmt.Println("write:", made.GetSHA())
		}
	}
	if !errors.As(err, &limited) || n < 2 || limited.RetryAfter == nil {
		return fmt.Errorf("secondary: %d tags, then %w", n, err)
	}
	fmt.Printf("secondary: %d tags, then AbuseRateLimitError: %v; retry after %s\n", n-1, limited, limited.GetRetryAfter())
	if _, err := tag(n); !errors.As(err, &limited) {
		return fmt.Errorf("secondary: then %w", err)
	}
	fmt.Printf("secondary: the next is not sent: %v\n", limited)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(limited.GetRetryAfter()):
	}
	if _, err := tag(n); err != nil {
		return fmt.Errorf("secondary: after Retry-After: %w", err)
	}
	fmt.Println("secondary: passed after that")
	return nil
}
