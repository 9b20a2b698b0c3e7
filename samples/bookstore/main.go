// Command bookstore is the application of the samples, with all of its roles in one
// program: a store, a warehouse with its stock, a gateway, a buyer and a thief. It does
// not know about the mesh.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// role is a part of the application.
type role struct {
	name, about string
	run         func(ctx context.Context, s *settings) error
}

// settings are the flags of a role.
type settings struct {
	listen, reviews, upstream, version string
	every                              time.Duration
	out                                io.Writer
}

func roles() []role {
	return []role{
		{"bookbuyer", "buys a book again and again", buyer},
		{"bookstore", "sells books and restocks from the warehouse", store},
		{"bookthief", "takes books without paying, again and again", thief},
		{"bookwarehouse", "delivers books from its stock", warehouse},
		{"gateway", "forwards requests from outside to the store", gateway},
		{"stock", "a server-first database", stock},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bookstore:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bookstore", flag.ContinueOnError)
	s := &settings{out: os.Stdout}
	flags.StringVar(&s.listen, "listen", "", "address to serve on (default that of the role)")
	flags.StringVar(&s.reviews, "listen-reviews", "", "bookstore: address of the gRPC service (default the one after --listen)")
	flags.StringVar(&s.upstream, "upstream", "", "address to call (default that of the role)")
	flags.StringVar(&s.version, "version", os.Getenv("VERSION"), "bookstore: version that it reports (default $VERSION, or the host name)")
	flags.DurationVar(&s.every, "every", 200*time.Millisecond, "bookbuyer, bookthief: time between two requests")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "Usage: bookstore [flags] ROLE\n\nRoles:\n")
		for _, r := range roles() {
			fmt.Fprintf(flags.Output(), "  %-14s %s\n", r.name, r.about)
		}
		fmt.Fprintf(flags.Output(), "\nExample:\n  bookstore --listen :14001 --version v1 bookstore\n\nFlags:\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	all := roles()
	at := slices.IndexFunc(all, func(r role) bool { return r.name == flags.Arg(0) })
	if at < 0 || flags.NArg() != 1 {
		return fmt.Errorf("%q is not a role; see bookstore -help", strings.Join(flags.Args(), " "))
	}
	return all[at].run(ctx, s)
}
