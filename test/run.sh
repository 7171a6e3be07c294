#!/usr/bin/env bash
# Runs `go test` in a network and mount namespace of its own, so that tests
# disturb nothing on this machine and leave nothing on it. The last line counts
# what passed, failed and was skipped.
#
#   test/run.sh [go test arguments]      make test builds first, then calls this
#
# Tests see: TRACEWIRE_BIN and TRACEWIRE_REFERENCE, the folders of our programs
# and of the reference's; TRACEWIRE_SANDBOX=1 where the default folders
# (/run, /var/lib/cni, /var/log/tracewire) are empty and nobody else's.
# What a test writes to the file TRACEWIRE_TABLE is printed before the count.
# TRACEWIRE_NO_SKIP=1 makes a test skipped for a missing program a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

# empty DIR mounts an empty folder there. A missing one is made on an overlay,
# not on the host; where the kernel has no overlay, on the host after all.
empty() {
	if [ ! -d "$1" ]; then
		local parent="${1%/*}" over="/run/overlay$1"
		mkdir -p "$over/upper" "$over/work"
		mount -t overlay -o "userxattr,lowerdir=$parent,upperdir=$over/upper,workdir=$over/work" overlay "$parent" || true
		mkdir -p "$1"
	fi
	mount -t tmpfs tmpfs "$1"
}

# inside makes the new namespaces ready and becomes its arguments.
inside() {
	mount -t tmpfs -o mode=0755 tmpfs /run
	mkdir /run/lock /run/netns
	empty /var/lib/cni
	empty /var/log/tracewire
	# A sysfs shows the network namespace it was mounted in. 9 is IFF_UP|IFF_LOOPBACK: no need of ip.
	{ mount -t sysfs sysfs /sys && echo 9 >/sys/class/net/lo/flags; } 2>/dev/null || ip link set lo up ||
		echo "lo stays down: tests that listen on 127.0.0.1 may fail"
	export TRACEWIRE_SANDBOX=1 GOPROXY=off
	exec "$@"
}

if [ "${1:-}" = --inside ]; then
	shift
	inside "$@"
fi

[ $# -gt 0 ] || set -- ./...
GOFLAGS="$(go env GOFLAGS) -buildvcs=false"
GOCACHE="$(go env GOCACHE)"
GOMODCACHE="$(go env GOMODCACHE)"
export GOFLAGS GOCACHE GOMODCACHE CGO_ENABLED=0
export TRACEWIRE_BIN="$PWD/bin" TRACEWIRE_REFERENCE="$PWD/bin/reference"

# The namespaces have no way out: what has to be fetched is fetched now. A package
# that is broken is told here and counted below.
go list -deps -test ./... >/dev/null || true
go build -o bin/tools/ ./test/summary

TMPDIR="$(mktemp -d -t tracewire.XXXXXX)"
export TMPDIR
export TRACEWIRE_TABLE="$TMPDIR/table"
trap 'chmod -R u+rwX "$TMPDIR" && rm -rf "$TMPDIR" || true' EXIT

if unshare -nm mount -t tmpfs tmpfs /run 2>/dev/null; then
	echo "tests run in a network and a mount namespace"
	enter=(unshare -nm bash test/run.sh --inside)
elif unshare -rnm mount -t tmpfs tmpfs /run 2>/dev/null; then
	echo "tests run without root, in a user, a network and a mount namespace"
	enter=(unshare -rnm bash test/run.sh --inside)
else
	echo "tests run as they are, because no namespace can be made here; make test as root runs all of them"
	enter=()
fi
"${enter[@]}" go test -json -count=1 -p 2 -timeout 10m "$@" | bin/tools/summary "$TRACEWIRE_TABLE"
