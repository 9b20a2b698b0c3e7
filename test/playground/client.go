package playground

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sessions returns the running meshes of this user, sorted by name.
func Sessions() ([]Info, error) {
	dir, err := SessionsDir()
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(os.DirFS(dir), "*.sock")
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, file := range files {
		info, err := askInfo(filepath.Join(dir, file))
		if err != nil {
			removeDead(filepath.Join(dir, file))
			continue
		}
		all = append(all, *info)
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

func askInfo(file string) (*Info, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: file, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(receiveTimeout)); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(request{}); err != nil {
		return nil, err
	}
	var answer reply
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Info == nil {
		return nil, errors.New(answer.Error)
	}
	return answer.Info, nil
}

// Command is a command to run in a pod of a running mesh.
type Command struct {
	// Pod is NAMESPACE/NAME, or NAME if that is unique; it may be the name of a workload.
	// Container is the container's name; "" means the pod's first.
	Pod, Container string
	Args, Env      []string
	Files          [3]*os.File
	// Signals are passed on to the command.
	Signals <-chan os.Signal
}

// Execute runs a command in a pod of the mesh with the name, and returns its exit code.
func Execute(mesh string, c Command) (int, error) {
	dir, err := SessionsDir()
	if err != nil {
		return 0, err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, mesh+".sock"), Net: "unix"})
	if err != nil {
		return 0, fmt.Errorf("calling the lab %s: %w", mesh, err)
	}
	defer conn.Close()
	text, err := json.Marshal(request{Pod: c.Pod, Container: c.Container, Args: c.Args, Env: c.Env})
	if err != nil {
		return 0, err
	}
	text = append(text, '\n')
	rights := unix.UnixRights(int(c.Files[0].Fd()), int(c.Files[1].Fd()), int(c.Files[2].Fd()))
	n, _, err := conn.WriteMsgUnix(text, rights, nil)
	if err == nil && n < len(text) {
		_, err = conn.Write(text[n:])
	}
	if err != nil {
		return 0, fmt.Errorf("calling the lab %s: %w", mesh, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case received := <-c.Signals:
				if number, ok := received.(syscall.Signal); ok {
					_ = json.NewEncoder(conn).Encode(request{Signal: int(number)})
				}
			case <-done:
				return
			}
		}
	}()
	var answer reply
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the lab has ended")
		}
		return 0, err
	}
	if answer.Code == nil {
		return 0, errors.New(answer.Error)
	}
	return *answer.Code, nil
}
