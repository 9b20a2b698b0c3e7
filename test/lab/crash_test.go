package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// labReport is the report of a program with a lab to the test.
type labReport struct {
	// Namespaces are those of its pods' processes, from links in /proc.
	Namespaces []string
	PIDs       []int
}

// crash creates a lab with pods and a process, whose command lines contain the argument,
// and then starts pods until it is killed.
func crash(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l, err := lab.New(lab.Options{Images: map[string]lab.Image{
		"program": {Files: map[string]string{"/program": self}, Entrypoint: []string{"/program", program}, HostRoot: true},
	}})
	if err != nil {
		return err
	}
	var report labReport
	ctx := context.Background()
	// A shell with a child, which gets no signal when its parent dies.
	_, err = l.StartProcess(ctx, lab.Process{Command: []string{"sh", "-c", "sleep 1000 & wait; : " + args[0]}})
	if err != nil {
		return err
	}
	for n := 2; ; n++ {
		app := corev1.Container{Name: "app", Image: "program", Command: []string{"sh", "-c", "sleep 1000 & wait; : " + args[0]}}
		app.VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
		pod := newPod(fmt.Sprint("pod", n), n%200+2, app)
		pod.Spec.Volumes = []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
		p, err := l.StartPod(ctx, pod)
		if err != nil {
			return err
		}
		if n < 4 {
			pid := p.Container("app").PID()
			report.PIDs = append(report.PIDs, pid)
			for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts"} {
				namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
				if err != nil {
					return err
				}
				report.Namespaces = append(report.Namespaces, namespace)
			}
			continue
		}
		if n == 4 {
			if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
				return err
			}
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := p.Stop(over); err != nil {
			return err
		}
	}
}

// left returns the processes with the word in their command line or in one of the
// namespaces.
func left(t *testing.T, word string, namespaces []string) []string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, process := range processes {
		// The process may have ended.
		line, _ := os.ReadFile(process + "/cmdline")
		is := strings.Contains(string(line), word)
		links, _ := filepath.Glob(process + "/task/*/ns/*")
		for _, link := range links {
			namespace, _ := os.Readlink(link)
			is = is || slices.Contains(namespaces, namespace)
		}
		if is {
			found = append(found, fmt.Sprintf("%s %q", process, line))
		}
	}
	return found
}

// machine is the state that a lab could leave on the machine.
type machine struct {
	Mounts string
	Links  []string
	Temp   []string
}

func machineNow(t *testing.T) machine {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	m := machine{Mounts: string(mounts)}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		m.Links = append(m.Links, link.Name)
	}
	named, _ := filepath.Glob("/run/netns/*")
	m.Temp = named
	return m
}

func TestNothingIsLeftAfterACrash(t *testing.T) {
	newLab(t, lab.Options{})
	before := machineNow(t)
	word := fmt.Sprintf("crash-%d-%d", os.Getpid(), rand.Int64())
	cmd, out := startCrash(t, word)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var report labReport
	if err := json.Unmarshal([]byte(line), &report); err != nil {
		t.Fatal(err)
	}
	if found := left(t, word, report.Namespaces); len(found) < 6 {
		t.Fatalf("only these processes are found while it runs: %q", found)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, func() error {
		if found := left(t, word, report.Namespaces); len(found) > 0 {
			return fmt.Errorf("left after the crash: %q", found)
		}
		return nil
	})
	if diff := cmp.Diff(before, machineNow(t)); diff != "" {
		t.Errorf("the machine (-before +after):\n%s", diff)
	}
}

// Containers end without the guard, which is only for remaining processes.
func TestContainersEndWithTheProgram(t *testing.T) {
	newLab(t, lab.Options{})
	word := fmt.Sprintf("crash-%d-%d", os.Getpid(), rand.Int64())
	cmd, out := startCrash(t, word)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var report labReport
	if err := json.Unmarshal([]byte(line), &report); err != nil {
		t.Fatal(err)
	}
	guards := slices.DeleteFunc(left(t, "outrigger-lab-guard", nil), func(process string) bool {
		pid, _, _ := strings.Cut(strings.TrimPrefix(process, "/proc/"), " ")
		namespace, _ := os.Readlink("/proc/" + pid + "/ns/ipc")
		return !slices.Contains(report.Namespaces, namespace)
	})
	if len(guards) != 1 {
		t.Fatalf("the lab has these guards: %q", guards)
	}
	kill := func(processes []string) {
		for _, process := range processes {
			var pid int
			if _, err := fmt.Sscanf(process, "/proc/%d ", &pid); err != nil {
				t.Fatal(err)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	kill(guards)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, func() error {
		for _, pid := range report.PIDs {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(line), word) {
				return fmt.Errorf("container process %d is left", pid)
			}
		}
		return nil
	})
	// The guard kills the child of the node's process.
	kill(left(t, word, report.Namespaces))
}

// Nothing is left either if the program is killed while it starts something.
func TestNothingIsLeftWheneverItIsKilled(t *testing.T) {
	newLab(t, lab.Options{})
	word := fmt.Sprintf("crash-%d-%d", os.Getpid(), rand.Int64())
	for range 15 {
		cmd, _ := startCrash(t, word)
		time.Sleep(20*time.Millisecond + rand.N(100*time.Millisecond))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	eventually(t, func() error {
		if found := left(t, word, nil); len(found) > 0 {
			return fmt.Errorf("left after crashes: %q", found)
		}
		return nil
	})
}

func startCrash(t *testing.T, word string) (*exec.Cmd, *os.File) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	cmd := exec.Command(self, program, "crash", word)
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	_ = write.Close()
	return cmd, read
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	before := machineNow(t)
	l := newLab(t, lab.Options{})
	word := fmt.Sprintf("close-%d-%d", os.Getpid(), rand.Int64())
	p := startPod(t, l, newPod("a", 2, corev1.Container{Name: "app", Image: "program", Command: []string{"sh", "-c", "sleep 1000 & wait; : " + word}}))
	// A separate process group.
	process, err := l.StartProcess(deadline(t), lab.Process{Command: []string{"sh", "-c", "setsid sleep 1001 & : " + word}})
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for _, kind := range []string{"net", "ipc", "mnt"} {
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.Container("app").PID(), kind))
		if err != nil {
			t.Fatal(err)
		}
		namespaces = append(namespaces, namespace)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The runtime ends this program's threads with a delay.
	eventually(t, func() error {
		if found := left(t, word, namespaces); len(found) > 0 {
			return fmt.Errorf("left after Close: %q", found)
		}
		return nil
	})
	if diff := cmp.Diff(before, machineNow(t)); diff != "" {
		t.Errorf("the machine (-before +after):\n%s", diff)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := l.StartPod(deadline(t), newPod("b", 3)); err == nil {
		t.Error("a pod was started in a lab that is closed")
	}
	if err := p.Stop(deadline(t)); err != nil {
		t.Errorf("stopping a pod of a lab that is closed: %v", err)
	}
}
