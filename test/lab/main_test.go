package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// program is the first argument of the test's program in a container.
const program = "program-in-the-lab"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == program {
		os.Exit(runProgram(os.Args[2], os.Args[3:]))
	}
	lab.Enter()
	os.Exit(m.Run())
}

// runProgram is the main function in containers.
func runProgram(name string, args []string) int {
	programs := map[string]func([]string) error{
		"say":    func(args []string) error { fmt.Println(strings.Join(args, " ")); return nil },
		"look":   look,
		"serve":  serve,
		"exit":   exit,
		"wait":   wait,
		"append": appendLine,
		"fail":   func(args []string) error { return errors.New(strings.Join(args, " ")) },
		"crash":  crash,
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "unknown program", name)
		return 3
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// seen describes the environment of a process in its container.
type seen struct {
	PID, UID, GID int
	Groups        []int
	Env           []string
	Dir, Host     string
	Status        map[string]string
	Files         map[string]string
	Errors        map[string]string
}

// look prints its environment as JSON: the named files, and whether it can write to those
// whose name begins with +.
func look(args []string) error {
	s := seen{
		PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ(),
		Status: make(map[string]string), Files: make(map[string]string), Errors: make(map[string]string),
	}
	s.Groups, _ = os.Getgroups()
	s.Dir, _ = os.Getwd()
	s.Host, _ = os.Hostname()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		s.Status[name] = strings.TrimSpace(value)
	}
	for _, name := range args {
		if name, ok := strings.CutPrefix(name, "+"); ok {
			err := os.WriteFile(name, []byte("written"), 0o644)
			if err != nil {
				s.Errors[name] = errors.Unwrap(err).Error()
			}
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			s.Errors[name] = errors.Unwrap(err).Error()
			continue
		}
		s.Files[name] = string(content)
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// serve answers HTTP requests on an address with the given text, until SIGTERM.
func serve(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if content, err := os.ReadFile(strings.TrimPrefix(r.URL.Path, "/file")); err == nil && strings.HasPrefix(r.URL.Path, "/file/") {
				_, _ = w.Write(content)
				return
			}
			if slices.Contains(args[2:], r.URL.Path) {
				fmt.Println("asked")
				http.Error(w, "no", http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, args[1])
		}))
	}()
	fmt.Println("serving")
	<-ctx.Done()
	return nil
}

// wait ends at SIGTERM, after writing a line to the named file.
func wait(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("waiting")
	<-ctx.Done()
	if len(args) > 0 {
		return appendLine(args)
	}
	return nil
}

// appendLine adds a line to a file.
func appendLine(args []string) error {
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(args[1:], " ") + "\n")
	return errors.Join(err, f.Close())
}

// exit fails until it has been started the given number of times, which it counts in a
// file.
func exit(args []string) error {
	if err := appendLine([]string{args[0], "started"}); err != nil {
		return err
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	starts := 0
	for lines.Scan() {
		starts++
	}
	if fmt.Sprint(starts) != args[1] {
		return fmt.Errorf("this was start %d", starts)
	}
	return nil
}

// image runs the test's own program.
func image(t testing.TB) lab.Image {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return lab.Image{Files: map[string]string{"/program": self}, Entrypoint: []string{"/program", program}, HostRoot: true}
}

// newLab creates a lab for one test.
func newLab(t testing.TB, options lab.Options) *lab.Lab {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if options.Images == nil {
		options.Images = map[string]lab.Image{"program": image(t)}
	}
	l, err := lab.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// newPod returns a pod with addresses that end with a number.
func newPod(name string, number int, containers ...corev1.Container) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = name, "test"
	pod.Spec.Containers = containers
	if len(containers) == 0 {
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "in-process"}}
	}
	pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("198.18.7.%d", number)}, {IP: fmt.Sprintf("2001:db8::7:%x", number)}}
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	return pod
}

// quickRace lets programs built with the race detector end without a wait of a
// second.
func quickRace() []corev1.EnvVar {
	if !race.Enabled {
		return nil
	}
	return []corev1.EnvVar{{Name: "GORACE", Value: "atexit_sleep_ms=0"}}
}

// container returns a container that runs one of the programs.
func container(name string, args ...string) corev1.Container {
	return corev1.Container{Name: name, Image: "program", Args: args, Env: quickRace()}
}

func startPod(t testing.TB, l *lab.Lab, pod *corev1.Pod) *lab.Pod {
	t.Helper()
	p, err := l.StartPod(deadline(t), pod)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// deadline returns a context for one wait of a test.
func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until f returns nil.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
