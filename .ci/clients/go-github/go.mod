module github.com/weirgate/weir/.ci/clients/go-github

go 1.26

require github.com/google/go-github/v89 v89.0.0

require github.com/google/go-querystring v1.2.0 // indirect
