// Command admission shows injection on a real API server, without a cluster: it
// starts kube-apiserver and etcd, installs the mesh, runs the injector, creates
// the bookstore and prints the decision about each pod. It then injects the same
// file offline and compares the results.
//
// No controllers run beside the API server, so the demo itself creates the pods of
// Deployments, Jobs and CronJobs from their templates.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	binary := flag.String("outrigger", "bin/outrigger", "the program outrigger")
	file := flag.String("f", "samples/bookstore.yaml", "manifests to create")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	d := &demo{binary: *binary, file: *file}
	err := d.run(ctx)
	if cleanup := d.stop(); cleanup != nil {
		err = errors.Join(err, cleanup)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Println("\nstopped.")
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	default:
		fmt.Printf("\nAll checks passed in %s. Nothing is left running.\n", time.Since(start).Round(100*time.Millisecond))
	}
}
