# Carillon. `make help` lists what there is; CI calls nothing but make.
SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN        := bin/carillon
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS    := -s -w -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME   ?= 20000x
KILLS      ?= 20
BENCHFLAGS ?=

.PHONY: help build run test check fmt vet static fresh race sim fuzz bench bench-cluster bench-compare jepsen proto cluster image clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the one binary, bin/carillon (static)
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/carillon

run: build ## build it and start a three-node cluster in one process
	$(BIN) dev

test: ## run all tests
	go test ./...

check: fmt vet static fresh race ## all that must hold: format, vet, staticcheck, fresh generated code, tests with the race detector

fmt:
	@bad=$$(gofmt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); \
	if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi

vet:
	go vet ./...

static:
	go run $(STATICCHECK) ./...

fresh: proto
	@changed=$$(git status --porcelain -- proto); \
	if [ -n "$$changed" ]; then echo "generated code is not fresh, run make proto and commit:"; echo "$$changed"; exit 1; fi

race: ## run all tests with the race detector
	go test -race ./...

sim: ## only the simulations, clusters and streams in bubbles of fake time, five times
	go test -race -count=5 ./shard ./shard/executor ./transport ./transport/peer

fuzz: ## fuzz each decoder and model FUZZTIME (20000x) times; a time, like 60s, can end in a false "deadline exceeded"
	@set -e; for pkg in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; done; done

bench: ## the benchmarks of the wheel, the queue, the executor and the state; the last table says which targets are met
	go test -run '^$$' -bench . -skip '^Benchmark(Sleep|Lateness|Idle)$$' -benchmem ./wheel/... ./raftfsm/... ./shard/... ./transport/...
	cd wheel/bench && go run .

bench-cluster: build ## start three real servers, put every load on them, kill and stop nodes, print the table (4 min)
	go run ./jepsen-lite/benchcluster -binary $(BIN) -json jepsen-lite/out/bench-cluster.json $(BENCHFLAGS)

bench-compare: build ## the same loads on Carillon, NATS JetStream and PostgreSQL in one run, with ratios (5 min)
	cd jepsen-lite/compare && go run . -binary ../../$(BIN) -json ../out/bench-compare.json $(BENCHFLAGS)

jepsen: build ## kill the leaders of a real three-process cluster KILLS (20) times and judge what clients saw
	go run ./jepsen-lite -binary $(BIN) -kills $(KILLS)

cluster: build ## start three server processes on loopback, stop them with Ctrl-C
	deploy/local-cluster.sh $(BIN)

image: ## build the container image carillon:dev from scratch
	deploy/build-image.sh

proto: ## generate the protobuf code
	cd proto/gen && go run .

clean: ## remove what was built
	rm -rf bin jepsen-lite/out
