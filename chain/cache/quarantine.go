package cache

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tracewire/tracewire/delegates"
)

// Quarantine moves what stands in an attachment's place, and cannot be read,
// out of the way: to <stateDir>/quarantine, with a note why. It returns the
// path it has there.
func (d Dir) Quarantine(a delegates.Attachment, why string) (string, error) {
	dir := filepath.Join(filepath.Dir(d.Path), "quarantine")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	to := filepath.Join(dir, short(fmt.Sprintf("%d,%s,%s:%s", time.Now().UnixNano(), a.Network, a.ContainerID, a.IfName)))
	if err := os.Rename(d.File(a), to); err != nil {
		return "", err
	}
	return to, os.WriteFile(to+".why", []byte(why+"\n"), 0o600)
}
