package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// diary mounts a shared folder in all containers of a pod.
func diary(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "diary", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = append(containers[i].VolumeMounts, corev1.VolumeMount{Name: "diary", MountPath: "/diary"})
		}
	}
	return pod
}

func read(t *testing.T, p *lab.Pod, container, name string) string {
	t.Helper()
	out, err := p.Container(container).Exec(deadline(t), "cat", name)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func probe(path string, port int) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(port)}}, PeriodSeconds: 1, FailureThreshold: 1}
}

func native(c corev1.Container) corev1.Container {
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

func hook(args ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: append([]string{"/program", program}, args...)}}
}

func TestOrder(t *testing.T) {
	l := newLab(t, lab.Options{})
	// It becomes ready with a delay, for which later containers must wait.
	sidecar := native(corev1.Container{Name: "sidecar", Image: "program", Command: []string{"sh", "-c",
		"sleep 0.1; echo sidecar >> /diary/d; exec /program " + program + " serve :80 sidecar"}})
	sidecar.StartupProbe = probe("/", 80)
	first := corev1.Container{Name: "first", Image: "program", Command: []string{"sh", "-c", "echo first >> /diary/d; exec /program " + program + " wait /diary/d end of first"}}
	first.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c",
		"until grep -q first /diary/d; do sleep 0.01; done; sleep 0.05; echo hook >> /diary/d"}}}}
	pod := newPod("order", 2, first, container("second", "append", "/diary/d", "second"))
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{
		container("before", "append", "/diary/d", "before"), sidecar, container("after", "append", "/diary/d", "after"),
	}
	p := startPod(t, l, diary(pod))
	if code, err := p.Container("second").Wait(deadline(t)); code != 0 || err != nil {
		t.Fatalf("code %d, error %v", code, err)
	}
	want := "before\nsidecar\nafter\nfirst\nhook\nsecond\n"
	if diff := cmp.Diff(want, read(t, p, "sidecar", "/diary/d")); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	// When the last container ends, the sidecar is stopped too. The first process in a PID
	// namespace gets a signal only after it has installed a handler.
	eventually(t, func() error {
		if !strings.Contains(p.Container("first").Output(), "waiting") {
			return errors.New("it does not wait")
		}
		return nil
	})
	if err := p.Container("first").Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-deadline(t).Done():
		t.Fatal("the pod does not end")
	}
	if code, err := p.Container("sidecar").Wait(deadline(t)); code != 0 || err != nil {
		t.Errorf("the sidecar: code %d, error %v", code, err)
	}
}

func TestStop(t *testing.T) {
	var mu sync.Mutex
	var output bytes.Buffer
	l := newLab(t, lab.Options{Output: func(pod, container string) io.Writer {
		return writer(func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			_, _ = fmt.Fprintf(&output, "%s/%s: %s", pod, container, p)
		})
	}})
	end := func(name string) corev1.Container {
		// The first process in a PID namespace gets a signal only after it has installed a
		// handler.
		up := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/up"}}}, TimeoutSeconds: 5}
		return corev1.Container{StartupProbe: up, Name: name, Image: "program", Command: []string{"sh", "-c", "trap 'echo ended; exit' TERM; touch /tmp/up; while :; do sleep 0.01; done"}}
	}
	app := end("app")
	app.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo hook > /proc/1/fd/1"}}}}
	pod := newPod("stop", 2, app)
	pod.Spec.InitContainers = []corev1.Container{native(end("one")), native(end("two"))}
	p := startPod(t, l, pod)
	if err := p.Ready(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := "test/stop/app: hook\ntest/stop/app: ended\ntest/stop/two: ended\ntest/stop/one: ended\n"
	if output.String() != want {
		t.Errorf("the output is %q, want %q", output.String(), want)
	}
	if p.Container("app").PID() != 0 {
		t.Error("the app still runs")
	}
}

// TestHookOfThisProgram stops a pod whose application runs in this program. Its hook is done
// with any answer, and cut off when the grace period ends.
func TestHookOfThisProgram(t *testing.T) {
	warnings := make(chan string, 10)
	log := writer(func(p []byte) { warnings <- string(p) })
	l := newLab(t, lab.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	for path, tt := range map[string]struct {
		grace   int64
		warning string
	}{
		"/refuse": {30, ""},
		"/hang":   {1, "deadline exceeded"},
	} {
		app := corev1.Container{Name: "app", Image: "in-the-test"}
		app.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: probe(path, 80).HTTPGet}}
		pod := newPod("program", 2, app)
		pod.Spec.TerminationGracePeriodSeconds = &tt.grace
		p := startPod(t, l, pod)
		listener, err := p.Listen(t.Context(), "tcp", "0.0.0.0:80")
		if err != nil {
			t.Fatal(err)
		}
		called := make(chan string, 1)
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			called <- r.URL.Path
			if r.URL.Path == "/hang" {
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		})}
		go s.Serve(listener)
		if err := p.Stop(deadline(t)); err != nil {
			t.Error(err)
		}
		s.Close()
		select {
		case <-called:
		default:
			t.Errorf("the hook %s is not called", path)
		}
		warning := ""
		select {
		case warning = <-warnings:
		default:
		}
		if (warning == "") != (tt.warning == "") || !strings.Contains(warning, tt.warning) {
			t.Errorf("the hook %s leads to the warning %q, want %q", path, warning, tt.warning)
		}
	}
}

func TestGracePeriod(t *testing.T) {
	l := newLab(t, lab.Options{})
	pod := newPod("stubborn", 2, corev1.Container{Name: "app", Image: "program", Command: []string{"sleep", "1000"}})
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	p := startPod(t, l, pod)
	begin := time.Now()
	if err := p.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
	// A container that ignores SIGTERM is killed after the grace period.
	if took := time.Since(begin); took < time.Second || took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	// It is also killed when the caller's context ends.
	pod.Spec.TerminationGracePeriodSeconds = nil
	p = startPod(t, l, pod)
	begin = time.Now()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(short); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v with a deadline of 50ms", took)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestRestart(t *testing.T) {
	l := newLab(t, lab.Options{})
	pod := newPod("restart", 2, container("app", "serve", ":80", "app"), container("other", "wait"))
	pod.Spec.InitContainers = []corev1.Container{
		container("init", "exit", "/diary/count", "2"),
		native(container("sidecar", "serve", ":81", "sidecar")),
	}
	p := startPod(t, l, diary(pod))
	if got := p.Container("init").Restarts(); got != 1 {
		t.Errorf("the init container was started again %d times, want 1", got)
	}
	for _, name := range []string{"app", "sidecar"} {
		c := p.Container(name)
		pid := c.PID()
		if err := c.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if now := c.PID(); now == 0 || now == pid || c.Restarts() != 1 {
				return fmt.Errorf("%s is process %d after %d and %d restarts", name, now, pid, c.Restarts())
			}
			return nil
		})
	}
	if got := p.Container("other").Restarts(); got != 0 {
		t.Errorf("a container was restarted with another one")
	}
	// The network stays the same.
	if err := pingHTTP(t, l, "198.18.7.2:81"); err != nil {
		t.Error(err)
	}
	// A failing container is restarted with increasing delays, and can be stopped.
	failing := startPod(t, l, newPod("failing", 3, container("app", "fail", "it", "is", "broken")))
	eventually(t, func() error {
		if n := failing.Container("app").Restarts(); n < 2 {
			return fmt.Errorf("%d restarts", n)
		}
		return nil
	})
	if err := failing.Stop(deadline(t)); err != nil {
		t.Error(err)
	}
}

func pingHTTP(t *testing.T, l *lab.Lab, address string) error {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: l.Node().Dial, DisableKeepAlives: true}}
	var err error
	eventually(t, func() error {
		var response *http.Response
		if response, err = client.Get("http://" + address); err == nil {
			err = response.Body.Close()
		}
		return err
	})
	return err
}

func TestErrorsIncludeOutput(t *testing.T) {
	// When the probe runs for the second time, the first result is known.
	asked := 0
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	l := newLab(t, lab.Options{Output: func(pod, _ string) io.Writer {
		return writer(func(p []byte) {
			if asked += bytes.Count(p, []byte("asked\n")); pod == "test/slow" && asked >= 2 {
				cancel()
			}
		})
	}})
	pod := newPod("broken", 2)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{container("init", "fail", "the disk is made of cheese")}
	_, err := l.StartPod(deadline(t), pod)
	wantError(t, err, "test/broken", "init", "code 1", "made of cheese")

	pod = newPod("slow", 2)
	sidecar := native(container("sidecar", "serve", ":80", "x", "/ready"))
	sidecar.StartupProbe = probe("/ready", 80)
	pod.Spec.InitContainers = []corev1.Container{sidecar}
	_, err = l.StartPod(ctx, pod)
	wantError(t, err, "test/slow", "sidecar", "503", "serving")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is not the context's error", err)
	}

	pod = newPod("hook", 2, container("app", "wait"))
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("fail", "the hook is bent")}
	_, err = l.StartPod(deadline(t), pod)
	wantError(t, err, "test/hook", "app", "postStart", "hook is bent")
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not name %q: %v", word, err)
		}
	}
}

func TestReady(t *testing.T) {
	l := newLab(t, lab.Options{})
	var ready atomic.Bool
	var asked atomic.Int32
	app := corev1.Container{Name: "app", Image: "in-process", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}
	app.ReadinessProbe = probe("/ready?x=y", 0)
	app.ReadinessProbe.HTTPGet.Port = intstr.FromString("http")
	app.ReadinessProbe.HTTPGet.HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "me"}}
	tcp, exec := container("tcp", "serve", ":81", "x"), container("exec", "wait")
	tcp.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(81)}}}
	exec.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/ready"}}}, TimeoutSeconds: 5}
	p := startPod(t, l, newPod("ready", 2, app, tcp, exec))
	listener, err := p.Listen(deadline(t), "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	notYet, askedTwice := context.WithCancel(deadline(t))
	defer askedTwice()
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 2 {
				askedTwice()
			}
			if !ready.Load() || r.Host != "me" || r.URL.RawQuery != "x=y" || !strings.HasPrefix(r.RemoteAddr, "198.18.0.1:") {
				http.Error(w, "not yet", http.StatusServiceUnavailable)
			}
		}))
	}()
	wantError(t, p.Ready(notYet), "test/ready", "app", "not yet")
	ready.Store(true)
	if _, err := p.Container("exec").Exec(deadline(t), "touch", "/tmp/ready"); err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := p.Stop(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := p.Ready(deadline(t)); !errors.Is(err, lab.ErrClosed) {
		t.Errorf("a pod that has stopped: %v", err)
	}
}

func TestLiveness(t *testing.T) {
	l := newLab(t, lab.Options{})
	app := corev1.Container{Name: "app", Image: "program", Command: []string{"sleep", "1000"}}
	app.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "!", "-e", "/tmp/dead"}}}, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 10}
	p := startPod(t, l, newPod("live", 2, app))
	// It may be killed with the container.
	_, _ = p.Container("app").Exec(deadline(t), "touch", "/tmp/dead")
	eventually(t, func() error {
		if n := p.Container("app").Restarts(); n != 1 {
			return fmt.Errorf("%d restarts", n)
		}
		return nil
	})
}
