package conflist

// annotations is the capability by which containerd hands on a pod's annotations.
const annotations = "io.kubernetes.cri.pod-annotations"

// Annotation is one of the pod's, "" where the runtime hands on none. What is
// wrong with them is nobody's error: nothing depends on them.
func Annotation(doc *Value, key string) string {
	all := doc.At("runtimeConfig")
	if !all.Given() {
		return ""
	}
	return Read(all.Raw).At(annotations).At(key).Text()
}
