# What a contributor runs. `make help` lists it.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything is compiled in one way, so that nothing is compiled twice: without C, because
# the agent runs in images that have no C library, and without gRPC's tracing pages, which
# would make it 2 MiB larger. 'GOFLAGS=-trimpath make build' gives programs that are the
# same wherever they are compiled.
export CGO_ENABLED ?= 0
export GOFLAGS := $(strip $(shell go env GOFLAGS) -tags=grpcnotrace)

TOOL := go tool -modfile=tools/go.mod
# How long each fuzz target runs: a moment in `make test`, longer by `make fuzz`.
FUZZTIME ?= 60s

.PHONY: help build core images image-archive release apiserver proxies envoy haproxy pipy issuers test check fresh race cluster cluster-down e2e soak fuzz mutate explain bench demo demo-inject demo-policy generate lint clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

build: core ## build the programs into bin/
	@go build -ldflags='-s -w' -o bin/ ./cmd/outrigger

# What the demo runs, which is compiled without Helm.
core:
	@go build -ldflags='-s -w' -o bin/ ./cmd/outrigger-core ./cmd/outrigger-agent ./cmd/outrigger-cni ./samples/bookstore

images: ## make the images as a folder of the OCI image layout in dist/images
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) images

image-archive: ## make the images and an archive of them for nodes without a registry
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) archive

release: ## make all that users download in dist/: images, programs, chart, krew manifest, checksums
	@go run -C tools/release . -C "$(CURDIR)" $(RELEASE) all

# More flags of tools/release, such as "-registry ghcr.io/me -push".
RELEASE ?=

apiserver: ## compile kube-apiserver and etcd for the tests (about 6 minutes, once)
	@test/cluster/build.sh apiserver >/dev/null

envoy: ## install the Envoy that the tests ask (once)
	@test/envoy/install.sh >/dev/null || echo 'SKIPPED: the tests that ask Envoy, which is not here' >&2

haproxy: ## install the HAProxy that the tests run (once)
	@test/haproxy/install.sh >/dev/null || echo 'SKIPPED: the tests that run HAProxy, which is not here' >&2

pipy: ## look for the Pipy that the tests run, which nothing installs
	@test/pipy/find.sh >/dev/null || echo 'SKIPPED: the tests that run Pipy, which is not here; docs/behaviour.md and docs/drivers.md keep what the last run with it found' >&2

proxies: envoy haproxy pipy ## all proxies that the tests run

issuers: ## compile cert-manager's controllers and Vault's PKI engine for the tests (a few minutes, once)
	@for program in certmanager vault; do test/issuers/build.sh $$program >/dev/null || echo "SKIPPED: the tests on a real $$program, which can't be compiled here" >&2; done

test: apiserver proxies issuers ## run all tests; under 10 minutes once everything is compiled
	go test -timeout 25m ./...
	go -C tools/release test ./...
	go test -tags grpcnotrace,meshguard ./mesh/... ./internal/catalog/... ./internal/graph/...
	@$(MAKE) --no-print-directory fuzz FUZZTIME=3s

# What 'make check' tests, those that differ from BASE unless given, and arguments for go test.
PKG ?=
BASE ?= main

check: ## run the tests of the packages that have changed, or of PKG=./drivers/haproxy/...; says what it leaves out
	@go run ./test/check -base '$(BASE)' -test '$(ARGS)' $(PKG)

fresh: ## run the tests that a new machine could fail, with an empty module cache and home folder
	@.ci/fresh

# The race detector needs C.
race: export CGO_ENABLED := 1
race: apiserver proxies issuers ## run the tests of what runs concurrently with the race detector
	go test -race -timeout 20m ./health/... ./sidecar/... ./drivers/... ./internal/...

cluster: ## start a Kubernetes of one node on this machine and print its kubeconfig; needs root
	@test/cluster/install.sh && cd test/cluster && go run . up

cluster-down: ## end that cluster and remove everything that belongs to it
	@cd test/cluster && go run . down

e2e: ## run the end-to-end tests on a Kubernetes that is started for them, or on that of KUBECONFIG
	@test/e2e/run.sh

# How long 'make soak' takes.
SOAK ?= 1h

soak: export E2E_SOAK := $(SOAK)
soak: export TIMEOUT := 3h
soak: ## roll, scale and change policies under load for SOAK (default 1h), and look at the controller's memory
	@RUN='TestMesh/^(install|soak)$$' test/e2e/run.sh

fuzz: ## run every fuzz target for FUZZTIME (default 60s)
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sort | while IFS=: read -r file func; do \
		target=$${func#func }; \
		echo "fuzz $$target in $$(dirname $$file) for $(FUZZTIME)"; \
		go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1x "$$(dirname $$file)" >/tmp/fuzz.$$$$ 2>&1 || { cat /tmp/fuzz.$$$$; rm -f /tmp/fuzz.$$$$; exit 1; }; \
		rm -f /tmp/fuzz.$$$$; \
	done

# How many meshes 'make explain' makes, and of which classes their sidecars are.
SEEDS ?= 10
CLASSES ?= envoy

explain: envoy ## ask 'outrigger explain' and real proxies the same questions over SEEDS generated meshes with sidecars of CLASSES=envoy,haproxy,pipy
	go test ./test/explain -run TestExplainIsTrue -count=1 -v -timeout 60m -args -seeds $(SEEDS) -classes $(CLASSES)

# The planted faults to replay: those whose description or file matches.
FAULTS ?=

mutate: ## plant faults in what decides about access, and report those that no test finds; FAULTS=haproxy plants some
	@go run ./test/mutate -run '$(FAULTS)'

bench: ## measure time, allocations, bytes and memory
	go test -run='^$$' -bench=. -benchmem ./internal/inject/... ./internal/catalog ./internal/identity ./drivers/envoy ./sidecar/xds
	go run ./test/bench
	go run ./test/bench/agent
	go run ./test/bench/hop

# The sidecars of the demo: envoy, pipy, haproxy, or mixed for Envoys and Pipys in one mesh.
CLASS ?= envoy

demo: $(if $(filter mixed,$(CLASS)),envoy,$(filter envoy haproxy,$(CLASS))) core ## run the bookstore in a mesh on this machine, no cluster needed; CLASS=mixed has two kinds of proxies, ARGS="--for 60s" ends it
	@bin/outrigger-core demo --class $(CLASS) $(ARGS)

demo-inject: apiserver build ## show injection on a real API server
	@go run ./test/admission

demo-policy: envoy build ## what may call what in the bookstore, and Envoy's word on what its proxies get
	@echo; echo "== who may call whom in samples/bookstore-smi"
	@bin/outrigger validate -f samples/bookstore-smi
	@bin/outrigger explain -f samples/bookstore-smi bookbuyer/bookbuyer bookstore/bookstore:80 GET /books
	@bin/outrigger explain -f samples/bookstore-smi bookthief/bookthief bookstore/bookstore:80 GET /books || test $$? = 3
	@for pod in bookbuyer/bookbuyer-0 bookstore/bookstore-v1-0 bookthief/bookthief-0; do \
		bin/outrigger translate -f samples/bookstore-smi --proxy $$pod --check >/dev/null; done

generate: ## write the generated files: deep copies, CRDs, gRPC, reference pages
	@go -C tools run ./protogen .. apis/identity/v1/identity.proto
	$(TOOL) controller-gen object:headerFile=tools/boilerplate.go.txt paths=./apis/...
	$(TOOL) controller-gen crd:allowDangerousTypes=true paths=./apis/... output:crd:dir=charts/outrigger/crds
	UPDATE=1 go test -run='^TestReference$$' ./internal/cli >/dev/null

lint: ## vet, staticcheck, formatting, generated files, known vulnerabilities
	@out=$$(gofmt -l .); test -z "$$out" || { echo "run gofmt -w on: $$out"; exit 1; }
	go vet ./...
	go -C test/cluster vet ./...
	go -C tools/release vet ./...
	go vet -tags grpcnotrace,e2e ./test/e2e
	$(TOOL) staticcheck ./...
	@$(MAKE) --no-print-directory generate
	@out=$$(git status --porcelain -- apis charts docs); test -z "$$out" || { echo "generated files were out of date, commit what make generate wrote: $$out"; exit 1; }
	@go mod tidy -diff >/dev/null || { echo 'go.mod is not tidy: run go mod tidy'; exit 1; }
	@.ci/govulncheck

clean: ## remove what was built here (the compiled API server stays in its cache)
	rm -rf bin dist
