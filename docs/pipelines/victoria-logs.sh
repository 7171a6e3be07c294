#!/bin/sh
# Sends a log file to VictoriaLogs, once: for one that was copied from a node. On a node let the Collector follow it.
#
#   victoria-logs.sh [FILE [ADDRESS]]
set -eu
curl -sSf -H 'Content-Type: application/stream+json' --data-binary @"${1:-/var/log/tracewire/tracewire.jsonl}" \
	"${2:-http://127.0.0.1:9428}/insert/jsonline?_time_field=time&_msg_field=message&_stream_fields=level"
