// Command atlantis makes the requests of Atlantis for one plan of a pull request, with the libraries and the
// authentication of Atlantis.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
	"github.com/google/go-github/v83/github"
	"github.com/shurcooL/githubv4"
)

const (
	owner, repo = "acme", "widgets"
	number      = 35
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	user := &github.BasicAuthTransport{Username: os.Getenv("ATLANTIS_GH_USER"), Password: os.Getenv("ATLANTIS_GH_TOKEN")}
	limited := github_ratelimit.NewClient(user)
	client := github.NewClient(limited)

	pull, _, err := client.PullRequests.Get(ctx, owner, repo, number)
	if err != nil {
		return fmt.Errorf("read pull request: %w", err)
	}
	files, _, err := client.PullRequests.ListFiles(ctx, owner, repo, number, &github.ListOptions{PerPage: 300})
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	config, _, _, err := client.Repositories.GetContents(ctx, owner, repo, "README.md", &github.RepositoryContentGetOptions{Ref: pull.GetHead().GetRef()})
	if err != nil {
		return fmt.Errorf("read file: %w", err)
	}
	reviews, _, err := client.PullRequests.ListReviews(ctx, owner, repo, number, &github.ListOptions{PerPage: 300})
	if err != nil {
		return fmt.Errorf("list reviews: %w", err)
	}
	var query struct {
		Repository struct{ DatabaseId githubv4.Int } `graphql:"repository(owner: $owner, name: $name)"`
	}
	variables := map[string]any{"owner": githubv4.String(owner), "name": githubv4.String(repo)}
	if err := githubv4.NewClient(limited).Query(ctx, &query, variables); err != nil {
		return fmt.Errorf("query the ID of the repository: %w", err)
	}
	if len(os.Args) > 1 && os.Args[1] == "plan" {
		if err := report(ctx, client, pull.GetHead().GetSHA()); err != nil {
			return err
		}
	}
	comments, _, err := client.Issues.ListComments(ctx, owner, repo, number, &github.IssueListCommentsOptions{Sort: github.Ptr("created"), Direction: github.Ptr("asc")})
	if err != nil {
		return fmt.Errorf("list comments: %w", err)
	}
	last := ""
	if len(comments) > 0 {
		last = comments[len(comments)-1].GetBody()
	}
	fmt.Printf("pull request %d: %d files, %s, %d reviews, repository %d, last comment %q\n",
		pull.GetNumber(), len(files), config.GetPath(), len(reviews), query.Repository.DatabaseId, last)
	return nil
}

// report sets the status of the commit and comments the result.
func report(ctx context.Context, client *github.Client, sha string) error {
	for _, state := range []string{"pending", "success"} {
		status := github.RepoStatus{State: github.Ptr(state), Context: github.Ptr("atlantis/plan"), Description: github.Ptr("1/1 projects planned successfully.")}
		if _, _, err := client.Repositories.CreateStatus(ctx, owner, repo, sha, status); err != nil {
			return fmt.Errorf("set status: %w", err)
		}
	}
	if _, _, err := client.Issues.CreateComment(ctx, owner, repo, number, &github.IssueComment{Body: github.Ptr("Ran Plan for dir: `.`")}); err != nil {
		return fmt.Errorf("comment: %w", err)
	}
	return nil
}
