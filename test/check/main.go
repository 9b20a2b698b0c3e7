// Command check runs the tests of the packages that somebody works on, and says what it
// leaves out. It is what 'make check' runs:
//
//	go run ./test/check [-base main] [-test "-run TestX"] [packages]
//
// Without packages it takes those whose files differ from the branch main, committed or
// not. It compiles no program that tests start, such as an API server: tests that miss
// one are skipped, and named.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

func main() {
	base := flag.String("base", "main", "branch or commit that changes are counted from")
	args := flag.String("test", "", "arguments for go test")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := check{dir: ".", base: *base, out: os.Stdout}.run(ctx, flag.Args(), strings.Fields(*args))
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}
