package socket

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUserOfSocket queries the kernel in both ways, for every kind of address.
func TestUserOfSocket(t *testing.T) {
	for _, listen := range []struct{ network, address, dial string }{
		{"tcp4", "127.0.0.1:0", "tcp4"}, {"tcp6", "[::1]:0", "tcp6"}, {"tcp", ":0", "tcp4"},
	} {
		listener, err := net.Listen(listen.network, listen.address)
		if err != nil {
			t.Logf("SKIPPED: %s: %v", listen.network, err)
			continue
		}
		defer listener.Close()
		host := "127.0.0.1"
		if listen.network == "tcp6" {
			host = "::1"
		}
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		conn, err := net.Dial(listen.dial, net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		local, remote := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(conn.RemoteAddr().String())
		uid, err := scanForUser(local, remote)
		if err != nil || uid != os.Getuid() {
			t.Errorf("%s: the list says user %d, %v", listen.network, uid, err)
		}
		uid, err = queryUser(local, remote)
		switch {
		case errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EPERM):
			t.Logf("SKIPPED: the kernel answers no questions here: %v", err)
			continue
		case err != nil || uid != os.Getuid():
			t.Errorf("%s: the kernel answers user %d, %v", listen.network, uid, err)
		}
		// Another connection is another socket.
		other := netip.AddrPortFrom(local.Addr(), 1)
		if uid, err := queryUser(other, remote); err == nil {
			t.Errorf("a socket that is not there is user %d's", uid)
		}
		if uid, err := scanForUser(other, remote); err == nil {
			t.Errorf("a socket that is not there is user %d's", uid)
		}
	}
}

// FuzzDiagUser checks that no answer is read beyond its end.
func FuzzDiagUser(f *testing.F) {
	answer := make([]byte, diagUID+4)
	binary.NativeEndian.PutUint16(answer[4:], sockDiagByFamily)
	f.Add(answer)
	f.Add(answer[:20])
	refused := make([]byte, 36)
	binary.NativeEndian.PutUint16(refused[4:], unix.NLMSG_ERROR)
	f.Add(refused)
	f.Fuzz(func(t *testing.T, answer []byte) {
		if uid, err := diagUser(answer); uid < 0 || err == nil && len(answer) < diagUID+4 {
			t.Errorf("user %d, %v", uid, err)
		}
	})
}

const tcpTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3E1D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:3E1D 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1500        0 2 1 0 20 4 30 10 -1
   2: 0100007F:C350 0100007F:3E1D 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 20 4 30 10 -1
`

const tcp6Table = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0000000000000000FFFF00000100007F:C350 0000000000000000FFFF00000100007F:3E1D 01 00000000:00000000 00:00000000 00000000  1001        0 4 1 0 20 4 30 10 -1
   1: 00000000000000000000000001000000:C350 00000000000000000000000001000000:3E1D 01 00000000:00000000 00:00000000 00000000  1002        0 4 1 0 20 4 30 10 -1
`

func TestUserOf(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the tables are those of a little-endian machine")
	}
	for _, tt := range []struct {
		table, local, remote string
		uid                  int
		ok                   bool
	}{
		{tcpTable, "127.0.0.1:50000", "127.0.0.1:15901", 1000, true},
		{tcpTable, "127.0.0.1:15901", "127.0.0.1:50000", 1500, true},
		{tcpTable, "[::ffff:127.0.0.1]:50000", "127.0.0.1:15901", 1000, true},
		{tcpTable, "127.0.0.2:50000", "127.0.0.1:15901", 0, false},
		{tcpTable, "127.0.0.1:50001", "127.0.0.1:15901", 0, false},
		{tcp6Table, "127.0.0.1:50000", "127.0.0.1:15901", 1001, true},
		{tcp6Table, "[::1]:50000", "[::1]:15901", 1002, true},
		{"", "127.0.0.1:50000", "127.0.0.1:15901", 0, false},
	} {
		uid, err := userOf(strings.NewReader(tt.table), netip.MustParseAddrPort(tt.local), netip.MustParseAddrPort(tt.remote))
		if uid != tt.uid || (err == nil) != tt.ok {
			t.Errorf("%s to %s is user %d, %v, want %d, %t", tt.local, tt.remote, uid, err, tt.uid, tt.ok)
		}
	}
}

func FuzzUserOf(f *testing.F) {
	f.Add(tcpTable)
	f.Add(tcp6Table)
	f.Add("a 0100007F:C350 0100007F:3E1D d e f g -1")
	local, remote := netip.MustParseAddrPort("127.0.0.1:50000"), netip.MustParseAddrPort("127.0.0.1:15901")
	f.Fuzz(func(t *testing.T, table string) {
		if uid, err := userOf(strings.NewReader(table), local, remote); uid < 0 || errors.Is(err, errNoSocket) && uid != 0 {
			t.Errorf("user %d, %v", uid, err)
		}
	})
}
