//go:build !(amd64 || arm64) || race

package netlink

const canReap = false

func Reap(int, []byte) bool { return false }
