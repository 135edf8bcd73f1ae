// Command argocd makes the requests of the SCM provider generator and of the pull request generator of Argo CD
// ApplicationSet, with the version of go-github and the handling of the field api of Argo CD 3.6.
//
//	argocd API ORGANIZATION PATH REPOSITORY
//
// The SCM provider generator selects the repositories of ORGANIZATION that contain PATH. The pull request generator lists
// the pull requests of REPOSITORY. The environment variable WEIR_KEY is the token. The output is one line for each element.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/google/go-github/v69/github"
)

func main() {
	if err := generate(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, api, organization, path, repository string) error {
	client, err := github.NewClient(nil).WithAuthToken(os.Getenv("WEIR_KEY")).WithEnterpriseURLs(api, api)
	if err != nil {
		return err
	}
	if err := repositories(ctx, client, organization, path); err != nil {
		return err
	}
	pulls := &github.PullRequestListOptions{ListOptions: github.ListOptions{PerPage: 100}}
	for {
		page, resp, err := client.PullRequests.List(ctx, organization, repository, pulls)
		if err != nil {
			return err
		}
		for _, p := range page {
			fmt.Println("pull", p.GetNumber(), p.GetHead().GetRef(), p.GetHead().GetSHA())
		}
		if resp.NextPage == 0 {
			return nil
		}
		pulls.Page = resp.NextPage
	}
}

// repositories requests all repositories of the organization, and for each the head of its default branch and the path.
func repositories(ctx context.Context, client *github.Client, organization, path string) error {
	options := &github.RepositoryListByOrgOptions{ListOptions: github.ListOptions{PerPage: 100}}
	for {
		page, resp, err := client.Repositories.ListByOrg(ctx, organization, options)
		if err != nil {
			return err
		}
		for _, r := range page {
			branch, resp, err := client.Repositories.GetBranch(ctx, organization, r.GetName(), r.GetDefaultBranch(), 0)
			if resp != nil && resp.StatusCode == http.StatusNotFound {
				continue // an empty repository
			}
			if err != nil {
				return err
			}
			_, _, _, err = client.Repositories.GetContents(ctx, organization, r.GetName(), path, &github.RepositoryContentGetOptions{Ref: r.GetDefaultBranch()})
			if isNotFound(err) {
				continue
			}
			if err != nil {
				return err
			}
			fmt.Println("repository", r.GetName(), branch.GetCommit().GetSHA())
		}
		if resp.NextPage == 0 {
			return nil
		}
		options.Page = resp.NextPage
	}
}

func isNotFound(err error) bool {
	var e *github.ErrorResponse
	return errors.As(err, &e) && e.Response.StatusCode == http.StatusNotFound
}
