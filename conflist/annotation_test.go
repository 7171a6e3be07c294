package conflist

import "testing"

func TestAnnotation(t *testing.T) {
	for conf, want := range map[string]string{
		`{}`:                     "",
		`{"runtimeConfig":null}`: "",
		`{"runtimeConfig":[]}`:   "",
		`{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null}}`:                             "",
		`{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":"x"}}`:                              "",
		`{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"traceparent":7}}}`:                "",
		`{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"b","traceparent":"00-..."}}}`: "00-...",
	} {
		doc := Read([]byte(conf))
		if got := Annotation(doc, "traceparent"); got != want || doc.Err() != nil {
			t.Errorf("%s: %q, %v", conf, got, doc.Err())
		}
	}
}
