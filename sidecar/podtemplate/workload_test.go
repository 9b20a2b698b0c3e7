package podtemplate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWorkload(t *testing.T) {
	hash := map[string]string{"pod-template-hash": "6d4b75cb6d"}
	for _, c := range []struct {
		name, generate string
		labels         map[string]string
		kind, owner    string
		want           string
	}{
		{name: "web", want: "web"},
		{generate: "runner-", want: "runner"},
		{generate: "web-6d4b75cb6d-", labels: hash, kind: "ReplicaSet", owner: "web-6d4b75cb6d", want: "web"},
		{generate: "own-", kind: "ReplicaSet", owner: "own", want: "own"},
		{name: "db-0", generate: "db-", kind: "StatefulSet", owner: "db", want: "db"},
		{generate: "report-29384400-", kind: "Job", owner: "report-29384400", want: "report"},
		{generate: "migrate-7-", kind: "Job", owner: "migrate-7", want: "migrate-7"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.name, GenerateName: c.generate, Labels: c.labels}}
		if c.kind != "" {
			yes := true
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: c.kind, Name: c.owner, Controller: &yes}}
		}
		if got := workload(pod, "", ""); got != c.want {
			t.Errorf("the workload of a pod %q of %s %q is %q, want %q", c.name+c.generate, c.kind, c.owner, got, c.want)
		}
	}
	for kind, want := range map[string]string{"Deployment": "web-29384400", "CronJob": "web-29384400", "Job": "web"} {
		if got := workload(&corev1.Pod{}, kind, "web-29384400"); got != want {
			t.Errorf("the workload of a %s's template is %q, want %q", kind, got, want)
		}
	}
}
