# What a contributor runs. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything is compiled with the same flags, so that nothing is compiled twice: without
# cgo, because the agent runs in images that have no C library, and without gRPC's tracing
# pages, which would make it 2 MiB larger, and without the names of folders, so that another
# clone compiles nothing again. Debugging information is a seventh of the compiler's work, and
# neither stack traces nor profiles need it.
export CGO_ENABLED ?= 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false)

TOOL := go tool -modfile=tools/go.mod
# How long each fuzz target runs in `make fuzz`; `make test` runs each for a few seconds.
FUZZTIME ?= 60s

.PHONY: help apps apps-few build changelog core images image-archive release apiserver proxies envoy haproxy haproxy-versions pipy issuers network prometheus prometheus-programs dashboard chromium test test-all container ci-all check fresh race cluster cluster-down e2e ends worst conformance conformance-all soak fuzz fuzz-access mutate explain bench bench-scale bench-dataplane demo demo-inject demo-policy generate lint clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

build: core ## build the programs into bin/
	@go build -ldflags='-s -w' -o bin/ ./cmd/outrigger

# The programs of the lab and the demo, which do not contain Helm. The compiler collects garbage
# seldom, which is a tenth of its work.
core:
	@go build -toolexec='env GOGC=400' -ldflags='-s -w' -o bin/ ./cmd/outrigger-lab ./cmd/outrigger-agent ./cmd/outrigger-cni ./samples/bookstore

images: ## build the images as a folder in the OCI image layout, dist/images
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) images

image-archive: ## build the images and an archive of them for nodes without a registry
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) archive

release: ## build everything that users download in dist/: images, programs, chart, krew manifest, checksums
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) all

# More flags of tools/release, such as "-registry ghcr.io/me -push".
RELEASE ?=

apiserver: ## compile kube-apiserver and etcd for the tests (about 6 minutes, once)
	@test/cluster/build.sh apiserver >/dev/null

envoy: ## install Envoy for the tests (once)
	@test/envoy/install.sh >/dev/null || echo 'SKIPPED: the tests with Envoy, which is not installed' >&2

haproxy: ## install HAProxy for the tests (once)
	@test/haproxy/install.sh >/dev/null || echo 'SKIPPED: the tests with HAProxy, which is not installed' >&2

haproxy-versions: ## run the tests of the HAProxy driver and some rows of the behaviour table with HAProxy 3.0 and 3.2, from Debian's later releases (25 minutes)
	@test/haproxy/versions.sh

pipy: ## look for the Pipy of the tests, which must be installed by hand
	@test/pipy/find.sh >/dev/null || echo 'SKIPPED: the tests with Pipy, which is not installed; docs/behaviour.md and docs/drivers.md keep the results of the last run with it' >&2

proxies: envoy haproxy pipy ## all proxies of the tests

issuers: ## compile cert-manager's controllers and Vault's PKI engine for the tests (a few minutes, once)
	@for program in certmanager vault; do test/issuers/build.sh $$program >/dev/null || echo "SKIPPED: the tests with $$program, which can't be compiled here" >&2; done

# Prometheus and promtool, which are compiled once.
prometheus-programs:
	@test/prometheus/build.sh >/dev/null || echo 'SKIPPED: the tests with Prometheus, which can'"'"'t be compiled here' >&2

prometheus: prometheus-programs apiserver proxies ## run the queries of all dashboards and alerts in a real Prometheus
	go test ./test/monitoring -count=1 -timeout 15m -v

dashboard: ## build the dashboard's page of its sources; needs npm
	@internal/dashboard/web/build.sh

chromium: ## install Chromium for the tests (once)
	@test/chromium/install.sh >/dev/null || echo 'SKIPPED: the tests with Chromium, which is not installed' >&2

# The few applications that `make test` tries.
apps-few:
	@test/apps/install.sh few >/dev/null || echo 'SKIPPED: the tests with real applications, whose packages of Debian 12 could not be unpacked' >&2

# Names of applications to run, such as ONLY=nginx,redis, and pairs, such as PAIRS=envoy-to-pipy.
ONLY ?=
PAIRS ?=

apps: proxies ## run real servers of Debian through all pairs of sidecars and without a mesh (about 15 minutes; 350 MB of packages, once)
	@test/apps/install.sh all >/dev/null
	go test ./test/apps -count=1 -timeout 60m -v -args -all -only '$(ONLY)' -pairs '$(PAIRS)'

network: export NETWORK := 1
network: proxies ## cut a server off the network without a word, with all pairs of sidecars (about 15 minutes)
	go test ./test/behaviour -run TestNetwork -count=1 -timeout 60m -v

# A Pipy of this machine stays out of it.
test: export PIPY := no-pipy-in-make-test
test: envoy haproxy ## run the tests that need Go, Envoy and HAProxy only
	@echo 'Downloading, compiling and running the tests. On a new machine the first packages take some minutes.' >&2
	@go run ./test/check -all -test '-short -vet=off -p 3 -timeout 20m'

test-all: apiserver proxies issuers chromium prometheus-programs apps-few ## run all tests
	@go run ./test/check -all -test '-timeout 45m'
	go -C tools/release test ./...
	go -C test/cluster test ./...
	go test -tags grpcnotrace,meshguard ./mesh/... ./internal/catalog/... ./internal/graph/...
	@$(MAKE) --no-print-directory fuzz FUZZTIME=3s

# The packages whose tests create namespaces.
container: envoy haproxy ## run the tests that need namespaces with the rights of an ordinary container, where they skip, and the demo; needs root
	go test -vet=off ./test/container
	@go build -o bin/ ./test/container
	bin/container go test -short -vet=off ./internal/agent/... ./test/lab ./test/localmesh ./test/playground ./internal/cni ./internal/capture ./test/behaviour ./test/ends ./test/explain

ci-all: ## run all of .ci/run, whatever has passed before on this machine
	CI_ALL=1 .ci/run

# The packages that 'make check' tests, by default those that differ from BASE. ARGS has
# arguments for go test.
PKG ?=
BASE ?= main

check: ## run the tests of the packages that have changed, or of PKG=./drivers/haproxy/..., and list those it omits
	@go run ./test/check -base '$(BASE)' -test '$(ARGS)' $(PKG)

fresh: ## run the tests that could fail on a new machine, with an empty module cache and home folder
	@.ci/fresh

# The race detector needs cgo.
race: export CGO_ENABLED := 1
race: apiserver proxies issuers ## run the tests of the concurrent packages with the race detector
	go test -race -vet=off -timeout 20m $$(.ci/goroutines)

cluster: ## start a one-node Kubernetes cluster on this machine and print its kubeconfig; needs root
	@test/cluster/install.sh && cd test/cluster && go run . up

cluster-down: ## stop that cluster and remove everything that belongs to it
	@cd test/cluster && go run . down

e2e: ## run the end-to-end tests on new clusters, or on the one of KUBECONFIG
	@test/e2e/run.sh

conformance: ## run the conformance suite of Gateway API with the sidecars of CLASS (default envoy; envoy-to-pipy for a pair, mixed for all pairs) on a new cluster, or with PROFILE=gateway with gateways of CLASS
	@test/gateway/run.sh

conformance-all: ## run the conformance suite of Gateway API with all pairs of the three classes of sidecars
	@CLASS='envoy haproxy pipy mixed' test/gateway/run.sh

# How long 'make soak' takes.
SOAK ?= 1h

soak: export E2E_SOAK := $(SOAK)
soak: export TIMEOUT := 3h
soak: ## roll, scale and change policies under load for SOAK (default 1h), and check the controller's memory
	@RUN='TestMesh/^(install|soak)$$' test/e2e/run.sh

fuzz: ## run every fuzz target for FUZZTIME (default 60s)
	@FUZZTIME='$(FUZZTIME)' test/fuzz/run.sh

# How many meshes 'make explain' generates, and the classes of their sidecars.
SEEDS ?= 10
CLASSES ?= envoy

explain: envoy ## compare 'outrigger explain' with real proxies over SEEDS generated meshes with sidecars of CLASSES=envoy,haproxy,pipy
	go test ./test/explain -run TestExplainIsTrue -count=1 -v -timeout 60m -args -seeds $(SEEDS) -classes $(CLASSES)

# How many decisions 'make fuzz-access' compares at least, the seed of its first round, and how many requests each port
# gets in a round.
COUNT ?= 200000
SEED ?= 1
EACH ?= 800

fuzz-access: proxies ## send random requests under random policies through all proxies and compare their decisions with the model's; COUNT=5000000 decisions from SEED on
	go test ./test/access -run '^TestAccess$$' -count=1 -v -timeout 0 -args -seed $(SEED) -number $(COUNT) -each $(EACH)

# Selects the faults whose description or file matches.
FAULTS ?=

mutate: ## plant faults in the code that decides about access, and report those that no test finds; FAULTS=haproxy selects some
	@go run ./test/mutate -run '$(FAULTS)'

ends: proxies ## compare what both ends see through all pairs of sidecars with what they see without (2 minutes)
	ENDS=all go test ./test/ends -count=1 -timeout 20m -v

worst: proxies ## measure what the largest object of each kind costs the controller and each proxy (10 minutes)
	WORST=all go test ./test/golden -run TestWorstObjects -count=1 -timeout 60m -v

bench: ## measure time, allocations, bytes and memory
	go test -run='^$$' -bench=. -benchmem ./internal/inject/... ./internal/catalog ./internal/identity ./drivers/envoy ./sidecar/xds
	go run ./test/bench
	go run ./test/bench/agent

# Arguments for test/bench/scale; -help lists them.
SCALE ?=

bench-scale: apiserver ## measure what changes cost the controller with up to 1,000 real clients and services (about 30 minutes)
	go run ./test/bench/scale $(SCALE)

# Arguments for test/bench/dataplane; -help lists them.
DATAPLANE ?=

bench-dataplane: proxies ## measure what sidecars of each class add to requests, their CPU and memory, beside hand-written proxies (about 20 minutes)
	go run ./test/bench/dataplane $(DATAPLANE)

# The sidecars of the demo: envoy, pipy, haproxy, or mixed for all three in one mesh.
CLASS ?= envoy

demo: $(if $(filter mixed,$(CLASS)),envoy haproxy,$(filter envoy haproxy,$(CLASS))) core ## run the bookstore in a mesh on this machine, no cluster needed; CLASS=mixed has three kinds of proxies, ARGS="--for 60s" ends it
	@bin/outrigger-lab demo --class $(CLASS) $(ARGS)

demo-inject: apiserver build ## show injection on a real API server
	@go run ./test/admission

demo-policy: envoy build ## show what may call what in the bookstore, and check the proxies' configuration with Envoy
	@echo; echo "== who may call whom in samples/bookstore-smi"
	@bin/outrigger validate -f samples/bookstore-smi
	@bin/outrigger explain -f samples/bookstore-smi bookbuyer/bookbuyer bookstore/bookstore:80 GET /books
	@bin/outrigger explain -f samples/bookstore-smi bookthief/bookthief bookstore/bookstore:80 GET /books || test $$? = 3
	@for pod in bookbuyer/bookbuyer-0 bookstore/bookstore-v1-0 bookthief/bookthief-0; do \
		bin/outrigger translate -f samples/bookstore-smi --proxy $$pod --check >/dev/null; done

changelog: ## write CHANGELOG.md from the files in releasenotes
	@go run ./test/releasenotes

generate: ## write the generated files: deep copies, CRDs, gRPC, reference pages
	@go -C tools run ./protogen .. apis/identity/v1/identity.proto
	$(TOOL) controller-gen object:headerFile=tools/boilerplate.go.txt paths=./apis/...
	$(TOOL) controller-gen crd:allowDangerousTypes=true paths=./apis/... output:crd:dir=charts/outrigger/crds
	UPDATE=1 go test -run='^TestReference$$' ./internal/cli ./test/command >/dev/null

lint: ## vet, staticcheck, formatting, generated files, known vulnerabilities
	@out=$$(gofmt -l .); test -z "$$out" || { echo "run gofmt -w on: $$out"; exit 1; }
	go vet ./...
	go -C test/cluster vet ./...
	go -C tools/release vet ./...
	go -C test/bench/plot vet ./...
	go vet -tags grpcnotrace,e2e ./test/e2e
	$(TOOL) staticcheck ./...
	@$(MAKE) --no-print-directory generate
	@out=$$(git status --porcelain -- apis charts docs); test -z "$$out" || { echo "generated files were out of date, commit what make generate wrote: $$out"; exit 1; }
	@internal/dashboard/web/build.sh --check >/dev/null
	@go mod tidy -diff >/dev/null || { echo 'go.mod is not tidy: run go mod tidy'; exit 1; }
	@.ci/govulncheck

clean: ## remove build output (the compiled API server stays in its cache)
	rm -rf bin dist
