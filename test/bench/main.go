// Command bench measures the admission webhook as an API server meets it: over
// HTTPS with keep-alive, the client beside it on the same machine, by HTTP/1.1
// and by HTTP/2; and the memory that it holds while it answers reviews for long.
// It uses nothing but loopback and ends by itself.
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
	reviews := flag.Int("n", 1_000_000, "reviews to answer in process while memory is watched")
	duration := flag.Duration("duration", 5*time.Second, "time for each protocol over HTTPS")
	clients := flag.Int("clients", 4, "clients that wait for an answer at a time")
	serve := flag.Bool("serve", false, "be the server of another bench, until the standard input ends")
	flag.Parse()
	run := func() error { return measure(*duration, *clients, *reviews) }
	if *serve {
		run = serveReviews
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(duration time.Duration, clients, reviews int) error {
	if duration > 0 {
		server, err := startServer()
		if err != nil {
			return err
		}
		err = errors.Join(
			load("HTTP/1.1", server, duration, clients, dialHTTP1),
			load("HTTP/2", server, duration, clients, dialHTTP2),
			server.stop())
		if err != nil {
			return err
		}
	}
	return watchMemory(reviews, clients)
}

// cpuTime returns what this process has used of the processors.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("asking for the CPU time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
