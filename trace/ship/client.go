package ship

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/proto"
)

// Traces sends spans to a collector.
type Traces interface {
	// Send sends them once, and waits for the answer as long as the environment
	// says.
	Send(ctx context.Context, td ptrace.Traces) Answer
}

// Logs sends log records to a collector.
type Logs interface {
	// Send sends them once, as Traces does.
	Send(ctx context.Context, records []sdklog.Record) Answer
}

// httpClient is a client with our door. What the exporters read of the
// environment for a client of their own is read here: certificates, timeout.
func (s signal) httpClient() (*http.Client, error) {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: defaultTimeout}).DialContext,
		ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: defaultTimeout,
	}
	var err error
	if t.TLSClientConfig, err = s.tls(); err != nil {
		return nil, err
	}
	return &http.Client{Transport: httpDoor{t}, Timeout: s.timeout(), CheckRedirect: stay}, nil
}

// stay has a redirect be the answer: followed, a POST becomes a GET, and a page
// that says how to log in is a 200.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// tls is what the variables of certificates say, nil where they are not set.
func (s signal) tls() (*tls.Config, error) {
	ca, cert, key := s.env("CERTIFICATE"), s.env("CLIENT_CERTIFICATE"), s.env("CLIENT_KEY")
	if ca == "" && cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.variable("CERTIFICATE"), err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: %s has no certificate", s.variable("CERTIFICATE"), ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.variable("CLIENT_CERTIFICATE"), err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// dial has our door, and asks a collector that was away for long again soon.
func dial() []grpc.DialOption {
	b := backoff.DefaultConfig
	b.MaxDelay = maxPause
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(grpcDoor),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: b, MinConnectTimeout: defaultTimeout}),
	}
}

type traceClient struct{ otlptrace.Client }

// NewTraces is a client for spans as the environment describes it. It does not
// wait for the collector.
func NewTraces(ctx context.Context, getenv func(string) string) (Traces, error) {
	s := signal{"TRACES", getenv}
	protocol, own, err := s.way()
	if err != nil {
		return nil, err
	}
	var c otlptrace.Client
	if protocol == protocolGRPC {
		options := []otlptracegrpc.Option{otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}), otlptracegrpc.WithDialOption(dial()...)}
		if s.plain() {
			options = append(options, otlptracegrpc.WithInsecure())
		}
		c = otlptracegrpc.NewClient(options...)
	} else {
		options := []otlptracehttp.Option{otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}), otlptracehttp.WithHTTPClient(own)}
		if s.plain() {
			options = append(options, otlptracehttp.WithInsecure())
		}
		c = otlptracehttp.NewClient(options...)
	}
	return traceClient{c}, c.Start(ctx)
}

// way is the protocol and a client for it, if it is HTTP. What is wrong with the
// environment is an error: the exporters would go on without it.
func (s signal) way() (protocol string, own *http.Client, err error) {
	if err = s.check(); err == nil {
		own, err = s.httpClient()
	}
	return cmp.Or(s.env("PROTOCOL"), protocolHTTP), own, err
}

// Send implements Traces.
func (c traceClient) Send(ctx context.Context, td ptrace.Traces) Answer {
	b, err := ptraceotlp.NewExportRequestFromTraces(td).MarshalProto()
	var m coltrace.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &m)
	}
	if err != nil {
		return Answer{Verdict: Refused, Text: err.Error()}
	}
	ctx, a := asking(ctx)
	return a.heard(c.UploadTraces(ctx, m.GetResourceSpans()))
}

type logClient struct{ sdklog.Exporter }

// NewLogs is a client for log records, as NewTraces is for spans.
func NewLogs(ctx context.Context, getenv func(string) string) (Logs, error) {
	s := signal{"LOGS", getenv}
	protocol, own, err := s.way()
	if err != nil {
		return nil, err
	}
	if protocol == protocolGRPC {
		options := []otlploggrpc.Option{otlploggrpc.WithRetry(otlploggrpc.RetryConfig{}), otlploggrpc.WithDialOption(dial()...)}
		if s.plain() {
			options = append(options, otlploggrpc.WithInsecure())
		}
		e, err := otlploggrpc.New(ctx, options...)
		return logClient{e}, err
	}
	options := []otlploghttp.Option{otlploghttp.WithRetry(otlploghttp.RetryConfig{}), otlploghttp.WithHTTPClient(own)}
	if s.plain() {
		options = append(options, otlploghttp.WithInsecure())
	}
	e, err := otlploghttp.New(ctx, options...)
	return logClient{e}, err
}

// Send implements Logs.
func (c logClient) Send(ctx context.Context, records []sdklog.Record) Answer {
	ctx, a := asking(ctx)
	return a.heard(c.Export(ctx, records))
}
