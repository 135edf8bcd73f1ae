// Command mcp makes the requests of some tools of github-mcp-server with the libraries and the URLs of that program.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/google/go-github/v83/github"
	"github.com/shurcooL/githubv4"
)

func main() {
	if err := run(context.Background(), os.Getenv("GITHUB_HOST"), os.Getenv("GITHUB_PERSONAL_ACCESS_TOKEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, host, token string) error {
	rest, err := github.NewClient(nil).WithAuthToken(token).WithEnterpriseURLs(host+"/api/v3/", host+"/api/uploads/")
	if err != nil {
		return err
	}
	user, _, err := rest.Users.Get(ctx, "")
	if err != nil {
		return fmt.Errorf("get_me: %w", err)
	}
	fmt.Println("get_me:", user.GetLogin())
	if err := listIssues(ctx, githubv4.NewEnterpriseClient(host+"/api/graphql", rest.Client())); err != nil {
		return fmt.Errorf("list_issues: %w", err)
	}
	if err := getFileContents(ctx, rest, host); err != nil {
		return fmt.Errorf("get_file_contents: %w", err)
	}
	found, _, err := rest.Search.Issues(ctx, "is:issue repo:acme/widgets", &github.SearchOptions{ListOptions: github.ListOptions{PerPage: 30}})
	if err != nil {
		return fmt.Errorf("search_issues: %w", err)
	}
	fmt.Println("search_issues:", len(found.Issues) > 0)
	_, _, err = rest.Issues.CreateComment(ctx, "acme", "widgets", 1, &github.IssueComment{Body: github.Ptr("text")})
	fmt.Println("add_issue_comment:", err)
	return nil
}

// listIssues lists issues by GraphQL.
func listIssues(ctx context.Context, client *githubv4.Client) error {
	var query struct {
		Repository struct {
			Issues struct {
				Nodes []struct {
					Number    githubv4.Int
					Title     githubv4.String
					Body      githubv4.String
					State     githubv4.String
					Author    struct{ Login githubv4.String }
					CreatedAt githubv4.DateTime
					UpdatedAt githubv4.DateTime
					Labels    struct {
						Nodes []struct{ Name, Description githubv4.String }
					} `graphql:"labels(first: 100)"`
					Comments struct{ TotalCount githubv4.Int }
				}
				PageInfo struct {
					HasNextPage githubv4.Boolean
					EndCursor   githubv4.String
				}
				TotalCount githubv4.Int
			} `graphql:"issues(first: $first, states: $states, orderBy: {field: $orderBy, direction: $direction})"`
		} `graphql:"repository(owner: $owner, name: $repo)"`
	}
	variables := map[string]any{
		"owner": githubv4.String("acme"), "repo": githubv4.String("widgets"), "first": githubv4.Int(30), "states": []githubv4.IssueState{githubv4.IssueStateOpen},
		"orderBy": githubv4.IssueOrderFieldCreatedAt, "direction": githubv4.OrderDirectionDesc,
	}
	if err := client.Query(ctx, &query, variables); err != nil {
		return err
	}
	fmt.Println("list_issues:", len(query.Repository.Issues.Nodes) > 0)
	return nil
}

// getFileContents resolves the default branch, reads the object of a file, and then its text from the host of files.
func getFileContents(ctx context.Context, rest *github.Client, host string) error {
	repository, _, err := rest.Repositories.Get(ctx, "acme", "widgets")
	if err != nil {
		return err
	}
	ref, _, err := rest.Git.GetRef(ctx, "acme", "widgets", "refs/heads/"+repository.GetDefaultBranch())
	if err != nil {
		return err
	}
	file, _, _, err := rest.Repositories.GetContents(ctx, "acme", "widgets", "README.md", &github.RepositoryContentGetOptions{Ref: ref.GetObject().GetSHA()})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/raw/acme/widgets/"+ref.GetObject().GetSHA()+"/README.md", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := rest.Client().Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	fmt.Printf("get_file_contents: %s, %s %q\n", file.GetPath(), resp.Status, text)
	return err
}
