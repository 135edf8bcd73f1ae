# "make help" lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/sh

# All targets use the Go version that builds releases.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)

# Go compiles all dependencies again for another value. Only the race detector needs cgo.
export CGO_ENABLED := 0

GO       ?= go
TOOL     := $(GO) tool -modfile=tools.mod
FUZZTIME ?= 10s
FUZZ     ?= .*
COUNT    ?= 6
CLIENTS  ?=
SUITE    ?= ../shared/cache-tests
# TRANSCRIPTS=write replaces the stored transcripts of "make clients" instead of comparing them.
TRANSCRIPTS ?= compare
# FIGURES=write writes the tables of "make judge" into docs/comparison.md, too.
FIGURES  ?= print
BASE     ?= $(shell git rev-parse --verify --quiet origin/main >/dev/null && echo origin/main || echo HEAD~1)
BENCH    ?= .
# The packages with the longest tests come first, so that the others fill the second core.
PACKAGES ?= ./limits/redisledger ./proxy ./cmd/weir ./...
TESTFLAGS ?=
GOTEST   = GO="$(GO)" $(GO) run ./.ci/gotest

# The version, the commit, the build time, the platforms and the signing key of a release.
VERSION   ?= $(shell git describe --tags --always --dirty)
COMMIT    ?= $(shell git describe --always --exclude '*' --abbrev=40 --dirty)
EPOCH     ?= $(shell git log -1 --format=%ct)
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
SIGN      ?=

# The Redis server that tests start.
SERVERS = WEIR_REDIS_SERVER="$$(command -v redis-server)"

# Packages whose tests run at the same time: one more than there are processors, because some tests wait for timeouts.
PARALLEL = -p $$(($$(getconf _NPROCESSORS_ONLN) + 1))

# Properties check a few cases that are the same in each run.
FIXED = RAPID_SEED=1 RAPID_CHECKS=30 RAPID_NOFAILFILE=true

# "make race" checks fewer cases, with new seeds. The detector finds a race in any of them.
FEWER = RAPID_CHECKS=10 WEIR_SCENARIOS=40 WEIR_HTTP_SCENARIOS=4 WEIR_CALLS=1000 WEIR_WALK_SEEDS=4 WEIR_KILLS=2

# The settings of "make simulations". docs/internals/tests.md describes them.
LONGER = WEIR_SCENARIOS=200 WEIR_HTTP_SCENARIOS=25 WEIR_CANCELLATIONS=1500 WEIR_FAIR_SCENARIOS=2 WEIR_REDIS_SCENARIOS=2 WEIR_WINDOWS=2 WEIR_PURGES=1000 WEIR_WRITES=1000 WEIR_CACHE_REQUESTS=4000 WEIR_CALLS=10000 WEIR_TOKENS=3000 WEIR_FLEET_MINUTES=60

# The tests that run without the race detector, because they measure costs, have no goroutines of their own (SERIAL), or have
# those of shorter tests: the random walk, TestNoLimitIsExceeded, TestNoLimitIsExceededOverRedis, TestNoLimitIsExceededOverHTTP,
# TestFollowersOfALargeBody.
SERIAL = EveryOperation|FrequentNamesKeep|ManyMistakesAreReported|PurgesOfOtherTagsLeaveAnEntry|LostAccessEnds|UncertainAndFailedWrites|HonestService|LearnedEstimates|RandomTrafficKeepsRevisions|ReplicaLagIsThatOfAReplica
RACELESS = ^Test($(SERIAL)|LargePayloads|EachOpenDefect|ScopesOverTheWholeAPI|AgentsLeave|StepsOfTheRedisClock|ReplicasTogether|NoLimitIsExceededByManyReplicas|ClientsShare|FaultyLedgers|ConstantOutsideUse|IdleAccountsCost|ReplayPredicts|ManyAccountsAreRestored|SaturatedAccountsContinue|LongNamesInGraphQL|LargeBodyIsForwarded|ADay|AFleetOfGH|PollingCosts|SaturationUsesTheLimits)

# The end-to-end tests that measure memory or speed run without the race detector, which needs much of both.
MEASURED = ^(TestFloods|TestLargeTransfersNeedLittleMemory|TestSilentTrafficNeedsLittleMemory|TestDistantDownloadIsFast)$$

.PHONY: help build demo test race variants simulations mutants e2e lint vuln check fuzz bench bench-go bench-compare bench-limits bench-scale bench-savings bench-tokens floods shares soak conformance clients refusals judge h2spec generate rules release deploy-check adjacent cover fmt clean needs

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build the static binary bin/weir.
	@$(GO) build -trimpath -ldflags "-s -w" -o bin/weir ./cmd/weir

demo: build ## Build and run the gateway with a local reference service. Needs only Go.
	@exec ./bin/weir demo

# "make mutants" sets PACKAGES, TESTFLAGS and GOFLAGS.
test: ## Run the unit and integration tests: 90 seconds. Needs only Go; uses redis-server if it is installed.
	@command -v redis-server >/dev/null || echo "make: redis-server is not installed; its tests are skipped, and miniredis serves the others"
	GOGC=400 $(SERVERS) $(FIXED) $(GOTEST) -limit 20s -- -vet=off -timeout 5m $(PARALLEL) $(TESTFLAGS) $(PACKAGES)

race: needs ## Run the tests with the race detector and new seeds: five minutes.
	$(SERVERS) $(FEWER) CGO_ENABLED=1 $(GOTEST) -- -race -vet=off -shuffle=on -timeout 15m -skip '$(RACELESS)' $(TESTFLAGS) $(PACKAGES)

# The upstream of package proxy speaks HTTP/2 in the other targets. The binary of make e2e has the race detector, and its upstreams
# speak HTTP/1.1. miniredis runs scripts in Go, which takes minutes with the race detector.
variants: needs ## Run the tests of proxy over HTTP/1.1, and the suite of the ledger on miniredis: 40 seconds.
	WEIR_TEST_UPSTREAM=http1 $(GOTEST) -- -vet=off -shuffle=on -skip 'TestADay|TestPollingCosts|OverHTTP|TestEveryEnd|TestCancel' ./proxy
	WEIR_MINIREDIS=1 $(GOTEST) -- -vet=off -shuffle=on -run OnMiniredis ./limits/redisledger

mutants: needs ## Plant faults in the product, one at a time, and show which command finds each: 15 minutes.
	$(GO) run ./.ci/mutants $(if $(ONLY),-only '$(ONLY)') $(if $(filter write,$(FIGURES)),-write docs/internals/tests.md)

e2e: needs ## Run the end-to-end tests against a binary with the race detector.
	@.ci/need chromium
	@.ci/need curl
	@.ci/need gh
	@.ci/need /usr/lib/python3/dist-packages/github python3-github
	@.ci/need node nodejs
	@.ci/need npm
	@.ci/need /usr/sbin/nginx nginx-light
	@mkdir -p bin/e2e
	@cp e2e/testdata/node/* bin/e2e
	npm ci --prefix bin/e2e --no-audit --no-fund --loglevel error
	$(GO) build -C e2e/testdata/go -o $(CURDIR)/bin/e2e/ ./...
	CGO_ENABLED=1 $(GO) build -race -o bin/weir-race ./cmd/weir
	$(SERVERS) WEIR_BINARY="$(CURDIR)/bin/weir-race" $(GOTEST) -- -tags e2e -count=1 -timeout 10m -parallel 4 -skip '$(MEASURED)' ./e2e

needs: # Install the programs that tests need.
	@.ci/need gcc gcc libc6-dev
	@.ci/need redis-server
	@.ci/need bash
	@.ci/need openssl
	@.ci/need wrk
	@.ci/need taskset util-linux
	@.ci/need zsh
	@.ci/need fish
	@.ci/need mandoc

lint: ## Run the linters and go vet, and check the module files and the table of make mutants.
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff
	$(GO) run ./.ci/mutants -check

simulations: needs ## Run more random scenarios, requests and tokens than the tests do: ten minutes.
	$(SERVERS) $(LONGER) $(GOTEST) -- -vet=off -timeout 15m ./limits/... ./cache/redisstore ./proxy ./cmd/weir

check: ## Run everything: what CI runs (15 minutes), and the simulations. Installs what it needs.
	@.ci/run
	@$(MAKE) simulations

vuln: ## Check the modules and the standard library in the binary for known vulnerabilities.
	$(GO) build -trimpath -o bin/weir-symbols ./cmd/weir
	@GO="$(GO)" .ci/vuln bin/weir-symbols

fuzz: ## Run the fuzz targets that match FUZZ (default: all) for FUZZTIME each, two at a time.
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's|/[^/]*:func | |' | grep -E ' ($(FUZZ))$$' | \
		xargs -P 2 -L 1 sh -c 'GO="$(GO)" .ci/fuzz $$0 $$1 $(FUZZTIME)'

bench: build ## Measure Weir beside its peers into docs/internals/performance.md: 15 minutes on a quiet machine.
	@.ci/need wrk
	@.ci/need taskset util-linux
	@.ci/need redis-server
	@export PATH="$$PATH:/usr/sbin"; .ci/need nginx || true; .ci/need varnishd varnish gcc libc6-dev || true; .ci/need haproxy || true
	$(GO) run ./.ci/benchmark -write docs/internals/performance.md

bench-go: ## Run the Go benchmarks of PACKAGES whose names match BENCH.
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PACKAGES)

bench-compare: ## Run the benchmarks COUNT times here and at revision BASE, and compare them with benchstat.
	@.ci/bench-compare '$(BASE)' '$(COUNT)' '$(BENCH)' $(PACKAGES)
	$(TOOL) benchstat base=bin/compare/base.txt head=bin/compare/head.txt

bench-limits: needs ## Test the limits against a hostile upstream, in memory, over HTTP and with Redis: about 11 minutes.
	WEIR_SCENARIOS=$${WEIR_SCENARIOS:-2000} WEIR_WINDOWS=$${WEIR_WINDOWS:-40} $(GO) test -count=1 -timeout 1800s -v -run 'TestNoLimitIsExceeded|TestSaturationUsesTheLimits' ./limits/limitstest
	WEIR_HTTP_SCENARIOS=$${WEIR_HTTP_SCENARIOS:-200} WEIR_WINDOWS=$${WEIR_HTTP_WINDOWS:-2} $(GO) test -count=1 -timeout 1800s -v -run OverHTTP ./proxy
	$(SERVERS) WEIR_REDIS_SCENARIOS=$${WEIR_REDIS_SCENARIOS:-100} WEIR_WINDOWS=$${WEIR_REDIS_WINDOWS:-4} WEIR_BUSY=$${WEIR_BUSY:-6} $(GO) test -count=1 -timeout 1800s -v -run 'OverRedis|BusyMachine' ./limits/redisledger

bench-scale: needs ## Measure the load of Redis for up to 1,000 replicas and 1,000,000 accounts: about 12 minutes.
	$(SERVERS) $(GO) test -timeout 900s -run '^$$' -bench 'Redis|Scale' ./limits/redisledger
	$(SERVERS) WEIR_REPLICAS=$${WEIR_REPLICAS:-1000} WEIR_ACCOUNTS=$${WEIR_ACCOUNTS:-1000000} $(GO) test -count=1 -timeout 1800s -v -run 'WithReplicas|ByManyReplicas|FleetModel|TestClusterLosesNoSpends|TestLostShard' ./limits/redisledger

bench-savings: ## Measure how much quota two days of different traffic cost: five minutes.
	WEIR_SAVINGS=$${WEIR_SAVINGS:-24h} $(GO) test -count=1 -timeout 1800s -v -run TestADay ./proxy

bench-tokens: ## Send WEIR_TOKENS (300,000) made-up tokens to a gateway, and measure its memory: two minutes.
	WEIR_TOKENS=$${WEIR_TOKENS:-300000} $(GO) test -count=1 -timeout 1800s -v -run TestMadeUpTokens ./cmd/weir

floods: build ## Attack bin/weir with floods for WEIR_FLOOD_PHASE (10s) each and send 1 GiB, and measure other clients and memory: 15 minutes.
	@.ci/need gh
	@.ci/need ip iproute2
	WEIR_FLOOD_PHASE=$${WEIR_FLOOD_PHASE:-10s} WEIR_BINARY="$(CURDIR)/bin/weir" $(GO) test -tags e2e -count=1 -timeout 60m -v -run '$(MEASURED)' ./e2e

shares: needs ## Run a script without a pause, gh and a job on one account for half an hour, and draw docs/shares.svg.
	@.ci/need gh
	$(GO) test -tags e2e,soak -c -o bin/e2e.test ./e2e
	cd e2e && WEIR_PICTURE=../docs/shares.svg ../bin/e2e.test -test.v -test.run '^TestAgentBesidePersonAndJob$$'

soak: needs ## Run the random walk with 50 seeds of 20,000 requests (an hour), and three replicas under random faults for WEIR_SOAK (10m), from the seed WEIR_SOAK_SEED.
	WEIR_WALK_SEEDS=$${WEIR_WALK_SEEDS:-50} WEIR_WALK_REQUESTS=$${WEIR_WALK_REQUESTS:-20000} $(GO) test -count=1 -timeout 0 -run '^TestRandomWalk$$' ./cmd/weir
	$(SERVERS) WEIR_SOAK=$${WEIR_SOAK:-10m} $(GO) test -tags e2e,soak -count=1 -timeout 0 -v -run '^TestSoak$$' ./e2e

conformance: build ## Run the public HTTP cache test suite in the folder SUITE against bin/weir: 90 seconds. Needs Node.
	@test -d '$(SUITE)' || { echo "make: no folder $(SUITE); set SUITE to a copy of https://github.com/http-tests/cache-tests" >&2; exit 1; }
	@.ci/need node nodejs
	@.ci/need npm
	@.ci/need redis-server
	@mkdir -p bin/conformance
	@cp -Rf '$(SUITE)/.' bin/conformance
	@chmod -R u+w bin/conformance
	@# Weir forwards no credential without a scheme.
	@sed -i "s/'Authorization', 'FOO'/'Authorization', 'Bearer FOO'/" bin/conformance/tests/authorization.mjs
	npm install --prefix bin/conformance --omit=dev --no-audit --no-fund --loglevel error
	node --no-warnings .ci/conformance.mjs bin/conformance bin/weir

clients: build ## Run go-github, octokit, PyGithub and gh against bin/weir, and compare transcripts: one minute. Needs Node.
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

refusals: ## Print when client programs that "make clients" does not run repeat a refused request: one minute. Needs Node.
	@.ci/need node nodejs
	@.ci/need npm
	@.ci/need curl
	@.ci/need wget
	@.ci/need /usr/lib/python3/dist-packages/requests python3-requests
	@.ci/need /usr/share/perl5/Net/GitHub.pm libnet-github-perl
	@.ci/need ruby ruby ruby-octokit
	GO="$(GO)" .ci/clients/refusals/run.sh

judge: build ## Score Weir and the limiters of octokit and go-github with "weir judge": three minutes. Needs Node.
	@.ci/need node nodejs
	@.ci/need npm
	@.ci/need redis-server
	@mkdir -p bin/judge/octokit
	@cp .ci/judge/octokit/* bin/judge/octokit
	npm ci --prefix bin/judge/octokit --no-audit --no-fund --loglevel error
	$(GO) build -C .ci/judge/go-github -o $(CURDIR)/bin/judge/go-github .
	$(GO) run ./.ci/judge $(if $(filter write,$(FIGURES)),-write docs/comparison.md)

h2spec: build ## Run the HTTP/2 conformance tests against bin/weir and net/http: 30 seconds.
	$(GO) build -modfile=tools.mod -o bin/h2spec github.com/summerwind/h2spec/cmd/h2spec
	$(GO) run .ci/h2spec/main.go bin/h2spec bin/weir

generate: ## Write the table of operations from the published descriptions of the API, and check that nothing changed.
	@.ci/need npm
	$(GO) generate ./policy
	git diff --exit-code policy/github/operations.tsv

rules: ## Check the Prometheus rules and the Grafana dashboard with promtool.
	@.ci/need promtool prometheus
	promtool check rules deploy/prometheus/weir.rules.yml
	promtool test rules deploy/prometheus/weir_test.yml
	@mkdir -p bin
	@$(GO) run .ci/grafana/main.go <deploy/grafana/weir.json >bin/grafana.rules.yml
	promtool check rules bin/grafana.rules.yml

release: ## Build VERSION for PLATFORMS in bin/release, and sign the checksums with the SSH key SIGN, if it is set.
	$(GO) run -modfile=tools.mod ./.ci/release -version $(VERSION) -commit $(COMMIT) -epoch $(EPOCH) -out bin/release $(PLATFORMS)
	$(if $(SIGN),ssh-keygen -Y sign -f $(SIGN) -n file bin/release/SHA256SUMS)

deploy-check: build ## Check the deployment files with their own tools, and the release: two minutes.
	@.ci/need promtool prometheus
	@.ci/need redis-server
	@.ci/need systemd-analyze systemd
	$(GO) build -C .ci/deploy -o ../../bin/helm helm.sh/helm/v3/cmd/helm
	@.ci/need ssh-keygen openssh-client
	$(GO) test -modfile=tools.mod ./.ci/release
	$(GO) -C .ci/deploy test -count=1 -timeout 15m .

# BASE has another default here: the version before this one.
adjacent: needs build ## Upgrade replicas from BASE (default: the previous release) to bin/weir on one Redis: two minutes.
	@.ci/adjacent $(if $(filter command line,$(origin BASE)),'$(BASE)')
	$(SERVERS) WEIR_BINARY="$(CURDIR)/bin/weir" WEIR_ADJACENT="$(CURDIR)/bin/weir-adjacent" $(GO) test -tags e2e,adjacent -count=1 -v -run '^TestAdjacentVersionsShareRedis$$' ./e2e

cover: needs ## Print the coverage of each function.
	$(SERVERS) $(GO) test -coverprofile=cover.out ./... && $(GO) tool cover -func=cover.out

fmt: ## Format the Go files.
	$(GO) fmt ./...

clean: ## Remove build results.
	rm -rf bin cover.out
