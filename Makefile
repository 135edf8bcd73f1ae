# make demo runs Weir; make test tests it. make help tells the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh

GO       ?= go
TOOL     := $(GO) tool -modfile=tools.mod
FUZZTIME ?= 10s
COUNT    ?= 5

.PHONY: help build demo test lint check fuzz bench cover fmt clean needs

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/weir, static.
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/weir ./cmd/weir

demo: build ## Build, and run everything on this machine. Needs Go only.
	@exec ./bin/weir demo

test: needs ## Run all tests with the race detector, after installing what they need.
	WEIR_REDIS_SERVER="$$(command -v redis-server)" $(GO) test -race -shuffle=on ./...

needs: # What tests need from the system; installed when missing.
	@.ci/need redis-server

lint: ## Run go vet, the linters, and check that the module files are tidy.
	$(GO) vet ./...
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff

check: test lint ## Run what CI runs.

fuzz: ## Run every fuzz target for FUZZTIME.
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

bench: ## Run the Go benchmarks COUNT times.
	$(GO) test -run '^$$' -bench . -count $(COUNT) ./...

cover: ## Print the coverage of each function.
	$(GO) test -coverprofile=cover.out ./... && $(GO) tool cover -func=cover.out

fmt: ## Format the Go files.
	gofmt -w cmd proxy policy cache limits internal

clean: ## Remove what was built.
	rm -rf bin cover.out
