module github.com/weirgate/weir/.ci/clients/recipes

go 1.26

require github.com/google/go-github/v69 v69.2.0

require github.com/google/go-querystring v1.1.0 // indirect
