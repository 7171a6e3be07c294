//go:build linux

package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// witness is the name under which the test's own binary is a chained plugin that
// speaks OpenTelemetry by itself: one span an operation, straight to Jaeger.
const witness = "witness"

// testify is the witness's main function.
func testify() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: func(a *skel.CmdArgs) error { return say(a, "ADD", passOn) },
		Del: func(a *skel.CmdArgs) error { return say(a, "DEL", nil) }, Check: func(a *skel.CmdArgs) error { return say(a, "CHECK", nil) },
		GC: func(a *skel.CmdArgs) error { return say(a, "GC", nil) }, Status: func(*skel.CmdArgs) error { return nil },
	}, version.All, witness)
}

// say does an operation in a span, below the one that TRACEPARENT names.
func say(args *skel.CmdArgs, verb string, do func(*types.NetConf, []byte) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/6)
	defer cancel()
	spans, err := tracing(ctx, witness)
	if err != nil {
		return err
	}
	parent := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": os.Getenv("TRACEPARENT")})
	_, span := spans.Tracer(witness).Start(parent, witness+"."+verb)
	conf := &types.NetConf{}
	if err = json.Unmarshal(args.StdinData, conf); err == nil && do != nil {
		err = do(conf, args.StdinData)
	}
	span.End()
	if late := spans.Shutdown(ctx); err == nil {
		err = late
	}
	return err
}

// passOn answers with the result so far.
func passOn(conf *types.NetConf, stdin []byte) error {
	if err := version.ParsePrevResult(conf); err != nil {
		return err
	}
	if conf.PrevResult == nil {
		return fmt.Errorf("no prevResult in %s", stdin)
	}
	r, err := types100.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return err
	}
	return types.PrintResult(r, conf.CNIVersion)
}

// tracing sends a service's spans straight to Jaeger, each as it ends.
func tracing(ctx context.Context, service string) (*sdk.TracerProvider, error) {
	to, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(jaegerTakes+"/v1/traces"), otlptracehttp.WithTimeout(patience/6))
	if err != nil {
		return nil, err
	}
	return sdk.NewTracerProvider(sdk.WithSyncer(to), sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", service)))), nil
}
