//go:build !(amd64 || arm64) || race

package netlink

import "time"

const canReap = false

func Reap(int, []byte) bool { return false }

func ReapLinger(int, []byte, time.Duration) bool { return false }
