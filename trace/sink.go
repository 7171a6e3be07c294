package trace

import (
	"os"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tracewire/tracewire/trace/point"
)

// Sink is where an operation goes when it is over.
type Sink struct {
	Resource []attribute.KeyValue
	Spool    Spool
	Log      Log
}

// Write appends the operation to spool and log, once. It never fails: a loss is
// counted at DroppedPath. It tells whether the spool has the operation.
func (s Sink) Write(r *Recorder) (spooled bool) {
	point.Pass(point.Before, "spool")
	errSpool := s.Spool.Write(r, s.Resource)
	point.Pass(point.After, "spool")
	errLog := s.Log.Write(r)
	point.Pass(point.After, "log")
	if errSpool != nil || errLog != nil {
		Count(DroppedPath)
	}
	return errSpool == nil
}

// Resource describes this program. What the environment says in OTEL_* is the
// runtime's and not ours: it is not looked at.
func Resource(version, instance string, getenv func(string) string) []attribute.KeyValue {
	kv := []attribute.KeyValue{
		keyService.String("tracewire"), keyServiceVer.String(version), keyServiceInst.String(instance),
	}
	if h, err := os.Hostname(); err == nil {
		kv = append(kv, keyHost.String(h))
	}
	for _, k := range []string{"K8S_NODE_NAME", "NODE_NAME"} {
		if n := getenv(k); n != "" {
			return append(kv, keyNode.String(n))
		}
	}
	return kv
}

// OfPod is what a runtime says of the pod in CNI_ARGS.
func OfPod(args map[string]string) []attribute.KeyValue {
	return Given(
		KeyPodNamespace.String(args["K8S_POD_NAMESPACE"]),
		KeyPod.String(args["K8S_POD_NAME"]),
		KeyPodUID.String(args["K8S_POD_UID"]))
}
