// Package point names the moments of an operation at which a test may end the
// program with SIGKILL. Only a build with the tag killpoints has them: without
// it Pass and Boot are inlined to nothing.
package point

// What stands before the name of what is done, in the name of a point.
const (
	Before = "before"
	While  = "while" // another program does it
	After  = "after"
)
