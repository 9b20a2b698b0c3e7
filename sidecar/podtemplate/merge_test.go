package podtemplate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// podOf decodes a partial pod.
func podOf(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return pod
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		name               string
		pod, overlay, want string
	}{
		{
			name:    "into nothing",
			pod:     `{}`,
			overlay: `{metadata: {labels: {a: "1"}, annotations: {b: "2"}}, spec: {containers: [{name: s, image: x}], volumes: [{name: v, emptyDir: {}}]}}`,
			want:    `{metadata: {labels: {a: "1"}, annotations: {b: "2"}}, spec: {containers: [{name: s, image: x}], volumes: [{name: v, emptyDir: {}}]}}`,
		},
		{
			name:    "nothing",
			pod:     `{metadata: {labels: {a: "1"}}, spec: {containers: [{name: app}], hostname: h}}`,
			overlay: `{}`,
			want:    `{metadata: {labels: {a: "1"}}, spec: {containers: [{name: app}], hostname: h}}`,
		},
		{
			name:    "the pod's labels and annotations win",
			pod:     `{metadata: {labels: {a: own, empty: ""}, annotations: {b: own}}}`,
			overlay: `{metadata: {labels: {a: x, empty: x, c: x}, annotations: {b: x, d: x}}}`,
			want:    `{metadata: {labels: {a: own, empty: "", c: x}, annotations: {b: own, d: x}}}`,
		},
		{
			name:    "ordinary sidecar comes last, and its init container too",
			pod:     `{spec: {initContainers: [{name: migrate}], containers: [{name: app}, {name: b}]}}`,
			overlay: `{spec: {initContainers: [{name: i, image: x}], containers: [{name: s, image: x}]}}`,
			want:    `{spec: {initContainers: [{name: migrate}, {name: i, image: x}], containers: [{name: app}, {name: b}, {name: s, image: x}]}}`,
		},
		{
			name:    "sidecar that holds the app comes first",
			pod:     `{spec: {initContainers: [{name: migrate}], containers: [{name: app}]}}`,
			overlay: `{spec: {initContainers: [{name: i, image: x}], containers: [{name: s, image: x, lifecycle: {postStart: {exec: {command: [w]}}}}]}}`,
			want:    `{spec: {initContainers: [{name: migrate}, {name: i, image: x}], containers: [{name: s, image: x, lifecycle: {postStart: {exec: {command: [w]}}}}, {name: app}]}}`,
		},
		{
			name:    "native sidecar comes first, with its init container before it",
			pod:     `{spec: {initContainers: [{name: migrate}], containers: [{name: app}]}}`,
			overlay: `{spec: {initContainers: [{name: i, image: x}, {name: s, image: x, restartPolicy: Always}]}}`,
			want:    `{spec: {initContainers: [{name: i, image: x}, {name: s, image: x, restartPolicy: Always}, {name: migrate}], containers: [{name: app}]}}`,
		},
		{
			name: "a container of the pod's is merged over the overlay's",
			pod: `{spec: {containers: [{name: app}, {name: s, image: own, command: [own], env: [{name: Z, value: own}, {name: A, value: own}],
				ports: [{containerPort: 53}, {containerPort: 53, protocol: UDP}, {containerPort: 15010, name: own}],
				resources: {limits: {cpu: "2"}}, volumeMounts: [{name: own, mountPath: /x}, {name: own, mountPath: /z}],
				securityContext: {runAsUser: 7}}, {name: b}]}}`,
			overlay: `{spec: {containers: [{name: s, image: x, command: [x], args: [x], env: [{name: A, value: x}, {name: B, value: x}],
				ports: [{containerPort: 15010, name: metrics}, {containerPort: 9}],
				resources: {limits: {cpu: "1", memory: 1Gi}}, volumeMounts: [{name: x, mountPath: /x}, {name: x, mountPath: /y}],
				securityContext: {runAsUser: 1500, runAsNonRoot: true}}]}}`,
			want: `{spec: {containers: [{name: app}, {name: b}, {name: s, image: own, command: [own], args: [x],
				env: [{name: Z, value: own}, {name: A, value: own}, {name: B, value: x}],
				ports: [{containerPort: 15010, name: own}, {containerPort: 9}, {containerPort: 53}, {containerPort: 53, protocol: UDP}],
				resources: {limits: {cpu: "2", memory: 1Gi}}, volumeMounts: [{name: own, mountPath: /x}, {name: own, mountPath: /z}, {name: x, mountPath: /y}],
				securityContext: {runAsUser: 7, runAsNonRoot: true}}]}}`,
		},
		{
			name:    "a container of the pod's moves to where the overlay's stands",
			pod:     `{spec: {containers: [{name: app}, {name: s, image: own}], initContainers: [{name: migrate}]}}`,
			overlay: `{spec: {initContainers: [{name: s, image: x, restartPolicy: Always}]}}`,
			want:    `{spec: {initContainers: [{name: s, image: own, restartPolicy: Always}, {name: migrate}], containers: [{name: app}]}}`,
		},
		{
			name:    "an init container of the pod's that becomes an ordinary one has no restartPolicy",
			pod:     `{spec: {initContainers: [{name: s, image: own, restartPolicy: Always}], containers: [{name: app}]}}`,
			overlay: `{spec: {containers: [{name: s, image: x}]}}`,
			want:    `{spec: {initContainers: [], containers: [{name: app}, {name: s, image: own}]}}`,
		},
		{
			name:    "a part of a container fills up that of the pod, where it is",
			pod:     `{spec: {initContainers: [{name: i, image: own}, {name: s, image: own, restartPolicy: Always, args: [own]}, {name: migrate}], containers: [{name: app}]}}`,
			overlay: `{spec: {initContainers: [{name: i, args: [x]}], containers: [{name: s, args: [x], env: [{name: X, value: x}]}, {name: new, args: [x]}]}}`,
			want: `{spec: {initContainers: [{name: i, image: own, args: [x]}, {name: s, image: own, restartPolicy: Always, args: [own], env: [{name: X, value: x}]}, {name: migrate}],
				containers: [{name: app}, {name: new, args: [x]}]}}`,
		},
		{
			name:    "env vars that are there twice",
			pod:     `{spec: {containers: [{name: s, env: [{name: Z, value: "1"}, {name: A, value: $(Z)}, {name: Z, value: "2"}]}]}}`,
			overlay: `{spec: {containers: [{name: s, image: x, env: [{name: A, value: x}, {name: B, value: x}]}]}}`,
			want:    `{spec: {containers: [{name: s, image: x, env: [{name: Z, value: "1"}, {name: A, value: $(Z)}, {name: Z, value: "2"}, {name: B, value: x}]}]}}`,
		},
		{
			name: "one of several",
			pod: `{spec: {containers: [{name: s, env: [{name: A, value: own}, {name: B, valueFrom: {fieldRef: {fieldPath: own}}}],
				readinessProbe: {tcpSocket: {port: 1}}, livenessProbe: {periodSeconds: 9}, startupProbe: {exec: {command: [own]}},
				lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {exec: {command: [own]}}}}]}}`,
			overlay: `{spec: {containers: [{name: s, env: [{name: A, valueFrom: {fieldRef: {fieldPath: x}}}, {name: B, value: x}],
				readinessProbe: {httpGet: {port: 2}, periodSeconds: 5}, livenessProbe: {httpGet: {port: 2}}, startupProbe: {grpc: {port: 2}},
				lifecycle: {postStart: {exec: {command: [x]}}, preStop: {httpGet: {port: 2}}}}]}}`,
			want: `{spec: {containers: [{name: s, env: [{name: A, value: own}, {name: B, valueFrom: {fieldRef: {fieldPath: own}}}],
				readinessProbe: {tcpSocket: {port: 1}, periodSeconds: 5}, livenessProbe: {httpGet: {port: 2}, periodSeconds: 9}, startupProbe: {exec: {command: [own]}},
				lifecycle: {postStart: {sleep: {seconds: 1}}, preStop: {exec: {command: [own]}}}}]}}`,
		},
		{
			name:    "an equal volume is one volume",
			pod:     `{spec: {volumes: [{name: v, emptyDir: {sizeLimit: 1024Mi}}]}}`,
			overlay: `{spec: {volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}, {name: w, emptyDir: {}}]}}`,
			want:    `{spec: {volumes: [{name: v, emptyDir: {sizeLimit: 1024Mi}}, {name: w, emptyDir: {}}]}}`,
		},
		{
			name: "the rest of the spec",
			pod: `{spec: {hostname: own, securityContext: {fsGroup: 1}, tolerations: [{key: own}], imagePullSecrets: [{name: own}], nodeSelector: {a: own},
				topologySpreadConstraints: [{topologyKey: z, maxSkew: 1}, {topologyKey: z, maxSkew: 2}],
				initContainers: [{name: i}], containers: [{name: app}], volumes: [{name: v, emptyDir: {}}]}}`,
			overlay: `{spec: {hostname: x, subdomain: x, securityContext: {fsGroup: 2, runAsUser: 2}, tolerations: [{key: x}], imagePullSecrets: [{name: x}], nodeSelector: {a: x, b: x}}}`,
			want: `{spec: {hostname: own, subdomain: x, securityContext: {fsGroup: 1, runAsUser: 2}, tolerations: [{key: own}], imagePullSecrets: [{name: own}, {name: x}], nodeSelector: {a: own, b: x},
				topologySpreadConstraints: [{topologyKey: z, maxSkew: 1}, {topologyKey: z, maxSkew: 2}],
				initContainers: [{name: i}], containers: [{name: app}], volumes: [{name: v, emptyDir: {}}]}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, overlay, want := podOf(t, tt.pod), podOf(t, tt.overlay), podOf(t, tt.want)
			before := overlay.DeepCopy()
			for _, time := range []string{"once", "twice"} {
				if err := Merge(pod, overlay.DeepCopy()); err != nil {
					t.Fatal(err)
				}
				if diff := diffPods(want, pod); diff != "" {
					t.Errorf("merged %s (-want +got):\n%s", time, diff)
				}
			}
			if diff := cmp.Diff(before, overlay); diff != "" {
				t.Errorf("the overlay was changed:\n%s", diff)
			}
		})
	}
}

// diffPods compares the JSON that an API server would get.
func diffPods(want, got *corev1.Pod) string {
	text := func(pod *corev1.Pod) string {
		b, err := yaml.Marshal(pod)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return cmp.Diff(text(want), text(got))
}

func TestMergeRefusesVolume(t *testing.T) {
	pod := podOf(t, `{spec: {volumes: [{name: v, hostPath: {path: /}}]}}`)
	err := Merge(pod, podOf(t, `{spec: {volumes: [{name: v, emptyDir: {}}]}}`))
	if err == nil || !strings.Contains(err.Error(), `the pod has its own volume "v"; rename it`) {
		t.Errorf("Merge returned %v", err)
	}
}

// TestMergeKeepsBackingArrays merges into pods that share their lists, as a
// shallow copy does.
func TestMergeKeepsBackingArrays(t *testing.T) {
	pod := podOf(t, `{spec: {containers: [{name: app}, {name: s}, {name: b}], initContainers: [{name: i}]}}`)
	copied := *pod
	want := podOf(t, `{spec: {containers: [{name: app}, {name: s}, {name: b}], initContainers: [{name: i}]}}`)
	if err := Merge(&copied, podOf(t, `{spec: {containers: [{name: s, image: x}, {name: b, args: [x]}], initContainers: [{name: j, image: x}]}}`)); err != nil {
		t.Fatal(err)
	}
	if diff := diffPods(want, pod); diff != "" {
		t.Errorf("the pod that was copied changed (-want +got):\n%s", diff)
	}
}

func TestMergeSeveralTemplates(t *testing.T) {
	pod := podOf(t, `{spec: {containers: [{name: app}]}}`)
	first := podOf(t, `{spec: {containers: [{name: one, image: x, lifecycle: {postStart: {sleep: {seconds: 1}}}}]}}`)
	second := podOf(t, `{spec: {containers: [{name: two, image: x}]}}`)
	for range 3 {
		for _, overlay := range []*corev1.Pod{first, second} {
			if err := Merge(pod, overlay.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		want := podOf(t, `{spec: {containers: [{name: one, image: x, lifecycle: {postStart: {sleep: {seconds: 1}}}}, {name: app}, {name: two, image: x}]}}`)
		if diff := diffPods(want, pod); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestMergeOrder sets one field in three places: the user's value overrides a template's,
// and that overrides the value of the driver's template, which is applied later.
func TestMergeOrder(t *testing.T) {
	pod := podOf(t, `{spec: {containers: [{name: app}, {name: s, env: [{name: A, value: user}]}]}}`)
	for range 2 {
		for _, overlay := range []string{
			`{spec: {containers: [{name: s, env: [{name: A, value: template}, {name: B, value: template}]}]}}`,
			`{spec: {initContainers: [{name: i, image: d}, {name: s, image: d, restartPolicy: Always, env: [{name: A, value: d}, {name: B, value: d}, {name: C, value: d}]}]}}`,
			`{spec: {containers: [{name: s, env: [{name: C, value: late}, {name: D, value: late}]}]}}`,
		} {
			if err := Merge(pod, podOf(t, overlay)); err != nil {
				t.Fatal(err)
			}
		}
		want := podOf(t, `{spec: {initContainers: [{name: i, image: d}, {name: s, image: d, restartPolicy: Always,
			env: [{name: A, value: user}, {name: B, value: template}, {name: C, value: d}, {name: D, value: late}]}], containers: [{name: app}]}}`)
		if diff := diffPods(want, pod); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestMergeVolume(t *testing.T) {
	for _, tt := range []struct{ name, base, over, want string }{
		{"the same source", `{emptyDir: {medium: Memory, sizeLimit: 1Gi}}`, `{emptyDir: {sizeLimit: 2Gi}}`, `{emptyDir: {medium: Memory, sizeLimit: 2Gi}}`},
		{"another source", `{emptyDir: {}}`, `{configMap: {name: c}}`, `{configMap: {name: c}}`},
		{"no source", `{emptyDir: {}}`, `{}`, `{emptyDir: {}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			volume := func(source string) corev1.Volume {
				v := corev1.Volume{}
				if err := yaml.UnmarshalStrict([]byte(source), &v); err != nil {
					t.Fatal(err)
				}
				v.Name = "v"
				return v
			}
			got, err := MergeVolume(volume(tt.base), volume(tt.over))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(volume(tt.want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
