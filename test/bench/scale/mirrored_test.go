package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestScan reads a change in parts of several lengths.
func TestScan(t *testing.T) {
	var files []*mirror.File
	for _, text := range []string{"10.0.0.1:80", `{"name":"it looks like a file"}`, strings.Repeat("x", 1000) + `"10.0.0.2:80"`} {
		file, err := mirror.NewFile("f"+text[:1], text)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	body, err := json.Marshal(mirror.Change{Version: "v7", Files: files})
	if err != nil {
		t.Fatal(err)
	}
	markers := [][]byte{[]byte(`"10.0.0.9:`), []byte(`"10.0.0.2:`)}
	// In a shorter buffer there is no room for the version.
	for length := 20; length < 64; length++ {
		got, err := scan(strings.NewReader(string(body)), make([]byte, length), markers)
		if err != nil || got.version != "v7" || got.files != 3 || got.bytes != len(body) || string(got.found) != string(markers[1]) {
			t.Errorf("in parts of %d bytes: %+v, %v", length, got, err)
		}
	}
	got, err := scan(iotest.HalfReader(strings.NewReader(string(body))), make([]byte, 64), markers[:1])
	if err != nil || got.found != nil {
		t.Errorf("without the marker: %+v, %v", got, err)
	}
}
