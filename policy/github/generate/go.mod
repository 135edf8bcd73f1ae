module github.com/weirgate/weir/policy/github/generate

go 1.26
