package ship

import (
	"context"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

func spans(t *testing.T) ptrace.Traces {
	t.Helper()
	td, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces([]byte(operation("a")))
	if err != nil {
		t.Fatal(err)
	}
	return td
}

// TestEnvironment: what is wrong with the environment is said, and not found out
// by a collector that gets nothing.
func TestEnvironment(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("empty", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{}, ""},
		{map[string]string{"PROTOCOL": "grpc", "TIMEOUT": "50", "COMPRESSION": "gzip"}, ""},
		{map[string]string{"PROTOCOL": "http/json"}, `OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf, got "http/json"`},
		{map[string]string{"PROTOCOL": "x", "TRACES_PROTOCOL": "grpc"}, ""},
		{map[string]string{"TIMEOUT": "5s"}, `OTEL_EXPORTER_OTLP_TIMEOUT must be a number of milliseconds, got "5s"`},
		{map[string]string{"TRACES_TIMEOUT": "-1"}, `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT must be a number of milliseconds, got "-1"`},
		{map[string]string{"ENDPOINT": "http://collector:4318 "}, `OTEL_EXPORTER_OTLP_ENDPOINT must be a URL, as http://collector:4318, got "http://collector:4318 "`},
		{map[string]string{"ENDPOINT": "127.0.0.1:4318"}, `OTEL_EXPORTER_OTLP_ENDPOINT must be a URL, as http://collector:4318, got "127.0.0.1:4318"`},
		{map[string]string{"TRACES_ENDPOINT": "ftp://collector"}, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be a URL, as http://collector:4318, got "ftp://collector"`},
		{map[string]string{"HEADERS": "s3cr3t"}, `OTEL_EXPORTER_OTLP_HEADERS must be key=value pairs with commas between, percent-encoded`},
		{map[string]string{"HEADERS": "a=%zz"}, `OTEL_EXPORTER_OTLP_HEADERS must be key=value pairs with commas between, percent-encoded`},
		{map[string]string{"COMPRESSION": "zstd"}, `OTEL_EXPORTER_OTLP_COMPRESSION must be gzip or none, got "zstd"`},
		{map[string]string{"INSECURE": "banana"}, `OTEL_EXPORTER_OTLP_INSECURE must be true or false, got "banana"`},
		{map[string]string{"CLIENT_CERTIFICATE": "/c"}, `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE must be given with OTEL_EXPORTER_OTLP_CLIENT_KEY`},
		{map[string]string{"CLIENT_KEY": "/k"}, `OTEL_EXPORTER_OTLP_CLIENT_KEY must be given with OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE`},
		{map[string]string{"CERTIFICATE": "none"}, "OTEL_EXPORTER_OTLP_CERTIFICATE: open none: no such file or directory"},
		{map[string]string{"CERTIFICATE": "empty", "PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_CERTIFICATE: empty has no certificate"},
		{map[string]string{"CLIENT_CERTIFICATE": "none", "CLIENT_KEY": "none"}, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: open none: no such file or directory"},
	} {
		got := ""
		if _, err := NewTraces(t.Context(), func(k string) string { return tt.env[strings.TrimPrefix(k, "OTEL_EXPORTER_OTLP_")] }); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%v: error %q, want %q", tt.env, got, tt.want)
		}
	}
}

// TestTLSAndHeaders: certificates, headers and compression are as the
// environment says.
func TestTLSAndHeaders(t *testing.T) {
	c := &collector{}
	s := httptest.NewTLSServer(c)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	to, err := NewTraces(t.Context(), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if a := to.Send(t.Context(), spans(t)); a.Verdict != Retry || !strings.Contains(a.Text, "certificate") {
		t.Errorf("without its certificate: %+v", a)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", ca)
	if to, err = NewTraces(t.Context(), os.Getenv); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Answer{Verdict: Accepted}, to.Send(t.Context(), spans(t))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if h := c.headers[0]; h.Get("Api-Key") != "a b" || h.Get("Content-Encoding") != "gzip" {
		t.Errorf("headers %v", h)
	}
}

// TestNobodyThere: where nobody listens it is tried again, until somebody does.
func TestNobodyThere(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
		to, err := NewTraces(t.Context(), os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		if a := to.Send(t.Context(), spans(t)); a.Verdict != Retry || !strings.Contains(a.Text, "connection refused") {
			t.Errorf("%s: %+v", protocol, a)
		}
	}
}

// TestDefaults: with nothing said it is this host, without TLS.
func TestDefaults(t *testing.T) {
	for protocol, port := range map[string]string{"": "4318", protocolHTTP: "4318", protocolGRPC: "4317"} {
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		to, err := NewTraces(t.Context(), os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Skip("the port is somebody's: run make test")
		}
		first := make(chan string, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				first <- err.Error()
				return
			}
			b := make([]byte, 4)
			_, _ = c.Read(b)
			_ = c.Close()
			first <- string(b)
		}()
		_ = to.Send(t.Context(), spans(t))
		if got, want := <-first, map[string]string{"4318": "POST", "4317": "PRI "}[port]; got != want {
			t.Errorf("%q: begins with %q, want %q", protocol, got, want)
		}
		_ = l.Close()
	}
}

// TestRestart: a collector that goes away in the midst of a request, and comes
// back at the same address, gets all of it.
func TestRestart(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			go func() { // takes a request's first bytes, and is gone
				conn, err := l.Accept()
				if err == nil {
					_, _ = conn.Read(make([]byte, 10))
					_ = conn.Close()
				}
				_ = l.Close()
			}()
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+address)
			s := opened(t, spool(t, map[string]string{"20260101T0000Z": operation("a") + operation("b")}), nil)
			c := &collector{}
			back := false
			s.Pause = func(context.Context, time.Duration) error {
				if l, err := net.Listen("tcp", address); err == nil && !back {
					back = true
					serve(t, protocol, l, c)
				}
				return nil
			}
			if err := Drain(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"a", "b"}, c.names()); diff != "" || s.Stats().Failures == 0 {
				t.Errorf("%+v (-want +got):\n%s", s.Stats(), diff)
			}
		})
	}
}
