//go:build !(amd64 || arm64) || race

package veth

const canReap = false

func reap(int, []byte) bool { return false }
