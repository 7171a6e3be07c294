//go:build norecord

package cache

const recording = false
