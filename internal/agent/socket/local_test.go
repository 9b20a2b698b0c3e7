package socket

import "testing"

func TestIsLocal(t *testing.T) {
	for client, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"127.0.0.6:80": false, "[::ffff:127.0.0.6]:80": false, "[::6]:80": false,
		"10.0.0.1:80": false, "[2001:db8::1]:80": false, "127.0.0.1": false, "": false, "@": false,
	} {
		if got := IsLocal(client); got != want {
			t.Errorf("isLocal(%q) = %t", client, got)
		}
	}
}
