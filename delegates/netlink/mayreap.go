package netlink

import "os"

// MayReap tells whether a child may outlive this process: when the runtime is
// pid 1 it may be one that reaps no orphans, and each DEL would leave a zombie.
func MayReap() bool { return canReap && os.Getppid() != 1 }
