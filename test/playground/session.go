package playground

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// SessionsVariable names the folder of the sessions, and replaces the default.
const SessionsVariable = "OUTRIGGER_LAB_DIR"

// SessionsDir returns the folder in which running meshes of this user are found, and creates
// it. Nobody else may have access to it, since whoever has runs commands in the pods.
func SessionsDir() (string, error) {
	dir := os.Getenv(SessionsVariable)
	if dir == "" && os.Getenv("XDG_RUNTIME_DIR") != "" {
		dir = filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "outrigger-lab")
	}
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("outrigger-lab-%d", os.Getuid()))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the folder of running labs: %w; name another one with %s", err, SessionsVariable)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("the folder of running labs: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("the folder of running labs, %s, must be a folder of this user to which nobody else has access; remove it, or name another one with %s", dir, SessionsVariable)
	}
	return dir, nil
}

// Info describes a running mesh.
type Info struct {
	Name string `json:"name"`
	// Dashboard is the address of its dashboard, and Debug that of its debug pages.
	Dashboard string `json:"dashboard"`
	Debug     string `json:"debug"`
	// Pods are the names of its pods, as namespace/name.
	Pods []string `json:"pods"`
}

// request is what another command asks a session for. Without a command it asks for the Info.
type request struct {
	Pod       string   `json:"pod,omitempty"`
	Container string   `json:"container,omitempty"`
	Args      []string `json:"args,omitempty"`
	Env       []string `json:"env,omitempty"`
	// Signal is for the command that runs.
	Signal int `json:"signal,omitempty"`
}

// reply is the answer to a request.
type reply struct {
	Error string `json:"error,omitempty"`
	Info  *Info  `json:"info,omitempty"`
	// Code is the exit code of the command, once it has ended.
	Code *int `json:"code,omitempty"`
}

// session lets other commands of the same user find the mesh and run commands in its pods.
type session struct {
	window   *Window
	info     Info
	listener *net.UnixListener
	tasks    sync.WaitGroup
}

// newSession listens for other commands.
func newSession(w *Window, info Info) (*session, error) {
	dir, err := SessionsDir()
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		if n > 1 {
			info.Name = w.Name + "-" + strconv.Itoa(n)
		}
		file := filepath.Join(dir, info.Name+".sock")
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: file, Net: "unix"})
		switch {
		case err == nil:
			return &session{window: w, info: info, listener: listener}, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("listening for other commands: %w; name another folder with %s", err, SessionsVariable)
		case n > 1000:
			return nil, fmt.Errorf("listening for other commands: there are too many labs in %s", dir)
		}
		// After kill -9 the file stays.
		if removeDead(file) {
			n--
		}
	}
}

// removeDead removes the file of a session that does not listen any longer.
func removeDead(file string) bool {
	conn, err := net.Dial("unix", file)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED) && os.Remove(file) == nil
}

// serve answers other commands until ctx ends.
func (s *session) serve(ctx context.Context) error {
	defer s.tasks.Wait()
	defer context.AfterFunc(ctx, func() { _ = s.listener.Close() })()
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("listening for other commands: %w", err)
		}
		s.tasks.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			s.answer(conn)
		})
	}
}

// receiveTimeout bounds the time until a command has sent its request.
const receiveTimeout = 10 * time.Second

func (s *session) answer(conn *net.UnixConn) {
	answers := json.NewEncoder(conn)
	_ = conn.SetReadDeadline(time.Now().Add(receiveTimeout))
	asked, files, rest, err := receive(conn)
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	_ = conn.SetReadDeadline(time.Time{})
	if err == nil && len(asked.Args) == 0 {
		info := s.info
		info.Pods = s.window.Mesh.Pods()
		_ = answers.Encode(reply{Info: &info})
		return
	}
	var code int
	if err == nil {
		code, err = s.execute(asked, files, rest)
	}
	if err != nil {
		_ = answers.Encode(reply{Error: err.Error()})
		return
	}
	_ = answers.Encode(reply{Code: &code})
}

// execute runs a command in a pod, and sends it the signals that arrive. It kills the command
// when the other end closes.
func (s *session) execute(asked *request, files []*os.File, rest *bufio.Reader) (int, error) {
	if len(files) != 3 {
		return 0, fmt.Errorf("the command comes with %d files; give it 3", len(files))
	}
	pod, err := s.window.find(asked.Pod)
	if err != nil {
		return 0, err
	}
	name := asked.Container
	if name == "" {
		name = mainContainer(pod.Object())
	}
	container := pod.Container(name)
	if container == nil {
		return 0, fmt.Errorf("pod %s has no container %q; it has %s", pod.Name(), name, strings.Join(containerNames(pod.Object()), ", "))
	}
	if container.PID() == 0 {
		return 0, fmt.Errorf("the container %s of pod %s does not run; %s; see 'outrigger-lab logs %s -c %s'", name, pod.Name(), restarts(container), pod.Name(), name)
	}
	running, err := container.Execute(asked.Args, asked.Env, [3]*os.File(files))
	if err != nil {
		return 0, err
	}
	go func() {
		more := json.NewDecoder(rest)
		for {
			var next request
			if more.Decode(&next) != nil {
				_ = running.Signal(syscall.SIGKILL)
				return
			}
			_ = running.Signal(syscall.Signal(next.Signal))
		}
	}()
	<-running.Done()
	return running.Code(), nil
}

// restarts says how often a container was started again.
func restarts(c *lab.Container) string {
	if n := c.Restarts(); n > 0 {
		return fmt.Sprintf("it was restarted %d times", n)
	}
	return "it was never restarted"
}

// maxRequest bounds a request, in bytes.
const maxRequest = 4 << 20

// receive reads a request and the files that come with its first bytes, and returns what
// reads the rest.
func receive(conn *net.UnixConn) (*request, []*os.File, *bufio.Reader, error) {
	text, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(3*4))
	n, m, _, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, nil, nil, err
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	for i := range messages {
		fds, failed := unix.ParseUnixRights(&messages[i])
		err = errors.Join(err, failed)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if err != nil {
		return nil, files, nil, err
	}
	all := bufio.NewReader(io.MultiReader(strings.NewReader(string(text[:n])), conn))
	var line []byte
	for len(line) == 0 || line[len(line)-1] != '\n' {
		part, err := all.ReadSlice('\n')
		line = append(line, part...)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, files, nil, err
		}
		if len(line) > maxRequest {
			return nil, files, nil, errors.New("the command is too long")
		}
	}
	asked := new(request)
	return asked, files, all, json.Unmarshal(line, asked)
}

// find returns the pod with a name: NAMESPACE/NAME, or NAME if that is unique. The name may be
// that of a workload, whose first pod is returned.
func (w *Window) find(name string) (*lab.Pod, error) {
	var found []string
	all := w.Mesh.Pods()
	namespace, short, qualified := strings.Cut(name, "/")
	if !qualified {
		namespace, short = "", name
	}
	for _, candidate := range all {
		pod := w.Mesh.Pod(candidate)
		if pod == nil {
			continue
		}
		object := pod.Object()
		if namespace != "" && object.Namespace != namespace {
			continue
		}
		if object.Name == short {
			found = slices.DeleteFunc(found, func(other string) bool { return strings.HasPrefix(other, object.Namespace+"/") })
			found = append(found, candidate)
		} else if workloadOf(object) == short && !slices.ContainsFunc(found, func(other string) bool { return strings.HasPrefix(other, object.Namespace+"/") }) {
			found = append(found, candidate)
		}
	}
	switch len(found) {
	case 1:
		if pod := w.Mesh.Pod(found[0]); pod != nil {
			return pod, nil
		}
	case 0:
	default:
		return nil, fmt.Errorf("%q can be %s; name its namespace too", name, strings.Join(found, " or "))
	}
	return nil, fmt.Errorf("there is no pod %q; pods are %s", name, strings.Join(all, ", "))
}

// workloadOf returns the name of the object that owns a pod, or the pod's.
func workloadOf(pod *corev1.Pod) string {
	for _, owner := range pod.OwnerReferences {
		if owner.Controller != nil && *owner.Controller {
			return owner.Name
		}
	}
	return pod.Name
}

// mainContainer returns the name of the container for which kubectl exec looks.
func mainContainer(pod *corev1.Pod) string {
	if name := pod.Annotations["kubectl.kubernetes.io/default-container"]; name != "" {
		return name
	}
	for i := range pod.Spec.Containers {
		if name := pod.Spec.Containers[i].Name; !isOfMesh(name) {
			return name
		}
	}
	return ""
}

func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	return names
}
