// Command check runs tests and lists what it omits.
//
//	go run ./test/check [-base main] [-test "-run TestX"] [packages]
//	go run ./test/check -all [-test "-short"]
//
// The first form, which 'make check' runs, takes the packages whose files differ from the
// branch main, committed or not, or those that are named. The second, which 'make test' runs,
// takes all packages. It does not compile programs that tests start, such as an API server:
// tests that need one are skipped, and listed.
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
	all := flag.Bool("all", false, "run the tests of all packages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := check{dir: ".", base: *base, all: *all, out: os.Stdout}.run(ctx, flag.Args(), strings.Fields(*args))
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}
