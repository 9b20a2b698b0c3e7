package lab

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The lab repeats a probe that it waits for more often than the probe's period, from the
// first interval up to the last, to be fast.
const (
	firstInterval = 10 * time.Millisecond
	lastInterval  = 100 * time.Millisecond
)

// await repeats a probe until it passes. It fails when ctx ends and, unless patient, when
// the probe has failed for as long as its threshold allows.
func (c *Container) await(ctx context.Context, probe *corev1.Probe, patient bool) error {
	period := time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second
	allowed := time.Duration(probe.InitialDelaySeconds)*time.Second + period*time.Duration(cmp.Or(probe.FailureThreshold, 3))
	end := time.Now().Add(allowed)
	var last error
	for interval := firstInterval; ; interval = min(2*interval, lastInterval) {
		err := c.ask(ctx, probe)
		if err == nil {
			return nil
		}
		// The error of a probe that ctx interrupted must not hide the one before.
		if ctx.Err() == nil || last == nil {
			last = err
			if probe == c.spec.StartupProbe {
				c.mu.Lock()
				c.startupError = err
				c.mu.Unlock()
			}
		}
		if !patient && time.Now().After(end) {
			return fmt.Errorf("its probe has failed for %v: %w", allowed, last)
		}
		if !sleep(ctx, interval) {
			return fmt.Errorf("%w; its probe failed: %w", ctx.Err(), last)
		}
	}
}

// awaitStartup waits until the startup probe of a native sidecar passes; watch runs it.
func (c *Container) awaitStartup(ctx context.Context) error {
	select {
	case <-c.up:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	failed := c.startupError
	c.mu.Unlock()
	return c.wrap("starting", fmt.Errorf("%w; its startup probe: %w; %s", ctx.Err(), cmp.Or(failed, errNotRun), c.output.last()))
}

var errNotRun = errors.New("it has not run yet")

// watch runs the startup probe until it passes, and then the liveness probe. It returns an
// error when one of them has failed too often, or nil when ctx ends.
func (c *Container) watch(ctx context.Context) error {
	if probe := c.spec.StartupProbe; probe != nil {
		if err := c.await(ctx, probe, false); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("startup: %w", err)
		}
	}
	c.isUp.Do(func() { close(c.up) })
	probe := c.spec.LivenessProbe
	if probe == nil || !sleep(ctx, time.Duration(probe.InitialDelaySeconds)*time.Second) {
		return nil
	}
	for failures := int32(0); ; {
		err := c.ask(ctx, probe)
		if err == nil {
			failures = 0
		} else if failures++; failures >= cmp.Or(probe.FailureThreshold, 3) && ctx.Err() == nil {
			return fmt.Errorf("liveness: %w", err)
		}
		if !sleep(ctx, time.Duration(cmp.Or(probe.PeriodSeconds, 10))*time.Second) {
			return nil
		}
	}
}

// Ready waits until the startup and readiness probes of all containers pass, including
// those of applications in this program. The error names the one that does not.
func (p *Pod) Ready(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.context, cancel)()
	for _, c := range p.list() {
		if c.kind == initContainer {
			continue
		}
		for _, probe := range []*corev1.Probe{c.spec.StartupProbe, c.spec.ReadinessProbe} {
			if probe == nil {
				continue
			}
			if err := c.await(ctx, probe, true); err != nil {
				if p.context.Err() != nil {
					err = ErrClosed
				}
				return c.wrap("waiting for", fmt.Errorf("%w; %s", err, c.output.last()))
			}
		}
	}
	return nil
}

// ask runs a probe once.
func (c *Container) ask(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(cmp.Or(probe.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	return c.handle(ctx, probe.HTTPGet, probe.TCPSocket, probe.Exec)
}

// handle runs the action of a probe or a hook, from the node's network like a kubelet.
func (c *Container) handle(ctx context.Context, get *corev1.HTTPGetAction, socket *corev1.TCPSocketAction, run *corev1.ExecAction) error {
	switch {
	case get != nil:
		return c.get(ctx, get)
	case socket != nil:
		address, err := c.address(socket.Host, socket.Port)
		if err != nil {
			return err
		}
		conn, err := c.pod.lab.node.Dial(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	case run != nil:
		_, err := c.Exec(ctx, run.Command...)
		return err
	}
	return errors.New("the lab supports only HTTP, TCP and exec probes and hooks")
}

// address returns the address for a probe.
func (c *Container) address(host string, port intstr.IntOrString) (string, error) {
	host = cmp.Or(host, c.pod.addresses[0].String())
	number := port.IntValue()
	if port.Type == intstr.String && number == 0 {
		at := slices.IndexFunc(c.spec.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal })
		if at < 0 {
			return "", fmt.Errorf("the container has no port %q", port.StrVal)
		}
		number = int(c.spec.Ports[at].ContainerPort)
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func (c *Container) get(ctx context.Context, get *corev1.HTTPGetAction) error {
	address, err := c.address(get.Host, get.Port)
	if err != nil {
		return err
	}
	target, err := url.Parse(get.Path)
	if err != nil {
		return err
	}
	target.Scheme, target.Host = strings.ToLower(cmp.Or(string(get.Scheme), "http")), address
	if target.Path == "" {
		target.Path = "/"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/lab")
	for _, header := range get.HTTPHeaders {
		if strings.EqualFold(header.Name, "Host") {
			request.Host = header.Value
		} else {
			request.Header.Add(header.Name, header.Value)
		}
	}
	client := http.Client{
		Transport: &http.Transport{
			DialContext:       c.pod.lab.node.Dial,
			DisableKeepAlives: true,
			// The kubelet does not verify certificates either.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("GET %s: %w: %s", target, failedStatus(response.Status), strings.TrimSpace(string(body)))
	}
	return nil
}

// postStart runs the hook of a started container, and kills the container if it fails.
func (c *Container) postStart(ctx context.Context, i *instance) error {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PostStart == nil {
		return nil
	}
	err := c.hook(ctx, c.spec.Lifecycle.PostStart)
	if err == nil {
		return nil
	}
	_ = i.signal(syscall.SIGKILL)
	return c.wrap("the postStart hook of", fmt.Errorf("%w; of the container: %s", err, c.output.last()))
}

// preStop runs the hook of a container that is about to end, which it does even if the hook
// fails.
func (c *Container) preStop(ctx context.Context) {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PreStop == nil {
		return
	}
	if err := c.hook(ctx, c.spec.Lifecycle.PreStop); err != nil {
		c.pod.lab.log.Warn("a hook failed", "pod", c.pod.Name(), "container", c.name, "error", err)
	}
}

func (c *Container) hook(ctx context.Context, hook *corev1.LifecycleHandler) error {
	if hook.Sleep != nil {
		if !sleep(ctx, time.Duration(hook.Sleep.Seconds)*time.Second) {
			return ctx.Err()
		}
		return nil
	}
	err := c.handle(ctx, hook.HTTPGet, hook.TCPSocket, hook.Exec)
	if _, answered := errors.AsType[failedStatus](err); answered {
		// For a kubelet any answer to a hook means that it is done.
		return nil
	}
	return err
}

// failedStatus is an HTTP status that fails a probe.
type failedStatus string

func (s failedStatus) Error() string { return string(s) }
