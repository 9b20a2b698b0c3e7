// Command agent measures the cost of the agent in each pod: the size of its program, as
// built for the image, and its resident memory when idle, after certificate renewals and
// after probes of every kind. Its exit code is 1 if a limit is exceeded. It uses only the
// loopback interface.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// The limits in bytes.
const (
	maxSize     = 20 << 20
	maxResident = 20 << 20
)

func main() {
	renewals := flag.Int("renewals", 20, "certificates to renew")
	probes := flag.Int("probes", 1000, "probes of each kind to answer")
	program := flag.String("agent", "", "the agent's program; the default is to build it")
	idle := flag.Bool("sleep", false, "be the proxy, which only sleeps")
	flag.Parse()
	if *idle {
		time.Sleep(time.Hour)
	}
	if err := measure(*program, *renewals, *probes); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(program string, renewals, probes int) error {
	dir, err := os.MkdirTemp("", "agent-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if program == "" {
		if program, err = build(dir); err != nil {
			return err
		}
	}
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	fmt.Printf("agent: program                        %6.1f MiB (bar %d MiB)\n", mebibytes(info.Size()), maxSize>>20)
	missed := info.Size() > maxSize

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	p, err := startPod(ctx, dir, program)
	if err != nil {
		return err
	}
	defer p.stop()
	report := func(what string) error {
		m, err := p.settled(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("agent: resident, %-20s %6.1f MiB, of which %.1f MiB not the program's own pages (bar %d MiB)\n", what, mebibytes(m.Resident), mebibytes(m.Anonymous), maxResident>>20)
		missed = missed || m.Resident > maxResident
		return nil
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"with an identity", func() error { return p.certificates(ctx, 1) }},
		{fmt.Sprintf("%d renewals later", renewals), func() error { return p.certificates(ctx, 1+renewals) }},
		{fmt.Sprintf("%d probes later", 4*probes), func() error { return p.probe(ctx, probes) }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := report(step.what); err != nil {
			return err
		}
	}
	if missed {
		return errors.New("the agent exceeds a limit")
	}
	return nil
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
