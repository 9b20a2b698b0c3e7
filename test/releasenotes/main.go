// Command releasenotes writes CHANGELOG.md from small files, one for each change that users
// notice, and says which changes lack one.
//
//	go run ./test/releasenotes
//	go run ./test/releasenotes -since COMMIT
//
// The first form, which 'make changelog' runs, writes CHANGELOG.md. The second, which .ci/run
// runs, fails if the commits after COMMIT change what users see, such as a field, a chart
// value or a command, without a file in releasenotes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	since := flag.String("since", "", "commit after which changes must have a file in "+folder)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *since); err != nil {
		fmt.Fprintln(os.Stderr, "releasenotes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, since string) error {
	if since != "" {
		commits, err := commitsSince(ctx, ".", since)
		if err != nil {
			return err
		}
		return unnoted(commits)
	}
	releases, err := read(os.DirFS(folder))
	if err != nil {
		return err
	}
	return os.WriteFile(page, changelog(releases), 0o644)
}
