package delegates

import (
	"os/exec"
	"slices"
	"testing"
)

// TestBusy: the plugins that make or remove something here, until they end.
func TestBusy(t *testing.T) {
	start := func(env ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("/bin/cat")
		cmd.Env = env
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		return cmd
	}
	add := start("CNI_COMMAND=ADD", "CNI_CONTAINERID=busy-1")
	start("CNI_COMMAND=CHECK", "CNI_CONTAINERID=busy-2")
	start("CNI_CONTAINERID=busy-3")
	var met []Running
	for _, r := range Busy() {
		if slices.Contains([]string{"busy-1", "busy-2", "busy-3"}, r.ContainerID) {
			met = append(met, r)
		}
	}
	if len(met) != 1 || met[0].ContainerID != "busy-1" || met[0].Over() {
		t.Fatalf("%+v", met)
	}
	_ = add.Process.Kill()
	_ = add.Wait()
	if !met[0].Over() {
		t.Error("it is not over when its process has ended")
	}
}
