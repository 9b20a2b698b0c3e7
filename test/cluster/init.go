package main

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// service is a program that runs as long as the cluster.
type service struct {
	name string
	args []string
}

func (c *cluster) services() []service {
	config := func(name string) string { return c.path("config", name) }
	_, node := c.network()
	pki := func(name string) string { return c.path("pki", name) }
	return []service{
		{"etcd", []string{
			"--data-dir=" + c.path("etcd"), "--listen-peer-urls=http://127.0.0.1:2380", "--listen-client-urls=http://127.0.0.1:2379",
			"--advertise-client-urls=http://127.0.0.1:2379", "--unsafe-no-fsync", "--log-level=warn",
		}},
		{"containerd", []string{"--config", config("containerd.toml")}},
		{"kube-apiserver", []string{
			"--advertise-address=" + node.String(), "--etcd-servers=http://127.0.0.1:2379", "--allow-privileged",
			"--service-cluster-ip-range=" + serviceRange, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
			"--kubelet-client-certificate=" + pki("admin.crt"), "--kubelet-client-key=" + pki("admin.key"),
			"--kubelet-preferred-address-types=InternalIP", "--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=" + pki("service-account.crt"), "--service-account-signing-key-file=" + pki("service-account.key"),
			// As Kubernetes 1.37 does by default.
			"--feature-gates=PodCertificateRequest=true,ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
			"--runtime-config=certificates.k8s.io/v1beta1=true",
		}},
		{"kube-controller-manager", []string{
			"--kubeconfig=" + config("controller-manager.kubeconfig"), "--leader-elect=false", "--use-service-account-credentials",
			"--root-ca-file=" + pki("ca.crt"), "--service-account-private-key-file=" + pki("service-account.key"),
			"--cluster-signing-cert-file=" + pki("ca.crt"), "--cluster-signing-key-file=" + pki("ca.key"),
		}},
		{"kube-scheduler", []string{"--kubeconfig=" + config("scheduler.kubeconfig"), "--leader-elect=false"}},
		{"kubelet", []string{
			"--config=" + config("kubelet.yaml"), "--kubeconfig=" + config("kubelet.kubeconfig"),
			"--node-ip=" + node.String(), "--hostname-override=" + nodeName,
		}},
		{"kube-proxy", []string{"--config=" + config("kube-proxy.yaml")}},
	}
}

// init is the first process of the cluster's namespaces: it prepares them, starts the
// programs, restarts those that end, and reaps orphaned processes of containers.
func (c *cluster) init() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("'up' runs init in new namespaces; it can't be run by hand")
	}
	if err := c.prepare(); err != nil {
		return err
	}
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	s := &supervisor{dir: c.dir, running: make(map[int]service)}
	for _, service := range c.services() {
		if err := s.start(service); err != nil {
			return err
		}
	}
	go s.reap()
	<-terminate
	return nil
}

// prepare sets up the mounts, host name, network and cgroups of the namespaces.
func (c *cluster) prepare() error {
	const recursive = syscall.MS_REC
	if err := syscall.Mount("", "/", "", recursive|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	// The kubelet needs mounts that containers can share.
	if err := syscall.Mount("", "/", "", recursive|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making the mounts shared: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	// Folders with state of programs whose path can't be configured.
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log", "/run/containerd", "/run/netns"} {
		own := c.path("root", dir)
		for _, d := range []string{own, dir} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Mount(own, dir, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", dir, err)
		}
	}
	if err := syscall.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := c.prepareNetwork(); err != nil {
		return err
	}
	return c.makeCgroups()
}

// prepareNetwork waits for the veth pair that 'up' creates, and configures the network.
func (c *cluster) prepareNetwork() error {
	for began := time.Now(); ; {
		if exec.Command("ip", "link", "show", "eth0").Run() == nil {
			break
		}
		if time.Since(began) > 30*time.Second {
			return fmt.Errorf("there is no eth0 after 30 s")
		}
		time.Sleep(20 * time.Millisecond)
	}
	machine, node := c.network()
	for _, args := range []string{
		"link set lo up",
		"addr add " + node.String() + "/30 dev eth0",
		"link set eth0 up",
		"route add default via " + machine.String(),
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// supervisor keeps services running.
type supervisor struct {
	dir string

	mutex   sync.Mutex
	running map[int]service
}

// start starts a service with its output in a file.
func (s *supervisor) start(of service) error {
	out, err := os.OpenFile(filepath.Join(s.dir, "log", of.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	program, err := exec.LookPath(of.name)
	if err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	process, err := os.StartProcess(program, append([]string{of.name}, of.args...), &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{nil, out, out}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", of.name, err)
	}
	s.running[process.Pid] = of
	log.Printf("%s runs as process %d", of.name, process.Pid)
	return os.WriteFile(filepath.Join(s.dir, "pids", of.name), []byte(strconv.Itoa(process.Pid)), 0o644)
}

// reap waits for processes to end, and restarts those that are services.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mutex.Lock()
		of, found := s.running[pid]
		delete(s.running, pid)
		s.mutex.Unlock()
		if !found {
			continue
		}
		log.Printf("%s has ended (exit status %d, signal %d) and is restarted", of.name, status.ExitStatus(), status.Signal())
		go s.restart(of)
	}
}

// restart starts a service after a second, or when it is no longer held.
func (s *supervisor) restart(of service) {
	for {
		time.Sleep(time.Second)
		if _, err := os.Stat(held(s.dir, of.name)); err != nil {
			break
		}
	}
	if err := s.start(of); err != nil {
		log.Print(err)
	}
}

// held returns the path of the file that prevents the restart of a service.
func held(dir, name string) string { return filepath.Join(dir, "pids", name+".held") }
