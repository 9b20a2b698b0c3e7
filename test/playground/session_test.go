package playground

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceiveCut cuts a request with its files after each byte: it is received as a whole or not
// at all.
func TestReceiveCut(t *testing.T) {
	want := request{Pod: "shop/\x1b[2J\"web", Args: []string{"sh", "-c", "echo {}"}, Env: []string{"TERM=x"}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for length := range len(text) + 1 {
		sender, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		receiver, err := listener.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if length > 0 {
			if _, _, err := sender.WriteMsgUnix(text[:length], unix.UnixRights(int(file.Fd())), nil); err != nil {
				t.Fatal(err)
			}
		}
		_ = sender.Close()
		got, files, _, err := receive(receiver)
		for _, f := range files {
			_ = f.Close()
		}
		_ = receiver.Close()
		if length < len(text) && err == nil {
			t.Errorf("%d of %d bytes are taken for the request %+v", length, len(text), got)
		}
		if length == len(text) && (err != nil || !reflect.DeepEqual(*got, want) || len(files) != 1) {
			t.Errorf("the request is %+v with %d files, %v", got, len(files), err)
		}
	}
}
