// Command release builds what users of Outrigger download: the images of the control plane,
// the init container, the CNI plug-in and the sample application, an archive of them for
// machines without a registry, the command-line program, the chart, and the manifest for
// krew, kubectl's plug-in manager.
//
// Builds are reproducible: the output depends only on the commit and the version of Go, so
// the same commit gives the same digests on every machine.
package main

import (
	"context"
	"crypto"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

const usage = `usage: release [flags] COMMAND

Commands:
  images   build the images as a folder in the OCI image layout, and with -push in a registry
  archive  build the images, and an archive of them for 'ctr images import'
  all      build the images pinned by digest, their archive, the programs, the chart, the
           krew manifest, the notes, the provenance and the checksums

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
	out := flags.String("o", "dist", "output folder, relative to the root of the repository")
	registry := flags.String("registry", "docker.io/outriggermesh", "registry and repository of the images")
	push := flags.Bool("push", false, "also push the images, with the credentials of 'docker login'")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms of the images")
	number := flags.String("version", "", "version to build instead of the chart's; for tests of upgrades")
	key := flags.String("key", "", "absolute path of the private key that signs the checksums and the provenance, PKCS #8 in PEM; not signed without it")
	local := flags.Bool("local", false, "compile as 'make build' does, with its build cache; the images are not reproducible on other machines")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return flag.ErrHelp
	}
	var signer crypto.Signer
	if *key != "" {
		var err error
		if signer, err = readSigner(*key); err != nil {
			return err
		}
	}
	if err := os.Chdir(*root); err != nil {
		return err
	}
	source, err := readSource(ctx)
	if err != nil {
		return err
	}
	r := &release{chartVersion: source.Version, source: source, out: *out, registry: *registry, push: *push, local: *local, signer: signer}
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
		return fmt.Errorf("unknown command %q; the commands are images, archive and all", command)
	}
	return err
}
