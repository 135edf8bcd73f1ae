// Programs with the libraries of the recipes. Each program has the version of go-github of the program that it plays.
module github.com/weirgate/weir/e2e/testdata/go

go 1.26.0

require (
	github.com/gofri/go-github-ratelimit/v2 v2.0.2
	github.com/google/go-github/v69 v69.2.0
	github.com/google/go-github/v83 v83.0.0
	github.com/google/go-github/v89 v89.0.0
	github.com/shurcooL/githubv4 v0.0.0-20240727222349-48295856cce7
)

require (
	github.com/google/go-querystring v1.2.0 // indirect
	github.com/shurcooL/graphql v0.0.0-20240915155400-7ee5256398cf // indirect
	golang.org/x/oauth2 v0.38.0 // indirect
)
