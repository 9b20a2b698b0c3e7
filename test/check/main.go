// Command check runs the tests of the packages that a contributor has changed, and lists
// what it omits. 'make check' runs it:
//
//	go run ./test/check [-base main] [-test "-run TestX"] [packages]
//
// Without packages it takes those whose files differ from the branch main, committed or
// not. It does not compile programs that tests start, such as an API server: tests that
// need one are skipped, and listed.
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
	base := flag.String("base", "main", "branch or commit to compare with")
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
