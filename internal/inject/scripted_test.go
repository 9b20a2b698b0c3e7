package inject_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func init() { sidecar.Register("scripted", scripted{}) }

// scripted is a driver that misbehaves as the pod's annotation "behaviour" says.
// Without the annotation it adds a container to the pod.
type scripted struct{}

func (scripted) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	switch inj.Pod.Annotations["behaviour"] {
	case "panic":
		panic("scripted panic")
	case "error":
		return errors.New("scripted failed")
	case "wait":
		<-ctx.Done()
		return ctx.Err()
	case "deadline":
		deadline, _ := ctx.Deadline()
		return fmt.Errorf("%v are left", time.Until(deadline).Round(time.Second/10))
	case "drop":
		inj.Pod.Spec.Containers = nil
	case "nil":
		inj.Pod = nil
		return nil
	case "shuffle":
		for i, j := 0, len(inj.Pod.Spec.Containers)-1; i < j; i, j = i+1, j-1 {
			inj.Pod.Spec.Containers[i], inj.Pod.Spec.Containers[j] = inj.Pod.Spec.Containers[j], inj.Pod.Spec.Containers[i]
		}
	}
	setKey(&inj.Pod.Annotations, "scripted/dry-run", fmt.Sprint(inj.DryRun))
	for i := range inj.Pod.Spec.Containers {
		if inj.Pod.Spec.Containers[i].Name == driver.ProxyContainer {
			return nil
		}
	}
	inj.Pod.Spec.Containers = append(inj.Pod.Spec.Containers, corev1.Container{Name: driver.ProxyContainer, Image: inj.Sidecar.Image})
	return nil
}

func (scripted) Start(context.Context) (health.Probes, error) {
	return health.Func{ID: "scripted"}, nil
}

func (scripted) SidecarImage(string) string { return "scripted/proxy:1" }
