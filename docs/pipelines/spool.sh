#!/bin/sh
# Sends a spool to whatever takes OTLP over HTTP, Jaeger and the Collector among them: each of its lines is a request's
# body as it is. For a spool that was copied from a node; on the node the agent does it, and keeps how far it is.
#
#   spool.sh [FOLDER [ENDPOINT]]
set -eu
folder="${1:-/var/lib/cni/tracewire/spool}"
endpoint="${2:-http://127.0.0.1:4318}"
cat "$folder"/*.jsonl | while IFS= read -r line; do
	answer="$(printf '%s' "$line" | curl -sS --fail-with-body -H 'Content-Type: application/json' --data-binary @- "$endpoint/v1/traces")" || {
		printf '%s\nto: %s\n' "$answer" "$line" >&2
		exit 1
	}
done
