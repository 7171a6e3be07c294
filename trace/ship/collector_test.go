package ship

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// reply is a collector's to one request, in both protocols.
type reply struct {
	http     int
	grpc     codes.Code
	after    time.Duration // Retry-After and RetryInfo
	rejected int64
	message  string
	hang     bool // does not answer before the caller gives up
}

var good = reply{http: http.StatusOK}

// collector is one that answers what it is told to, and keeps what it took.
type collector struct {
	ptraceotlp.UnimplementedGRPCServer
	mu     sync.Mutex
	script []reply // for the first requests; good after that
	// refuses is asked where the script is over.
	refuses  func(ptrace.Traces) *reply
	requests []ptrace.Traces // all of them
	took     []ptrace.Traces
	headers  []http.Header
}

func (c *collector) next(td ptrace.Traces) reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, td)
	r := good
	if len(c.script) > 0 {
		r, c.script = c.script[0], c.script[1:]
	} else if c.refuses != nil {
		if bad := c.refuses(td); bad != nil {
			r = *bad
		}
	}
	if r.http == http.StatusOK {
		c.took = append(c.took, td)
	}
	return r
}

// names is the spans that were taken, one by one.
func (c *collector) names() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, td := range c.took {
		each(td, func(s ptrace.Span) { out = append(out, s.Name()) })
	}
	return out
}

// ServeHTTP implements http.Handler.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	b, err := io.ReadAll(body)
	q := ptraceotlp.NewExportRequest()
	if err != nil || q.UnmarshalProto(b) != nil || r.URL.Path != "/v1/traces" {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	c.mu.Lock()
	c.headers = append(c.headers, r.Header)
	c.mu.Unlock()
	reply := c.next(q.Traces())
	if reply.hang {
		<-r.Context().Done()
		return
	}
	if reply.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(reply.after.Seconds())))
	}
	answer := ptraceotlp.NewExportResponse()
	answer.PartialSuccess().SetRejectedSpans(reply.rejected)
	answer.PartialSuccess().SetErrorMessage(reply.message)
	out, _ := answer.MarshalProto()
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(reply.http)
	_, _ = w.Write(out)
}

// Export implements ptraceotlp.GRPCServer.
func (c *collector) Export(ctx context.Context, q ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	reply := c.next(q.Traces())
	if reply.hang {
		<-ctx.Done()
	}
	answer := ptraceotlp.NewExportResponse()
	answer.PartialSuccess().SetRejectedSpans(reply.rejected)
	answer.PartialSuccess().SetErrorMessage(reply.message)
	s := status.New(reply.grpc, reply.message)
	if reply.after > 0 {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(reply.after)})
	}
	return answer, s.Err()
}

// served starts a collector of a protocol, and lets the environment name it.
func served(t *testing.T, protocol string, c *collector) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, protocol, l, c)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
}

// serve has a collector answer at an address for as long as the test runs.
func serve(t *testing.T, protocol string, l net.Listener, c *collector) {
	t.Helper()
	if protocol == protocolHTTP {
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}}
		s.Start()
		t.Cleanup(s.Close)
		return
	}
	s := grpc.NewServer()
	ptraceotlp.RegisterGRPCServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}
