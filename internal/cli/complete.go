package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

const (
	// completeWithin is the timeout of requests to a cluster.
	completeWithin = 2 * time.Second
	// completeMost is the maximum number of names.
	completeMost = 500
)

// completion is the type of cobra's completion functions.
type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// completeValues adds shell completion for a flag with fixed values.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	completeFlag(cmd, flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !strings.HasPrefix(v, begun) }), cobra.ShellCompDirectiveNoFileComp
	})
}

func completeFlag(cmd *cobra.Command, flag string, complete completion) {
	// It fails only if the flag does not exist or has a completion already.
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}

// complete adds shell completion for the flags that select a cluster and, if the command has
// them, for those of a namespace and a class.
func (f *kubeFlags) complete(cmd *cobra.Command) {
	completeFlag(cmd, "context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		raw, err := f.loader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return slices.Sorted(maps.Keys(raw.Contexts)), cobra.ShellCompDirectiveNoFileComp
	})
	for _, flag := range []string{"namespace", "mesh-namespace"} {
		if cmd.Flags().Lookup(flag) != nil {
			completeFlag(cmd, flag, f.completeNamespaces)
		}
	}
	if cmd.Flags().Lookup("class") != nil {
		completeValues(cmd, "class", sidecar.Drivers()...)
	}
}

// completeNamespaces lists the cluster's namespaces, except those in the arguments.
func (f *kubeFlags) completeNamespaces(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return f.names(begun, args, func(ctx context.Context) ([]string, error) {
		client, err := f.client()
		if err != nil {
			return nil, err
		}
		list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: completeMost})
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, nil
	})
}

// names lists names of a cluster. It has a short timeout, since the cluster may not answer.
func (f *kubeFlags) names(begun string, but []string, ask func(context.Context) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
	defer cancel()
	all, err := ask(ctx)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, begun) || slices.Contains(but, name) })
	return all, cobra.ShellCompDirectiveNoFileComp
}

// each calls add for the objects of one page of a list.
func each[L runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, add func(metav1.Object)) error {
	objects, err := list(ctx, options)
	if err != nil {
		return err
	}
	return meta.EachListItem(objects, func(object runtime.Object) error {
		accessor, err := meta.Accessor(object)
		if err == nil {
			add(accessor)
		}
		return err
	})
}

// completeTargets lists pods with a sidecar or, after deploy/, Deployments.
func (f *proxyFlags) completeTargets(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return f.kube.names(begun, args, func(ctx context.Context) ([]string, error) {
		namespace := f.namespace
		if namespace == "" {
			var err error
			if namespace, err = f.kube.namespace(); err != nil {
				return nil, err
			}
		}
		client, err := f.kube.client()
		if err != nil {
			return nil, err
		}
		var names []string
		if kind, _, found := strings.Cut(begun, "/"); found && podKinds[kind] == "deployment" {
			list, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{Limit: completeMost})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				names = append(names, kind+"/"+list.Items[i].Name)
			}
			return names, nil
		}
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: completeMost})
		if err != nil {
			return nil, err
		}
		prefix := ""
		if kind, _, found := strings.Cut(begun, "/"); found && podKinds[kind] == "pod" {
			prefix = kind + "/"
		}
		for i := range list.Items {
			if inject.Injected(&list.Items[i]) {
				names = append(names, prefix+list.Items[i].Name)
			}
		}
		return names, nil
	})
}
