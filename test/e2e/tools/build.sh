#!/usr/bin/env bash
# Builds programs that the end-to-end tests run, each from a module of its own
# beside this script, into a folder a version below ${XDG_CACHE_HOME:-~/.cache}.
# What is there already stays: the first time takes minutes, each next a blink.
# Links to them go into the folder FOLDER.
#
#   test/e2e/tools/build.sh FOLDER NAME...
set -euo pipefail
tools="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
links="$(cd "$1" && pwd)"
shift
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tracewire-e2e"
mkdir -p "$cache"

# Which module's version names the program's.
declare -A of=(
	[jaeger]=github.com/jaegertracing/jaeger
	[collector]=go.opentelemetry.io/collector/otelcol
	[victoria-logs]=github.com/VictoriaMetrics/VictoriaLogs
)

# The folder of a program: its version, and a hash of all that it is made from.
folder() {
	local version hash
	version="$(awk -v m="${of[$1]}" '$1 == m { print $2; exit }' go.mod)"
	hash="$({ go env GOVERSION; cat go.mod go.sum; cat ./*.go 2>/dev/null || true; } | sha256sum | cut -c1-12)"
	echo "$cache/$1-$version-$hash"
}

# A tool of the module, or the module's own main package.
package() {
	[ -e main.go ] && echo . || echo tool
}

for name in "$@"; do
	cd "$tools/$name"
	dir="$(folder "$name")"
	if [ ! -x "$dir/$name" ]; then
		start=$SECONDS
		aside="$(mktemp -d "$cache/.$name.XXXXXX")"
		trap 'rm -rf "$aside"' EXIT
		CGO_ENABLED=0 go build -buildvcs=false -p 2 -trimpath -ldflags "-s -w" -o "$aside/" "$(package)"
		[ -x "$aside/$name" ] || mv "$aside/"* "$aside/$name"
		chmod 755 "$aside"
		mv -T "$aside" "$dir" 2>/dev/null || [ -x "$dir/$name" ]
		echo "built $(basename "$dir") in $((SECONDS - start)) s"
	fi
	ln -sfn "$dir/$name" "$links/$name"
done
