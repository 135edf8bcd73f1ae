module github.com/weirgate/weir/.ci/judge/go-github

go 1.26

require (
	github.com/gofri/go-github-ratelimit/v2 v2.0.2
	github.com/google/go-github/v89 v89.0.0
)

require github.com/google/go-querystring v1.2.0 // indirect
