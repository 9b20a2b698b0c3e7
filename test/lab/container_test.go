package lab_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// lookIn runs a pod whose only container reports its environment, and returns the report.
func lookIn(t *testing.T, l *lab.Lab, pod *corev1.Pod) seen {
	t.Helper()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	p := startPod(t, l, pod)
	defer func() {
		if err := p.Stop(deadline(t)); err != nil {
			t.Error(err)
		}
	}()
	c := p.Container(pod.Spec.Containers[0].Name)
	code, err := c.Wait(deadline(t))
	if err != nil || code != 0 {
		t.Fatalf("code %d, error %v: %s", code, err, c.Output())
	}
	var s seen
	if err := json.Unmarshal([]byte(c.Output()), &s); err != nil {
		t.Fatalf("%v: %s", err, c.Output())
	}
	return s
}

func tokenVolume(name string, seconds int64) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: "outrigger", ExpirationSeconds: &seconds, Path: "token",
		}}},
	}}}
}

func TestPrivileges(t *testing.T) {
	l := newLab(t, lab.Options{})
	c := container("app", "look", "+/file", "+/tmp/file", "+/proc/sys/net/ipv4/ip_forward", "+/proc/sys/kernel/hostname")
	s := lookIn(t, l, newPod("default", 2, c))
	if s.PID != 1 || s.UID != 0 || s.Host != "default" || s.Dir != "/" {
		t.Errorf("it is process %d of user %d on %s in %s", s.PID, s.UID, s.Host, s.Dir)
	}
	// The container runtimes' defaults.
	if s.Status["CapEff"] != "00000000a80425fb" || s.Status["CapBnd"] != "00000000a80425fb" || s.Status["NoNewPrivs"] != "0" {
		t.Errorf("capabilities %s of %s, no_new_privs %s", s.Status["CapEff"], s.Status["CapBnd"], s.Status["NoNewPrivs"])
	}
	want := map[string]string{"/proc/sys/net/ipv4/ip_forward": "read-only file system", "/proc/sys/kernel/hostname": "read-only file system"}
	if diff := cmp.Diff(want, s.Errors); diff != "" {
		t.Errorf("what it cannot write (-want +got):\n%s", diff)
	}

	outside := fmt.Sprintf("/proc/%d/status", os.Getpid())
	c = container("app", "look", "+/file", "+/tmp/file", "+/usr/file", "+/program", "/etc/shadow", outside)
	c.WorkingDir = "/work"
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: new(int64(1500)), RunAsGroup: new(int64(1501)), RunAsNonRoot: new(true),
		ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	pod := newPod("sidecar", 2, c)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(7)), SupplementalGroups: []int64{8, 9}}
	s = lookIn(t, l, pod)
	if s.UID != 1500 || s.GID != 1501 || s.Dir != "/work" {
		t.Errorf("user %d, group %d in %s", s.UID, s.GID, s.Dir)
	}
	if slices.Sort(s.Groups); !slices.Equal(s.Groups, []int{8, 9}) {
		t.Errorf("groups %v", s.Groups)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if s.Status[set] != "0000000000000000" {
			t.Errorf("%s is %s", set, s.Status[set])
		}
	}
	if s.Status["NoNewPrivs"] != "1" {
		t.Error("it can get privileges")
	}
	want = map[string]string{
		"/file": "read-only file system", "/tmp/file": "read-only file system", "/usr/file": "read-only file system",
		"/program": "text file busy", "/etc/shadow": "no such file or directory", outside: "no such file or directory",
	}
	if s.Errors["/program"] != "text file busy" {
		want["/program"] = "read-only file system"
	}
	if diff := cmp.Diff(want, s.Errors); diff != "" {
		t.Errorf("what it cannot read or write (-want +got):\n%s", diff)
	}

	c = container("app", "look")
	c.SecurityContext = &corev1.SecurityContext{
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
	}
	if s = lookIn(t, l, newPod("init", 2, c)); s.Status["CapEff"] != "0000000000001000" {
		t.Errorf("NET_ADMIN alone is %s", s.Status["CapEff"])
	}
}

func TestEnvironment(t *testing.T) {
	l := newLab(t, lab.Options{
		ConfigMap: func(namespace, name string) (map[string]string, bool) {
			if namespace == "test" && name == "settings" {
				return map[string]string{"color": "blue", "size": "big"}, true
			}
			return nil, false
		},
		Hosts: func() map[string][]netip.Addr {
			return map[string][]netip.Addr{"svc.test.svc": {netip.MustParseAddr("198.19.0.9")}}
		},
	})
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	c := container("app", "look", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "SET_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
	c.Env = []corev1.EnvVar{
		field("NAME", "metadata.name"), field("NAMESPACE", "metadata.namespace"), field("UID", "metadata.uid"),
		field("IP", "status.podIP"), field("IPS", "status.podIPs"), field("ACCOUNT", "spec.serviceAccountName"),
		field("NODE", "spec.nodeName"), field("LABEL", "metadata.labels['app']"), field("NOTE", "metadata.annotations['note']"),
		field("HOST", "status.hostIP"),
		{Name: "GREETING", Value: "I am $(NAME) of $(NAMESPACE), $$(NAME), $(LATER), $HOME and $(open"},
		{Name: "LATER", Value: "later"},
		{Name: "SET_size", Value: "small"},
		{Name: "COLOR", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "color"}}},
		{Name: "NONE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}, Key: "color", Optional: new(true)}}},
	}
	pod := newPod("env", 2, c)
	pod.UID = "the-uid"
	pod.Labels, pod.Annotations = map[string]string{"app": "x"}, map[string]string{"note": "y"}
	pod.Spec.ServiceAccountName, pod.Spec.NodeName = "sa", "node-1"
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "198.19.0.8", Hostnames: []string{"alias"}}}
	s := lookIn(t, l, pod)
	want := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "HOSTNAME=env",
		"SET_color=blue", "SET_size=small",
		"NAME=env", "NAMESPACE=test", "UID=the-uid", "IP=198.18.7.2", "IPS=198.18.7.2,2001:db8::7:2", "ACCOUNT=sa",
		"NODE=node-1", "LABEL=x", "NOTE=y", "HOST=198.18.0.1",
		"GREETING=I am env of test, $(NAME), $(LATER), $HOME and $(open", "LATER=later", "COLOR=blue",
	}
	if diff := cmp.Diff(want, s.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	wantHosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"198.19.0.8\talias\n198.18.7.2\tenv\n2001:db8::7:2\tenv\n198.19.0.9\tsvc.test.svc\n"
	if diff := cmp.Diff(wantHosts, s.Files["/etc/hosts"]); diff != "" {
		t.Errorf("/etc/hosts (-want +got):\n%s", diff)
	}
	if strings.Contains(s.Files["/etc/resolv.conf"], "nameserver") || s.Files["/etc/resolv.conf"] == "" {
		t.Errorf("/etc/resolv.conf is %q", s.Files["/etc/resolv.conf"])
	}
	if s.Files["/etc/hostname"] != "env\n" {
		t.Errorf("/etc/hostname is %q", s.Files["/etc/hostname"])
	}
}

func TestArgumentsAndPath(t *testing.T) {
	l := newLab(t, lab.Options{})
	c := corev1.Container{
		Name: "app", Image: "program", Command: []string{"sh", "-c"}, Args: []string{"echo $(A) $$(A) $0 $1", "$(A)", "$(B)"},
		Env: []corev1.EnvVar{{Name: "A", Value: "x"}},
	}
	pod := newPod("args", 2, c)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	p := startPod(t, l, pod)
	if code, err := p.Container("app").Wait(deadline(t)); err != nil || code != 0 {
		// $(A) runs a command in the shell.
		t.Logf("code %d, error %v", code, err)
	}
	if got := p.Container("app").Output(); !strings.HasSuffix(got, "x x $(B)\n") {
		t.Errorf("the output is %q", got)
	}
}

func TestVolumes(t *testing.T) {
	var tokens atomic.Int32
	var settings atomic.Pointer[map[string]string]
	l := newLab(t, lab.Options{
		Token: func(pod *corev1.Pod, audience string, expires time.Duration) (string, error) {
			return fmt.Sprintf("%s %s %v %d", pod.Name, audience, expires, tokens.Add(1)), nil
		},
		ConfigMap: func(namespace, name string) (map[string]string, bool) {
			data := settings.Load()
			if data == nil || name != "settings" {
				return nil, false
			}
			return *data, true
		},
	})
	c := container("app", "serve", ":80", "hello")
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(1500))}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "token", MountPath: "/run/token", ReadOnly: true},
		{Name: "settings", MountPath: "/settings"},
		{Name: "memory", MountPath: "/memory"},
		{Name: "empty", MountPath: "/empty"},
		{Name: "empty", MountPath: "/memory/below", SubPath: "sub/dir"},
		{Name: "about", MountPath: "/about"},
	}
	pod := newPod("volumes", 2, c)
	limit := resource.MustParse("64Ki")
	pod.Spec.Volumes = []corev1.Volume{
		tokenVolume("token", 1),
		{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Optional: new(true)}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit}}},
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "about", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{Path: "deep/labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}},
		{Name: "unused", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
	}
	pod.Labels = map[string]string{"b": "2", "a": "1"}
	p := startPod(t, l, pod)
	app := p.Container("app")
	sh := func(script string) string {
		t.Helper()
		out, err := app.Exec(deadline(t), "sh", "-c", script)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(out)
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	want("token", sh("cat /run/token/token"), "volumes outrigger 1s 1")
	want("links", sh("readlink /run/token/token; readlink /run/token/..data"), "..data/token\n..1")
	want("about", sh("cat /about/deep/labels"), "a=\"1\"\nb=\"2\"")
	want("settings that are not there", sh("ls /settings"), "")
	want("read-only", sh("touch /run/token/x /settings/x /about/x 2>/dev/null || echo no; ls /run/token /settings /about"), "no\n/about:\ndeep\n\n/run/token:\ntoken\n\n/settings:")
	want("shared", sh("echo x > /empty/file && echo y > /memory/below/file && cat /empty/file /empty/sub/dir/file"), "x\ny")
	want("limit", sh("head -c 32768 /dev/zero > /memory/a && ! head -c 65536 /dev/zero > /memory/b 2>/dev/null && echo full"), "full")
	want("mounts", sh("grep -c ' /memory tmpfs ' /proc/mounts"), "1")

	// A file is never missing while it is replaced.
	settings.Store(&map[string]string{"a": "1", "b": "1"})
	if err := l.Refresh(); err != nil {
		t.Fatal(err)
	}
	want("settings", sh("cat /settings/a /settings/b"), "11")
	settings.Store(&map[string]string{"b": "2", "c": "2"})
	if err := l.Refresh(); err != nil {
		t.Fatal(err)
	}
	want("new settings", sh("cd /settings; cat *; ls; ls -A | wc -l"), "22b\nc\n4")
	version := sh("readlink /settings/..data")
	if err := l.Refresh(); err != nil {
		t.Fatal(err)
	}
	want("settings that have not changed", sh("readlink /settings/..data"), version)
	settings.Store(nil)
	if err := l.Refresh(); err != nil {
		t.Fatal(err)
	}
	want("settings that are gone", sh("ls /settings"), "")

	eventually(t, func() error {
		if got := sh("cat /run/token/token"); got == "volumes outrigger 1s 1" {
			return fmt.Errorf("the token is still %q", got)
		}
		return nil
	})
}

// Two containers of a pod share only its volumes and its network.
func TestContainersShare(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := container("a", "wait"), container("b", "serve", "127.0.0.1:80", "b")
	for _, c := range []*corev1.Container{&a, &b} {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
	}
	pod := newPod("two", 2, a, b)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	pod.Spec.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p := startPod(t, l, pod)
	if _, err := p.Container("a").Exec(deadline(t), "sh", "-c", "echo shared > /shared/file; echo own > /tmp/file"); err != nil {
		t.Fatal(err)
	}
	out, err := p.Container("b").Exec(deadline(t), "sh", "-c", "cat /shared/file; stat -c %g /shared/file; ls /tmp; cat /proc/1/cmdline | tr '\\0' ' '; id -G")
	if want := "shared\n77\n/program " + program + " serve 127.0.0.1:80 b 0 77\n"; err != nil || out != want {
		t.Errorf("%q, error %v; want %q", out, err, want)
	}
	if pids, err := p.Container("b").PIDs("program"); err != nil || !slices.Equal(pids, []int{p.Container("b").PID()}) {
		t.Errorf("processes %v, error %v; want %d alone", pids, err, p.Container("b").PID())
	}
}

func TestNoSuchContainer(t *testing.T) {
	l := newLab(t, lab.Options{})
	c := startPod(t, l, newPod("a", 2)).Container("none")
	if c != nil || c.PID() != 0 || c.Restarts() != 0 || c.Output() != "" || c.Kill() == nil {
		t.Error("a container that is not there answers")
	}
}
