// Command bench measures the admission webhook as an API server uses it: over HTTPS
// with keep-alive, by HTTP/1.1 and by HTTP/2, from a client on the same machine, beside a
// handler that only reads the same reviews and writes the same answers; and
// its memory over many reviews. It uses only the loopback interface and ends by itself.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	reviews := flag.Int("n", 1_000_000, "reviews to answer in this process for the measurement of memory")
	duration := flag.Duration("duration", 6*time.Second, "time for reviews by each protocol over HTTPS, and as long for echoes")
	roll := flag.Duration("roll", 30*time.Second, "time for reviews of 100 pods a minute")
	clients := flag.Int("clients", 4, "number of concurrent clients")
	serve := flag.Bool("serve", false, "be the server for another bench process, until the standard input ends")
	flag.Parse()
	run := func() error { return measure(*duration, *roll, *clients, *reviews) }
	if *serve {
		run = serveReviews
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(duration, roll time.Duration, clients, reviews int) error {
	if duration > 0 {
		server, err := startServer()
		if err != nil {
			return err
		}
		err = errors.Join(
			compare("HTTP/1.1", server, duration, clients, dialHTTP1),
			compare("HTTP/2", server, duration, clients, dialHTTP2),
			apart(server, 300),
			pace(server, time.Minute/100, roll),
			server.stop())
		if err != nil {
			return err
		}
	}
	return watchMemory(reviews, clients)
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("reading the CPU time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
