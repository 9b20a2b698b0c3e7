// Command release makes what users of Outrigger download: the images of the control plane,
// of the init container and of the sample application, archives of them for machines
// without a registry, the program for users' own machines, the chart and the manifest for
// kubectl's plug-in manager krew.
//
// What it makes depends on the commit and on the version of Go only, and not on the machine:
// the same commit gives the same digests everywhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

const usage = `usage: release [flags] COMMAND

Commands:
  images   make the images as a folder of the OCI image layout, and with -push in a registry
  archive  make the images, and an archive of them for 'ctr images import'
  all      make the images pinned by digest, their archive, the programs, the chart, the
           krew manifest and the checksums

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	root := flags.String("C", ".", "root of the repository")
	out := flags.String("o", "dist", "folder to write to, seen from the root of the repository")
	registry := flags.String("registry", "docker.io/outriggermesh", "what comes before the images' names")
	push := flags.Bool("push", false, "push the images too, with the credentials of 'docker login'")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms of the images")
	number := flags.String("version", "", "version of what is made, in place of the chart's; for tests of upgrades")
	local := flags.Bool("local", false, "compile as 'make build' does, which shares its build cache; the images are then of this machine only")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return flag.ErrHelp
	}
	if err := os.Chdir(*root); err != nil {
		return err
	}
	source, err := readSource(ctx)
	if err != nil {
		return err
	}
	r := &release{of: source.Version, source: source, out: *out, registry: *registry, push: *push, local: *local}
	if *number != "" {
		r.source.Version = *number
	}
	for name := range strings.SplitSeq(*platforms, ",") {
		p, err := parsePlatform(name)
		if err != nil {
			return err
		}
		r.platforms = append(r.platforms, p)
	}
	switch command := flags.Arg(0); command {
	case "images":
		_, err = r.images(ctx)
	case "archive":
		err = r.archive(ctx)
	case "all":
		err = r.all(ctx)
	default:
		return fmt.Errorf("there is no command %q; commands are images, archive and all", command)
	}
	return err
}
