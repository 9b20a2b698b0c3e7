package grpc

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Environment variables of the application's containers. gRPC prefers the file to the
// configuration.
const (
	envFile   = "GRPC_XDS_BOOTSTRAP"
	envConfig = "GRPC_XDS_BOOTSTRAP_CONFIG"
	envSNI    = "GRPC_EXPERIMENTAL_XDS_SNI"
	// envUID is set together with envConfig, which refers to it.
	envUID = "OUTRIGGER_POD_UID"
)

// conflictsOf describes the variables of the pod's own with which its application does not
// become a part of the mesh. They are kept, as all that the user sets.
func conflictsOf(pod *corev1.Pod) []string {
	var found []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		own := func(name string) bool {
			return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		}
		value := func(name string) string {
			if at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }); at >= 0 {
				return c.Env[at].Value
			}
			return ""
		}
		switch {
		case own(envFile):
			found = append(found, conflict(c.Name, envFile, "gRPC uses its own configuration in place of the mesh's"))
		case own(envConfig) && !own(envUID):
			found = append(found, conflict(c.Name, envConfig, "gRPC uses its own configuration in place of the mesh's"))
		}
		if own(envSNI) && value(envSNI) != "true" {
			found = append(found, conflict(c.Name, envSNI, "pods with a proxy take its calls for another application's TLS, and refuse them"))
		}
	}
	return found
}

func conflict(container, variable, effect string) string {
	return fmt.Sprintf("container %s sets %s itself: %s; remove the variable, or choose another sidecar class", container, variable, effect)
}
