// Command terraform makes requests like the Terraform provider integrations/github: with go-github, the provider's
// handling of base_url, and the ETags in its state. parallel_requests is true, so the provider's own delays do not apply.
//
//	terraform BASE_URL STATE REPOSITORY...
//
// It refreshes the repositories of the organization acme and their default branches. A repository without a label
// "managed" gets one. STATE is a JSON file. The environment variable WEIR_KEY is the token.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"sync"

	"github.com/google/go-github/v89/github"
)

const (
	organization = "acme"
	parallel     = 10 // concurrent operations of Terraform by default
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, base, file string, repositories []string) error {
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	rest := u.JoinPath("api/v3/").String()
	client, err := github.NewClient(github.WithTransport(conditional{http.DefaultTransport}), github.WithAuthToken(os.Getenv("WEIR_KEY")), github.WithURLs(&rest, &rest))
	if err != nil {
		return err
	}
	s := &state{ETags: map[string]string{}}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.apply(ctx, client, repositories); err != nil {
		return err
	}
	fmt.Printf("%d created, %d read, %d not modified\n", s.created, s.read, s.unmodified)
	if text, err = json.Marshal(s); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// state is the state of all resources.
type state struct {
	ETags map[string]string // by resource

	mu                        sync.Mutex // guards ETags and the counters
	created, read, unmodified int
}

// apply refreshes and creates the resources of all repositories.
func (s *state) apply(ctx context.Context, client *github.Client, repositories []string) error {
	problems := make(chan error, len(repositories))
	slots := make(chan struct{}, parallel)
	for _, name := range repositories {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			problems <- s.repository(ctx, client, name)
		}()
	}
	var all error
	for range repositories {
		all = errors.Join(all, <-problems)
	}
	return all
}

func (s *state) repository(ctx context.Context, client *github.Client, name string) error {
	return errors.Join(
		s.refresh(ctx, "repository "+name, func(ctx context.Context) (*github.Response, error) {
			_, resp, err := client.Repositories.Get(ctx, organization, name)
			return resp, err
		}),
		s.refresh(ctx, "branch "+name, func(ctx context.Context) (*github.Response, error) {
			_, resp, err := client.Repositories.GetBranch(ctx, organization, name, "main", 0)
			return resp, err
		}),
		s.label(ctx, client, name),
	)
}

// label creates the label if the state does not contain it, and refreshes it.
func (s *state) label(ctx context.Context, client *github.Client, repository string) error {
	const label = "managed"
	resource := "label " + repository
	s.mu.Lock()
	_, exists := s.ETags[resource]
	s.mu.Unlock()
	if !exists {
		if _, _, err := client.Issues.CreateLabel(ctx, organization, repository, &github.Label{Name: new(label)}); err != nil {
			return err
		}
		s.mu.Lock()
		s.created++
		s.mu.Unlock()
	}
	return s.refresh(ctx, resource, func(ctx context.Context) (*github.Response, error) {
		_, resp, err := client.Issues.GetLabel(ctx, organization, repository, label)
		return resp, err
	})
}

// refresh reads a resource with its ETag.
func (s *state) refresh(ctx context.Context, resource string, get func(context.Context) (*github.Response, error)) error {
	s.mu.Lock()
	etag := s.ETags[resource]
	s.mu.Unlock()
	resp, err := get(context.WithValue(ctx, etagKey{}, etag))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case resp != nil && resp.StatusCode == http.StatusNotModified:
		s.unmodified++
	case err != nil:
		return fmt.Errorf("%s: %w", resource, err)
	default:
		s.read++
		s.ETags[resource] = resp.Header.Get("Etag")
	}
	return nil
}

// etagKey is the key of the ETag in the context of a request.
type etagKey struct{}

// conditional adds the ETag to a request.
type conditional struct{ http.RoundTripper }

func (c conditional) RoundTrip(req *http.Request) (*http.Response, error) {
	if etag, _ := req.Context().Value(etagKey{}).(string); etag != "" {
		req = req.Clone(req.Context())
		req.Header.Set("If-None-Match", etag)
	}
	return c.RoundTripper.RoundTrip(req)
}
