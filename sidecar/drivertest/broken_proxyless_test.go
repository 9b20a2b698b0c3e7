package drivertest

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// withoutProxy makes a driver proxyless.
type withoutProxy struct{ driver.Driver }

func (withoutProxy) Proxyless() bool { return true }

// proxylessTemplate is that of a good driver without a proxy.
const proxylessTemplate = `spec:
  {{- if .Native }}
  initContainers:
  {{- template "outrigger.sidecar" . }}
  {{- end }}
  containers:
  {{- if not .Native }}
  {{- template "outrigger.sidecar" . }}
  {{- end }}
  {{- range .Pod.Containers }}
  {{- if not (has .Name (list "outrigger-proxy")) }}
  - name: {{ .Name }}
    volumeMounts:
    - {name: outrigger-identity, mountPath: /run/outrigger-identity, readOnly: true}
  {{- end }}
  {{- end }}
  volumes:
  {{- template "outrigger.volumes" . }}
`

// proxyless returns a driver without a proxy whose pod is changed after Patch.
func proxyless(change func(pod *corev1.Pod)) driver.Driver {
	d := specOf(proxylessTemplate, &agentspec.Spec{ShareIdentity: true})
	return withoutProxy{broken{patch: func(ctx context.Context) error {
		if err := d.Patch(ctx); err != nil {
			return err
		}
		inj, err := driver.InjectorFrom(ctx)
		if err == nil {
			change(inj.Pod)
		}
		return err
	}}}
}
