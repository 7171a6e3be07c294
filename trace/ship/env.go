package ship

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signal reads the variables OTEL_EXPORTER_OTLP_* of one signal, "TRACES" or
// "LOGS" (OpenTelemetry specification, "OpenTelemetry Protocol Exporter").
type signal struct {
	name   string
	getenv func(string) string
}

const prefix = "OTEL_EXPORTER_OTLP_"

// variable is the one that counts: the signal's own, else the one for all.
func (s signal) variable(key string) string {
	if own := prefix + s.name + "_" + key; s.getenv(own) != "" {
		return own
	}
	return prefix + key
}

func (s signal) env(key string) string { return s.getenv(s.variable(key)) }

// plain tells that nothing is said of the way to the collector: it is on this
// host then, without TLS. The exporters would take TLS.
func (s signal) plain() bool {
	return s.env("ENDPOINT") == "" && s.env("INSECURE") == "" && s.env("CERTIFICATE") == "" && s.env("CLIENT_CERTIFICATE") == ""
}

// The protocols that are spoken.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// rules is what a variable that is set has to be. The exporters would go on
// without one that is wrong: to another collector, or without its token.
var rules = []struct {
	key, must string
	ok        func(value string) bool
}{
	{"ENDPOINT", "must be a URL, as http://collector:4318", isURL},
	{"PROTOCOL", "must be " + protocolGRPC + " or " + protocolHTTP, oneOf(protocolGRPC, protocolHTTP)},
	{"HEADERS", "must be key=value pairs with commas between, percent-encoded", areHeaders},
	{"COMPRESSION", "must be gzip or none", oneOf("gzip", "none")},
	{"INSECURE", "must be true or false", oneOf("true", "false")},
	{"TIMEOUT", "must be a number of milliseconds", isTimeout},
}

// check is an error that names the first variable that is wrong, and its value
// unless it may be a secret.
func (s signal) check() error {
	for _, r := range rules {
		v := s.env(r.key)
		switch {
		case v == "" || r.ok(v):
		case r.key == "HEADERS":
			return fmt.Errorf("%s %s", s.variable(r.key), r.must)
		default:
			return fmt.Errorf("%s %s, got %q", s.variable(r.key), r.must, v)
		}
	}
	for has, needs := range map[string]string{"CLIENT_CERTIFICATE": "CLIENT_KEY", "CLIENT_KEY": "CLIENT_CERTIFICATE"} {
		if s.env(has) != "" && s.env(needs) == "" {
			return fmt.Errorf("%s must be given with %s%s", s.variable(has), prefix, needs)
		}
	}
	return nil
}

func isURL(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && strings.TrimSpace(v) == v
}

func oneOf(words ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(words, strings.ToLower(v)) }
}

func areHeaders(v string) bool {
	for pair := range strings.SplitSeq(v, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if _, err := url.PathUnescape(value); !ok || err != nil || strings.TrimSpace(key) == "" {
			return false
		}
	}
	return true
}

func isTimeout(v string) bool {
	n, err := strconv.ParseInt(v, 10, 32)
	return err == nil && n >= 0
}

// defaultTimeout bounds a request where the environment does not.
const defaultTimeout = 10 * time.Second

// timeout bounds a request.
func (s signal) timeout() time.Duration {
	n, err := strconv.ParseInt(s.env("TIMEOUT"), 10, 32)
	if err != nil {
		return defaultTimeout
	}
	return time.Duration(n) * time.Millisecond
}
