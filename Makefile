# make demo runs Weir; make test tests it. make help tells the rest.
.DEFAULT_GOAL := help
SHELL := /bin/sh

GO       ?= go
TOOL     := $(GO) tool -modfile=tools.mod
FUZZTIME ?= 10s
FUZZ     ?= .*
COUNT    ?= 6
CLIENTS  ?=
# write keeps the transcripts of make clients in the place of comparing them.
TRANSCRIPTS ?= compare
BASE     ?= $(shell git rev-parse --verify --quiet origin/main >/dev/null && echo origin/main || echo HEAD~1)
BENCH    ?= .
PACKAGES ?= ./...

# A release: what it is called, and when it was.
VERSION   ?= $(shell git describe --tags --always --dirty)
EPOCH     ?= $(shell git log -1 --format=%ct)
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

# Where tests find the servers that they start.
SERVERS = WEIR_REDIS_SERVER="$$(command -v redis-server)"

.PHONY: help build demo test lint check fuzz bench bench-go bench-compare bench-limits bench-scale bench-savings soak conformance clients h2spec rules release deploy-check cover fmt clean needs

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/weir, static.
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o bin/weir ./cmd/weir

demo: build ## Build, and run everything on this machine. Needs Go only.
	@exec ./bin/weir demo

test: needs ## Run all tests with the race detector, after installing what they need.
	$(SERVERS) $(GO) test -race -shuffle=on -timeout 30m ./...

needs: # What tests need from the system; installed when missing.
	@.ci/need gcc gcc libc6-dev
	@.ci/need redis-server
	@.ci/need chromium
	@.ci/need bash
	@.ci/need curl
	@.ci/need openssl
	@.ci/need wrk
	@.ci/need taskset util-linux
	@.ci/need zsh
	@.ci/need fish
	@.ci/need mandoc

lint: ## Run go vet, the linters, and check that the module files are tidy.
	$(GO) vet ./...
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff

check: test lint ## Run the tests and the linters.

fuzz: ## Run the fuzz targets whose names match FUZZ, all of them without it, for FUZZTIME each, two at a time.
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|/[^/]*:func | |' | grep -E ' ($(FUZZ))$$' | \
		xargs -P 2 -L 1 sh -c 'GO="$(GO)" .ci/fuzz $$0 $$1 $(FUZZTIME)'

bench: build ## Measure Weir beside its peers into docs/performance.md: 15 minutes on a quiet machine.
	@.ci/need wrk
	@.ci/need taskset util-linux
	@.ci/need redis-server
	@export PATH="$$PATH:/usr/sbin"; .ci/need nginx || true; .ci/need varnishd varnish gcc libc6-dev || true; .ci/need haproxy || true
	$(GO) run ./.ci/benchmark -write docs/performance.md

bench-go: ## Run the Go benchmarks of PACKAGES whose names match BENCH.
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PACKAGES)

bench-compare: ## Run them COUNT times in turns with those of the revision BASE, and compare by benchstat.
	@.ci/bench-compare '$(BASE)' '$(COUNT)' '$(BENCH)' $(PACKAGES)
	$(TOOL) benchstat base=bin/compare/base.txt head=bin/compare/head.txt

bench-limits: needs ## Hold the limits against a hostile upstream, in memory and over Redis: about 10 minutes.
	WEIR_SCENARIOS=$${WEIR_SCENARIOS:-2000} WEIR_WINDOWS=$${WEIR_WINDOWS:-40} $(GO) test -count=1 -timeout 1800s -v -run 'TestNoLimitIsExceeded|TestSaturationUsesTheLimits' ./limits/limitstest
	$(SERVERS) WEIR_REDIS_SCENARIOS=$${WEIR_REDIS_SCENARIOS:-100} WEIR_WINDOWS=$${WEIR_REDIS_WINDOWS:-4} $(GO) test -count=1 -timeout 1800s -v -run 'OverRedis' ./limits/redisledger

bench-scale: needs ## Measure what accounts and replicas cost Redis, and draw fleets of up to 1,000 replicas and 1,000,000 accounts: about 10 minutes.
	$(SERVERS) $(GO) test -timeout 600s -run '^$$' -bench 'Redis|Scale' ./limits/redisledger
	$(SERVERS) WEIR_REPLICAS=$${WEIR_REPLICAS:-1000} WEIR_ACCOUNTS=$${WEIR_ACCOUNTS:-1000000} $(GO) test -count=1 -timeout 1800s -v -run 'WithReplicas|ByManyReplicas|FleetModel|NewAccountInACluster' ./limits/redisledger

bench-savings: ## Count what a day of traffic costs the API's quota: a minute.
	WEIR_SAVINGS=$${WEIR_SAVINGS:-24h} $(GO) test -count=1 -timeout 1800s -v -run TestADayCostsATenth ./proxy

soak: needs ## Three replicas under mixed traffic and faults at random, for WEIR_SOAK (10m), from WEIR_SOAK_SEED.
	$(SERVERS) WEIR_SOAK=$${WEIR_SOAK:-10m} $(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./cmd/weir

conformance: build ## Run the public HTTP cache test suite against bin/weir: 20 seconds, and Node.
	@.ci/need node nodejs
	@.ci/need npm
	@npm install --prefix bin/conformance --no-save --no-audit --no-fund --silent http-cache-tests@0.4.5
	node --no-warnings .ci/conformance.mjs bin/conformance/node_modules/http-cache-tests bin/weir

clients: build ## Run what people use (go-github, octokit, PyGithub, gh) against bin/weir, and compare the transcripts: a minute, and Node.
	@.ci/need strace
	@.ci/need gh
	@.ci/need /usr/lib/python3/dist-packages/github python3-github
	@.ci/need node nodejs
	@.ci/need npm
	@mkdir -p bin/clients/octokit.packages
	@cp .ci/clients/octokit/* bin/clients/octokit.packages
	npm ci --prefix bin/clients/octokit.packages --no-audit --no-fund --loglevel error
	$(GO) build -C .ci/clients/go-github -o $(CURDIR)/bin/clients/go-github.scenario .
	$(GO) test ./.ci/clients
	$(GO) run ./.ci/clients $(if $(filter write,$(TRANSCRIPTS)),-write) $(CLIENTS)

h2spec: build ## Run the HTTP/2 conformance tests against bin/weir and plain net/http: half a minute.
	$(GO) build -modfile=tools.mod -o bin/h2spec github.com/summerwind/h2spec/cmd/h2spec
	$(GO) run .ci/h2spec/main.go bin/h2spec bin/weir

rules: ## Check what deploy has for Prometheus and Grafana, by promtool.
	@.ci/need promtool prometheus
	promtool check rules deploy/prometheus/weir.rules.yml
	promtool test rules deploy/prometheus/weir_test.yml
	@mkdir -p bin
	@$(GO) run .ci/grafana/main.go <deploy/grafana/weir.json >bin/grafana.rules.yml
	promtool check rules bin/grafana.rules.yml

release: ## Build VERSION for PLATFORMS into bin/release: archives, SBOMs, checksums, notes.
	$(GO) run ./.ci/release -version $(VERSION) -epoch $(EPOCH) -out bin/release $(PLATFORMS)

deploy-check: build ## Check what deploy holds, each by its own tool, and what make release makes: two minutes.
	@.ci/need promtool prometheus
	@.ci/need redis-server
	@.ci/need systemd-analyze systemd
	$(GO) build -C .ci/deploy -o ../../bin/helm helm.sh/helm/v3/cmd/helm
	$(GO) -C .ci/deploy test -count=1 -timeout 20m .

cover: needs ## Print the coverage of each function.
	$(SERVERS) $(GO) test -coverprofile=cover.out ./... && $(GO) tool cover -func=cover.out

fmt: ## Format the Go files.
	gofmt -w cmd proxy policy cache limits internal

clean: ## Remove what was built.
	rm -rf bin cover.out
