# Needs Go and make; the tests and the demo want root. Everything made goes into bin/.

PREFIX   ?= /opt/cni
BINDIR   ?= /usr/local/bin
CONFDIR  ?= /etc/cni/net.d
FUZZTIME ?= 30s
# What `make test` runs: make test PKGS=./ipam TESTFLAGS='-run Range'
PKGS      ?= ./...
TESTFLAGS ?=

VERSION ?= $(shell [ -e .git ] && git describe --tags --always --dirty 2>/dev/null || echo dev)

# sudo leaves Go's own folder out of PATH, and git refuses to describe another user's checkout.
export PATH := $(PATH):/usr/local/go/bin
export GOFLAGS := $(shell go env GOFLAGS) -buildvcs=false
export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help build test lint check fuzz demo install reference clean

help: ## Lists the targets.
	@sed -n 's/^\([a-z]\{1,\}\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## Builds the plugin tracewire and the command tracewirectl into bin/.
	go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/tracewire ./cmd/tracewirectl

test: build reference ## Runs every test, kernel tests too, in namespaces of their own (as root; without root in a user namespace).
	@test/run.sh $(TESTFLAGS) $(PKGS)

lint: bin/tools/golangci-lint ## Runs the linter, which is built from tools/go.mod.
	bin/tools/golangci-lint run ./...

check: lint ## Runs the linter, go vet and the tests.
	go vet ./...
	@$(MAKE) --no-print-directory test

fuzz: ## Runs every fuzz target for FUZZTIME (30s) each.
	@set -e; grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file func; do \
		folder=$$(dirname "$$file"); name=$${func#func }; \
		echo "fuzz $$folder $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$folder"; \
	done

demo: build ## Attaches a network namespace through a conflist, sends packets, checks, detaches, and draws the traces (as root).
	@TRACEWIRE_BIN="$(CURDIR)/bin" go run ./test/demo

# Written aside and renamed, so that no runtime ever starts half a plugin and a running one is not in the way.
put = mkdir -p "$(DESTDIR)$(2)" && cp $(1) "$(DESTDIR)$(2)/.$(3).$$$$" && \
	chmod $(4) "$(DESTDIR)$(2)/.$(3).$$$$" && mv -f "$(DESTDIR)$(2)/.$(3).$$$$" "$(DESTDIR)$(2)/$(3)"

install: build ## Installs the plugin below PREFIX (/opt/cni), the command into BINDIR, a sample conflist into CONFDIR; DESTDIR goes before each.
	$(call put,bin/tracewire,$(PREFIX)/bin,tracewire,0755)
	$(call put,bin/tracewirectl,$(BINDIR),tracewirectl,0755)
	$(call put,contrib/10-tracewire.conflist,$(CONFDIR),10-tracewire.conflist.sample,0644)

reference: bin/reference/.built ## Builds cnitool and the reference plugins that tests run into bin/reference/.

clean: ## Removes bin/.
	rm -rf bin

bin/reference/.built: test/tools/go.mod test/tools/go.sum
	go build -C test/tools -trimpath -ldflags "-s -w" -o "$(CURDIR)/bin/reference/" tool
	@touch $@

bin/tools/golangci-lint: tools/go.mod tools/go.sum
	go build -C tools -trimpath -ldflags "-s -w" -o "$(CURDIR)/bin/tools/" tool
	@touch $@
