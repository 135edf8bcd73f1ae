// Command refusals sends a request with each library of Go. Errors are the expected result.
package main

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
	"github.com/hashicorp/go-retryablehttp"
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), 12*time.Second)
	defer stop()
	retrying := retryablehttp.NewClient()
	retrying.Logger, retrying.RetryMax = nil, 3
	var requests sync.WaitGroup
	for program, client := range map[string]*http.Client{"go-retryablehttp": retrying.StandardClient(), "go-github-ratelimit": github_ratelimit.NewClient(nil)} {
		requests.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, os.Args[1]+"/"+program, http.NoBody)
			if err != nil {
				panic(err)
			}
			if resp, err := client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	requests.Wait()
}
