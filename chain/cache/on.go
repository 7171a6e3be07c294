//go:build !norecord

package cache

// recording tells that records are written. Built with the tag norecord, which
// is for measuring what they cost and nothing else, they are not.
const recording = true
