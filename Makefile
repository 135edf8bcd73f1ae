# make demo runs Weir; make test tests it. make help tells the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh

GO       ?= go
TOOL     := $(GO) tool -modfile=tools.mod
FUZZTIME ?= 10s
COUNT    ?= 6
OLD      ?=

# Where tests find the servers that they start.
SERVERS = WEIR_REDIS_SERVER="$$(command -v redis-server)"

.PHONY: help build demo test lint check fuzz bench bench-limits bench-savings conformance h2spec cover fmt clean needs

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/weir, static.
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/weir ./cmd/weir

demo: build ## Build, and run everything on this machine. Needs Go only.
	@exec ./bin/weir demo

test: needs ## Run all tests with the race detector, after installing what they need.
	$(SERVERS) $(GO) test -race -shuffle=on -timeout 30m ./...

needs: # What tests need from the system; installed when missing.
	@.ci/need gcc gcc libc6-dev
	@.ci/need redis-server

lint: ## Run go vet, the linters, and check that the module files are tidy.
	$(GO) vet ./...
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff

check: test lint ## Run what CI runs.

fuzz: ## Run every fuzz target for FUZZTIME.
	@set -e; packages=$$($(GO) list ./...); for package in $$packages; do \
		tests=$$($(GO) test -list '^Fuzz' $$package); for target in $$(echo "$$tests" | grep '^Fuzz'); do \
			echo "$$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

bench: ## Run the Go benchmarks COUNT times into bin/bench.txt; OLD=FILE compares with an earlier one.
	@mkdir -p bin
	$(GO) test -run '^$$' -bench . -benchmem -count $(COUNT) ./... >bin/bench.txt || { cat bin/bench.txt; exit 1; }
	$(TOOL) benchstat $(OLD) bin/bench.txt

bench-limits: needs ## Hold the limits against a hostile upstream, in memory and over Redis: about 10 minutes.
	WEIR_SCENARIOS=$${WEIR_SCENARIOS:-2000} WEIR_WINDOWS=$${WEIR_WINDOWS:-40} $(GO) test -count=1 -timeout 1800s -v -run 'TestNoLimitIsExceeded|TestSaturationUsesTheLimits' ./limits/hostile
	$(SERVERS) WEIR_REDIS_SCENARIOS=$${WEIR_REDIS_SCENARIOS:-100} WEIR_WINDOWS=$${WEIR_REDIS_WINDOWS:-4} $(GO) test -count=1 -timeout 1800s -v -run 'OverRedis' ./limits/redisledger

bench-savings: ## Count what a day of traffic costs the API's quota: a minute.
	WEIR_SAVINGS=$${WEIR_SAVINGS:-24h} $(GO) test -count=1 -timeout 1800s -v -run TestADayCostsATenth ./proxy

conformance: build ## Run the public HTTP cache test suite against bin/weir: half a minute, and Node.
	@.ci/need node nodejs
	@.ci/need npm
	@npm install --prefix bin/conformance --no-save --no-audit --no-fund --silent http-cache-tests@0.4.5
	node --no-warnings .ci/conformance.mjs bin/conformance/node_modules/http-cache-tests bin/weir

h2spec: build ## Run the HTTP/2 conformance tests against bin/weir and plain net/http: a minute.
	$(GO) build -modfile=tools.mod -o bin/h2spec github.com/summerwind/h2spec/cmd/h2spec
	$(GO) run .ci/h2spec/main.go bin/h2spec bin/weir

cover: needs ## Print the coverage of each function.
	$(SERVERS) $(GO) test -coverprofile=cover.out ./... && $(GO) tool cover -func=cover.out

fmt: ## Format the Go files.
	gofmt -w cmd proxy policy cache limits internal

clean: ## Remove what was built.
	rm -rf bin cover.out
