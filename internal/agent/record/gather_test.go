package record

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"
)

// countedReads counts the reads that have returned something.
type countedReads struct {
	*os.File
	reads int
}

func (c *countedReads) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	if n > 0 {
		c.reads++
	}
	return n, err
}

// TestLinesGather checks that lines that come one after the other are read together, and
// that none is lost.
func TestLinesGather(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	const lines = 1000
	go func() {
		defer write.Close()
		for n := range lines {
			fmt.Fprintf(write, "line %d\n", n)
			time.Sleep(100 * time.Microsecond)
		}
	}()
	from := &countedReads{File: read}
	began, got := time.Now(), 0
	for in := bufio.NewScanner(&gathering{from: from}); in.Scan(); got++ {
		if want := fmt.Sprintf("line %d", got); in.Text() != want {
			t.Fatalf("%q comes in place of %q", in.Text(), want)
		}
	}
	if most := int(time.Since(began)/gather) + 2; got != lines || from.reads > most {
		t.Errorf("%d lines were read, by %d reads, want at most %d", got, from.reads, most)
	}
}
