// Command certmanager runs the controllers of cert-manager that sign
// CertificateRequests with a CA in a Secret: those that make issuers ready, approve
// requests and sign them, unchanged. The webhook is not here, so requests are not
// validated on their way in.
//
//	certmanager <kubeconfig>
//
// It ends when its standard input does.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/cert-manager/cert-manager/pkg/controller"
	logf "github.com/cert-manager/cert-manager/pkg/logs"

	// What registers itself.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: certmanager <kubeconfig>")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	ctx, cancel := context.WithCancel(logf.NewContext(context.Background(), logf.Log))
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         kubeconfig,
		KubernetesAPIQPS:   100,
		KubernetesAPIBurst: 200,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for name, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		wg.Go(func() {
			if err := c.Run(4, ctx); err != nil && ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "certmanager: %s: %v\n", name, err)
				cancel()
			}
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	wg.Wait()
	return nil
}
