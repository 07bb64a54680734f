# The targets that people and CI use. `make` alone lists them.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS  = -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# More arguments for go test, as in: make test TESTFLAGS='-run Takeover -v'
TESTFLAGS ?=
# How long the servers of make test-outages are away.
OUTAGE    ?= 10m
# What make chaos is told, and what else make's command line gives: the test refuses what it does not know, and what is empty.
CHAOS     = DURATION FAULTS MESSAGES SEED RUNS KILLS
GIVEN     = $(filter-out GO TESTFLAGS,$(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $(v))),$(v))))
# How many ids each lane of make test-recovery has.
IDS       ?= 3000
# How many rows make test-verify-large writes to the ledger.
ROWS      ?= 10000000

# The packages whose tests run on real servers.
ON_SERVERS = /test/(servers|consume|txsink|e2e|compose|bench)$$|/cmd/demo$$

# The one that takes longest: it begins first, and the others run beside it, one after the other.
LONGEST = /test/e2e

# What make bench runs: a test of test/bench each, and a section of docs/benchmarks.md.
BENCHMARKS = decode state lane sink delay memory
# What is not in it, for it needs Java and Maven.
BENCHMARKS_JAVA = flink

# Runs one benchmark at its published size, which prints as it goes. $(1) is its test.
run_bench = $(GO) test -C test/bench -list '^$(1)$$' | grep -qx '$(1)' || { echo "make: FAILED: test/bench has no $(1)" >&2; exit 1; }; \
	BILLING_BENCH=full $(GO) test -C test/bench -count=1 -timeout 2h -run '^$(1)$$' $(TESTFLAGS)

# Where benchmarks write to in place of docs. The tests run in folders of their own, so it must be absolute.
ifneq ($(BILLING_BENCH_OUT),)
override BILLING_BENCH_OUT := $(abspath $(BILLING_BENCH_OUT))
export BILLING_BENCH_OUT
endif

need_go = command -v $(GO) >/dev/null || { echo "make: FAILED: there is no go on the PATH; next step: install Go 1.26 or later" >&2; exit 1; }; \
	v=$$($(GO) env GOVERSION) || exit 1; minor=$${v\#go1.}; minor=$${minor%%[!0-9]*}; \
	[ "$${minor:-0}" -ge 26 ] || { echo "make: FAILED: $$v is too old; next step: install Go 1.26 or later" >&2; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help build test test-unit test-outages chaos test-recovery model test-verify test-verify-large mutants mutants-document testbed demo tour lint clean
.PHONY: bench bench-decode bench-state bench-lane bench-sink bench-delay bench-memory bench-flink bench-document

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## build bin/billing
	@$(need_go)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/billing ./cmd/billing

test: ## all tests; the integration tests get their servers from scripts/testbed
	@$(need_go)
	$(GO) vet ./...
	@$(MAKE) --no-print-directory test-unit
	@env=$$(scripts/testbed --env) && eval "$$env" && packages=$$($(GO) list ./... | grep -E '$(ON_SERVERS)' | grep -v '$(LONGEST)') && set -x && \
	$(GO) test -count=1 -timeout 50m -p 2 -parallel 8 $(TESTFLAGS) .$(LONGEST) $$packages

test-unit: ## the tests that need no Docker, the rules of the repository among them
	@$(need_go)
	@packages=$$($(GO) list ./... | grep -vE '$(ON_SERVERS)') && set -x && $(GO) test -timeout 25m $(TESTFLAGS) $$packages

test-outages: ## the tests of servers that are away, for OUTAGE (10m) each instead of 20 s
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TEST_OUTAGE=$(OUTAGE) $(GO) test -count=1 -timeout 2h -parallel 8 -run Away -v $(TESTFLAGS) ./test/e2e

chaos: ## faults by a seed over real processes: make chaos DURATION=10m SEED=1, or FAULTS=200 MESSAGES=1000000 RUNS=10; KILLS=no
	@$(need_go)
	@mkdir -p bin/chaos && env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TEST_CHAOS='$(strip $(foreach v,$(sort $(CHAOS) $(GIVEN)),$(if $(filter-out undefined,$(origin $(v))),$(v)=$($(v)))))' \
	$(GO) test -count=1 -timeout 0 -run '^TestChaos$$' -v -artifacts -outputdir $(CURDIR)/bin/chaos $(TESTFLAGS) ./test/e2e

test-recovery: ## how fast 16 lanes are back behind a SIGKILL: make test-recovery IDS=100000 BESIDE=/path/of/another/billing
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TEST_RECOVERY=$(IDS) BILLING_TEST_BESIDE=$(BESIDE) $(GO) test -count=1 -timeout 2h -parallel 1 -run '^TestRecovery$$' -v $(TESTFLAGS) ./test/e2e

model: ## the protocol as a model: larger bounds than in make test, and its nets; takes minutes and 1 GB
	@$(need_go)
	BILLING_TEST_MODEL=large $(GO) test -count=1 -timeout 2h -v $(TESTFLAGS) ./test/model

test-verify: ## billing verify against every error that a row can have; make test takes a part of them
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TEST_VERIFY=all $(GO) test -count=1 -timeout 1h -parallel 8 -run '^TestVerify' -v $(TESTFLAGS) ./test/e2e

test-verify-large: ## billing verify of large tables: make test-verify-large ROWS=10000000
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TEST_ROWS=$(ROWS) $(GO) test -count=1 -timeout 3h -run '^TestVerifyOfLargeTables$$' -v $(TESTFLAGS) ./test/txsink

mutants: ## seeded bugs of the protocol, each of which a named test must see; make mutants ONLY=takeover (a pattern of names)
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && \
	BILLING_MUTANTS=all BILLING_MUTANTS_ONLY='$(ONLY)' $(GO) test -C test/mutants -count=1 -timeout 2h -run '^Test(Patches|Mutants)$$' -v $(TESTFLAGS)

mutants-document: ## the table of docs/mutants.md anew from the patches
	@$(need_go)
	@BILLING_MUTANTS_DOCUMENT=1 $(GO) test -C test/mutants -count=1 -run '^TestDocument$$'

bench: ## all benchmarks with their targets, then docs/benchmarks.md; fails at its end if a target is missed
	@$(need_go)
	@missed=; for b in $(BENCHMARKS); do $(MAKE) --no-print-directory bench-$$b || missed="$$missed $$b"; done; \
	$(if $(BILLING_BENCH_OUT),,$(MAKE) --no-print-directory bench-document || missed="$$missed document";) \
	[ -z "$$missed" ] || { echo "make: FAILED: a target is missed, or it broke:$$missed" >&2; exit 1; }

bench-decode: ## strict decoding against encoding/json and a bare walk over the bytes
	@$(need_go)
	@$(call run_bench,TestBenchDecode)

bench-state: ## the memory of ids against a map of Go: bytes, nanoseconds, restore
	@$(need_go)
	@$(call run_bench,TestBenchState)

bench-lane: ## the whole service over an embedded broker, with shards that keep nothing
	@$(need_go)
	@$(call run_bench,TestBenchLane)

bench-sink: ## the whole service on real servers against its statements in MySQL alone
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && { $(call run_bench,TestBenchSink); }

bench-delay: ## how long a message waits until it shows in the tables, in lanes that keep up
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && { $(call run_bench,TestBenchDelay); }

bench-memory: ## the memory and the idle cost of the real binary on real servers
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && { $(call run_bench,TestBenchMemory); }

bench-flink: ## the service beside a job of Flink; needs Java 17 and Maven, no part of make bench
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && export BILLING_BENCH_FLINK='$(or $(FLINK),default)' && { $(call run_bench,TestBenchFlink); }

bench-document: ## docs/benchmarks.md and its plots anew from the stored results
	@$(need_go)
	@BILLING_BENCH=document $(GO) test -C test/bench/measure -count=1 -run '^TestDocumentIsRendered$$'

testbed: ## only make the test servers' engine and images ready
	@scripts/testbed

demo: ## see the service at work beside a plain loop: make demo KAFKA=real ARGS='--count 50000 --json'
	@$(need_go)
	@KAFKA='$(KAFKA)' scripts/demo $(ARGS)

tour: ## type README.md's tour anew, and write there what it prints
	@$(need_go)
	@env=$$(scripts/testbed --env) && eval "$$env" && set -x && \
	BILLING_TOUR=update $(GO) test -count=1 -timeout 25m -run '^TestTour$$' -v ./test/compose

lint: ## gofmt, go vet; golangci-lint and promtool (the alerts) where they are installed
	@$(need_go)
	@files=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')) && \
	if [ -n "$$files" ]; then echo "make: FAILED: not formatted (next step: gofmt -w):" >&2; echo "$$files" >&2; exit 1; fi
	$(GO) vet ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run --allow-parallel-runners ./...; else echo "golangci-lint is not installed: skipped"; fi
	@if command -v promtool >/dev/null; then promtool check rules deploy/prometheus/alerts.yaml && promtool test rules deploy/prometheus/alerts.test.yaml; else echo "promtool is not installed: the alerts are not tested"; fi

clean: ## remove what make build has built (scripts/testbed clean removes the test images)
	rm -rf bin
