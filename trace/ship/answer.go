package ship

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Verdict is what becomes of what was sent.
type Verdict int

// The verdicts. The OpenTelemetry protocol specification ("Failures") would have
// what is not retryable dropped, as an exporter has to that holds it in memory.
// Ours is on disk: only what may be wrong with the content is given up. A token
// that is out of date, a wrong path, a redirect and HTTP's 500 (Unknown and
// Internal in gRPC) speak of the way and the server, and are waited for.
const (
	Retry    Verdict = iota // not taken now: to be sent again
	Accepted                // taken, but for what Rejected counts
	Refused                 // never to be sent again as it is: something in it may be wrong
)

// Answer is what the collector said to one request, or that nobody did.
type Answer struct {
	Verdict  Verdict
	Rejected int64         // spans or log records of an accepted request that were not taken
	After    time.Duration // the earliest next request, 0 where the collector did not say
	Text     string        // why, for people
}

type answerKey struct{}

// asking returns a context in which the doors below write down the answer. The
// exporters tell of an error's text alone.
func asking(ctx context.Context) (context.Context, *Answer) {
	a := &Answer{}
	return context.WithValue(ctx, answerKey{}, a), a
}

func answerIn(ctx context.Context) *Answer {
	a, _ := ctx.Value(answerKey{}).(*Answer)
	if a == nil {
		return &Answer{}
	}
	return a
}

// heard is the answer that the doors wrote down. Where none came there is an
// error that says why.
func (a *Answer) heard(err error) Answer {
	if a.Verdict == Retry && a.Text == "" && err != nil {
		a.Text = err.Error()
	}
	return *a
}

// maxAnswer bounds what is read of an answer in bytes.
const maxAnswer = 1 << 20

// httpDoor hands requests on, and writes their answers down.
type httpDoor struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d httpDoor) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err // half an answer is none
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	*answerIn(r.Context()) = httpAnswer(resp, body)
	return resp, nil
}

// ofContent is the statuses that may be for what is in the request.
var ofContent = []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}

func httpAnswer(resp *http.Response, body []byte) Answer {
	switch {
	case resp.StatusCode/100 == 2:
		return taken(resp, body)
	case slices.Contains(ofContent, resp.StatusCode):
		return Answer{Verdict: Refused, Text: resp.Status}
	}
	return Answer{Verdict: Retry, After: retryAfter(resp.Header.Get("Retry-After")), Text: resp.Status}
}

// taken is the answer that a 2xx gives. One with a body that is no answer to
// OTLP is another server's, a login page's: nothing was taken.
func taken(resp *http.Response, body []byte) Answer {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	m, err := response(kind, body)
	if err != nil {
		return Answer{Verdict: Retry, Text: fmt.Sprintf("%s with %s that is no answer to OTLP: %v", resp.Status, cmp.Or(kind, "a body"), err)}
	}
	p := m.GetPartialSuccess()
	return Answer{Verdict: Accepted, Rejected: p.GetRejectedSpans(), Text: p.GetErrorMessage()}
}

// response reads a body. An answer to logs is the same on the wire, and has a
// field of another name in JSON, which some answer with though they are not asked.
func response(kind string, body []byte) (m *coltrace.ExportTraceServiceResponse, err error) {
	m = new(coltrace.ExportTraceServiceResponse)
	switch {
	case len(body) == 0:
	case kind == "application/json":
		err = protojson.Unmarshal(bytes.ReplaceAll(body, []byte("rejectedLogRecords"), []byte("rejectedSpans")), m)
	case strings.HasPrefix(kind, "text/"):
		err = errors.New("is text")
	default:
		err = proto.Unmarshal(body, m)
	}
	return m, err
}

// retryAfter reads seconds or a date (RFC 9110, 10.2.3).
func retryAfter(v string) time.Duration {
	if n, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}

// grpcDoor is a grpc.UnaryClientInterceptor that writes the answer down.
func grpcDoor(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := next(ctx, method, req, reply, cc, opts...)
	*answerIn(ctx) = grpcAnswer(reply, err)
	return err
}

// grpcVerdicts is what codes mean; those that are not here are Retry. So is a
// resource that is exhausted, where the collector says when.
var grpcVerdicts = map[codes.Code]Verdict{
	codes.OK: Accepted, codes.InvalidArgument: Refused, codes.ResourceExhausted: Refused,
}

func grpcAnswer(reply any, err error) Answer {
	s := status.Convert(err)
	v := grpcVerdicts[s.Code()]
	a := Answer{Verdict: v, Text: s.Message()}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			a.After = max(0, info.GetRetryDelay().AsDuration())
			if s.Code() == codes.ResourceExhausted {
				a.Verdict = Retry
			}
		}
	}
	if v != Accepted {
		a.Text = s.Code().String() + ": " + a.Text
		return a
	}
	switch r := reply.(type) {
	case *coltrace.ExportTraceServiceResponse:
		a.Rejected, a.Text = r.GetPartialSuccess().GetRejectedSpans(), r.GetPartialSuccess().GetErrorMessage()
	case *collogs.ExportLogsServiceResponse:
		a.Rejected, a.Text = r.GetPartialSuccess().GetRejectedLogRecords(), r.GetPartialSuccess().GetErrorMessage()
	}
	return a
}
