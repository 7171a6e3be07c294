# Needs Go and make; the tests and the demo want root. Everything made goes into bin/.

PREFIX   ?= /opt/cni
BINDIR   ?= /usr/local/bin
CONFDIR  ?= /etc/cni/net.d
UNITDIR  ?= /etc/systemd/system
FUZZTIME ?= 30s
# What `make test` runs: make test PKGS=./ipam TESTFLAGS='-run Range'
PKGS      ?= ./...
TESTFLAGS ?=
# What `make soak` does.
SOAK      ?= -turns=0 -time=2m -seed=$(shell date +%s)

VERSION ?= $(shell [ -e .git ] && git describe --tags --always --dirty 2>/dev/null || echo dev)

# sudo leaves Go's own folder out of PATH, and git refuses to describe another user's checkout.
export PATH := $(PATH):/usr/local/go/bin
export GOFLAGS := $(shell go env GOFLAGS) -buildvcs=false
export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help build test test-kill e2e-telemetry jaeger bin/test/tracewire lint check soak fuzz demo root install reference compare-reference clean

help: ## Lists the targets.
	@sed -n 's/^\([a-z0-9-]\{1,\}\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 21

# Written once more, from begin to end: what the linker wrote page by page starts so much
# slower that an ADD takes a tenth longer. The reference plugins are treated alike.
anew = @for f in $(1); do cp "$$f" "$$f.new" && mv -f "$$f.new" "$$f" || exit 1; done

build: ## Builds the plugin tracewire, the command tracewirectl and the node agent tracewire-agent into bin/.
	go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/tracewire ./cmd/tracewirectl ./cmd/tracewire-agent
	$(call anew,bin/tracewire bin/tracewirectl bin/tracewire-agent)

test: build reference ## Runs every test, kernel tests too, in namespaces of their own.
	@test/run.sh $(TESTFLAGS) $(PKGS)

test-kill: build reference bin/test/tracewire ## Kills the plugin at every point of ADD and DEL, and looks for what is left (as root).
	@TRACEWIRE_KILL="$(CURDIR)/bin/test" test/run.sh -timeout 20m $(TESTFLAGS) ./test/kill

e2e-telemetry: root build reference bin/test/tracewire ## Every operation once in a real Jaeger, Collector, VictoriaLogs, Prometheus and rsyslog (as root).
	@test/e2e/tools/build.sh bin/e2e jaeger collector victoria-logs
	@TRACEWIRE_E2E="$(CURDIR)/bin/e2e" test/run.sh -timeout 15m $(TESTFLAGS) ./test/e2e/telemetry

jaeger: ## Builds Jaeger (minutes, the first time) and runs it on 127.0.0.1 until Ctrl-C.
	@test/e2e/tools/build.sh bin/e2e jaeger
	@echo "Jaeger takes spans on 127.0.0.1:4317 and :4318 and answers on http://127.0.0.1:16686; Ctrl-C ends it"
	@OTEL_TRACES_SAMPLER=always_off exec bin/e2e/jaeger --config docs/pipelines/jaeger.yaml

lint: bin/tools/golangci-lint ## Runs the linter, which is built from tools/go.mod.
	bin/tools/golangci-lint run ./...

check: lint ## Runs the linter, go vet and the tests.
	go vet ./...
	@$(MAKE) --no-print-directory test

soak: root build reference ## 2,000 ADDs and DELs, then two minutes of everything at once, with kills; SOAK='-turns=10000 -kill=0.01 -verbs=ADD,DEL' is a churn.
	@test/run.sh -run TestOrphans/reaps_orphans ./test/cases -turns=1000
	@report="$$(mktemp)"; trap 'rm -f "$$report"' EXIT; code=0; \
		test/run.sh ./test/soak $(SOAK) -report="$$report" || code=$$?; \
		cat "$$report"; exit $$code

fuzz: ## Runs every fuzz target for FUZZTIME (30s) each.
	@set -e; grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file func; do \
		folder=$$(dirname "$$file"); name=$${func#func }; \
		echo "fuzz $$folder $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$folder"; \
	done

demo: root build ## Attaches a network namespace, sends packets, checks, detaches, draws the traces (as root).
	@TRACEWIRE_BIN="$(CURDIR)/bin" go run ./test/demo

root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root" >&2; exit 1; }

# Written aside and renamed, so that no runtime ever starts half a plugin and a running one is not in the way.
put = @mkdir -p "$(DESTDIR)$(2)" && cp $(1) "$(DESTDIR)$(2)/.$(3).$$$$" && \
	chmod $(4) "$(DESTDIR)$(2)/.$(3).$$$$" && mv -f "$(DESTDIR)$(2)/.$(3).$$$$" "$(DESTDIR)$(2)/$(3)" && echo "installed $(DESTDIR)$(2)/$(3)"

install: build ## Installs plugin, command, agent with its unit, and a sample conflist; PREFIX, BINDIR, CONFDIR, UNITDIR and DESTDIR say where.
	$(call put,bin/tracewire,$(PREFIX)/bin,tracewire,0755)
	$(call put,bin/tracewirectl,$(BINDIR),tracewirectl,0755)
	$(call put,bin/tracewire-agent,$(BINDIR),tracewire-agent,0755)
	$(call put,contrib/tracewire-agent.service,$(UNITDIR),tracewire-agent.service,0644)
	$(call put,contrib/10-tracewire.conflist,$(CONFDIR),10-tracewire.conflist.sample,0644)

reference: bin/reference/.built ## Builds cnitool and the reference plugins that tests run into bin/reference/.

compare-reference: root build reference ## Plays the same inputs to the reference plugins and to ours, and prints what both did (as root).
	@table="$$(mktemp)"; trap 'rm -f "$$table"' EXIT; code=0; \
		test/run.sh -run TestScenarios ./test/reference -compare="$$table" || code=$$?; \
		echo; cat "$$table"; exit $$code

clean: ## Removes bin/.
	rm -rf bin

# With points to be killed at. It is never installed.
bin/test/tracewire:
	go build -tags killpoints -trimpath -ldflags "-s -w" -o $@ ./cmd/tracewire

bin/reference/.built: test/tools/go.mod test/tools/go.sum
	go build -C test/tools -trimpath -ldflags "-s -w" -o "$(CURDIR)/bin/reference/" tool
	$(call anew,bin/reference/*)
	@touch $@

bin/tools/golangci-lint: tools/go.mod tools/go.sum
	go build -C tools -trimpath -ldflags "-s -w" -o "$(CURDIR)/bin/tools/" tool
	@touch $@
