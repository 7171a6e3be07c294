//go:build linux

package telemetry

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
)

// Where VictoriaLogs listens, and the files of docs/pipelines/rsyslog.conf.
const (
	victoria   = "http://127.0.0.1:9428"
	logPath    = "/var/log/tracewire/tracewire.jsonl"
	rsyslogOut = "/var/log/tracewire-rsyslog.jsonl"
	rsyslogBad = "/var/log/tracewire-rsyslog.bad"
)

// line is a line of the log, wherever it has come to.
type line map[string]any

func (l line) text(key string) string {
	if l[key] == nil {
		return ""
	}
	return fmt.Sprint(l[key])
}

// lines reads JSON lines.
func lines(r io.Reader) (all []line, err error) {
	for d := json.NewDecoder(bufio.NewReader(r)); ; {
		var l line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, err
		}
		all = append(all, l)
	}
}

// logsql is VictoriaLogs' answer to a query.
func logsql(query string) ([]line, error) {
	body, err := asked(http.PostForm(victoria+"/select/logsql/query", url.Values{"query": {query}, "limit": {"100000"}}))
	if err != nil {
		return nil, err
	}
	return lines(bytes.NewReader(body))
}

// victorious looks for each operation's line by its trace id.
func victorious(asks []*ask) (tally, error) {
	return logged(asks, "_msg", func(trace string) ([]line, error) { return logsql("trace_id:" + trace) })
}

// forwarded looks for each operation's line in what rsyslog wrote.
func forwarded(asks []*ask) (tally, error) {
	b, err := os.ReadFile(rsyslogOut)
	if err != nil {
		return tally{}, err
	}
	all, err := lines(bytes.NewReader(b))
	if err != nil {
		return tally{}, err
	}
	byTrace := map[string][]line{}
	for _, l := range all {
		byTrace[l.text("trace_id")] = append(byTrace[l.text("trace_id")], l)
	}
	return logged(asks, "message", func(trace string) ([]line, error) { return byTrace[trace], nil })
}

// logged counts each operation's summary lines, and tells what is wrong with
// their fields. A store that knows a span's ids and a line's severity has more
// than the line.
func logged(asks []*ask, message string, of func(trace string) ([]line, error)) (sum tally, err error) {
	for _, a := range asks {
		all, wrong := of(a.trace)
		n := 0
		for _, l := range all {
			if l.text(message) == "cni."+a.verb && (a.verb == "GC" || l.text("cni.id") == a.id) {
				n++
				wrong = errors.Join(wrong, a.tells(l))
			}
		}
		sum.add(n)
		if err = errors.Join(err, wrong); n != 1 {
			err = errors.Join(err, fmt.Errorf("%v: %d lines", a, n))
		}
	}
	return sum, errors.Join(err, sum.ok())
}

// tells is what is wrong with an operation's line.
func (a *ask) tells(l line) (err error) {
	want := map[string]string{"cni.name": a.network, "outcome": map[bool]string{true: "ok", false: "error"}[a.outcome == fine]}
	if a.outcome == interrupted {
		want["error.type"] = interrupted
	}
	for key, value := range want {
		if l.text(key) != value {
			err = errors.Join(err, fmt.Errorf("%v: its line has %s %q, want %q", a, key, l.text(key), value))
		}
	}
	if len(l.text("span_id")) != 16 {
		err = errors.Join(err, fmt.Errorf("%v: its line has no span", a))
	}
	return err
}
