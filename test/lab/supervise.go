package lab

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// runToEnd runs an init container until it succeeds.
func (c *Container) runToEnd(ctx context.Context) error {
	defer close(c.over)
	for wait := firstBackOff; ; wait = min(2*wait, lastBackOff) {
		i, err := c.start()
		if err != nil {
			return c.wrap("starting", err)
		}
		select {
		case <-i.done:
		case <-ctx.Done():
			_ = i.signal(syscall.SIGKILL)
			<-i.done
			return c.wrap("running", fmt.Errorf("%w; %s", ctx.Err(), c.output.last()))
		}
		code := i.code()
		if code == 0 {
			return nil
		}
		err = c.wrap("running", fmt.Errorf("it ended with code %d; %s", code, c.output.last()))
		if c.pod.object.Spec.RestartPolicy == corev1.RestartPolicyNever {
			return err
		}
		c.pod.lab.log.Warn("restarting a failed init container", "pod", c.pod.Name(), "container", c.name, "code", code)
		if !sleep(ctx, wait) {
			return err
		}
		c.countRestart()
	}
}

func (c *Container) countRestart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
}

// startFirst starts a long-running container, which supervise restarts.
func (c *Container) startFirst(ctx context.Context) error {
	i, err := c.start()
	if err != nil {
		close(c.over)
		return c.wrap("starting", err)
	}
	err = c.postStart(ctx, i)
	c.pod.tasks.Go(func() { c.supervise(i) })
	return err
}

// supervise restarts the container when it ends, according to the restart policy.
func (c *Container) supervise(i *instance) {
	defer close(c.over)
	wait := firstBackOff
	for {
		began := time.Now()
		c.observe(i)
		code := i.code()
		if !c.shouldRestart(code) {
			return
		}
		if time.Since(began) >= backOffReset {
			wait = firstBackOff
		}
		c.pod.lab.log.Warn("restarting a container that has ended", "pod", c.pod.Name(), "container", c.name, "code", code, "wait", wait)
		if i = c.restart(&wait); i == nil {
			return
		}
	}
}

// shouldRestart reports whether the restart policy restarts a container that ended with
// the code.
func (c *Container) shouldRestart(code int) bool {
	if c.ending() {
		return false
	}
	switch {
	case c.kind == nativeSidecar:
		return true
	case c.pod.object.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return false
	case c.pod.object.Spec.RestartPolicy == corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

func (c *Container) ending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopping || c.pod.context.Err() != nil
}

// restart restarts a container after a delay, and retries until it starts. It returns nil
// when the container is being stopped.
func (c *Container) restart(wait *time.Duration) *instance {
	for sleep(c.pod.context, *wait) && !c.ending() {
		*wait = min(2**wait, lastBackOff)
		i, err := c.start()
		if err == nil {
			c.countRestart()
			// A hook that fails ends the container.
			if err := c.postStart(c.pod.context, i); err != nil {
				c.pod.lab.log.Warn("a hook failed", "pod", c.pod.Name(), "container", c.name, "error", err)
			}
			return i
		}
		if !errors.Is(err, ErrClosed) {
			c.pod.lab.log.Warn("a container could not be restarted", "pod", c.pod.Name(), "container", c.name, "error", err)
		}
	}
	return nil
}

// observe waits until a process has ended, and kills it if its startup or liveness probe
// fails.
func (c *Container) observe(i *instance) {
	ctx, cancel := context.WithCancel(c.pod.context)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- c.watch(ctx) }()
	select {
	case <-i.done:
		return
	case err := <-failed:
		if err != nil {
			c.pod.lab.log.Warn("killing a container after a failed probe", "pod", c.pod.Name(), "container", c.name, "error", err)
			_ = i.signal(syscall.SIGKILL)
		}
	}
	<-i.done
}

// awaitEnd stops the native sidecars when all other containers have ended for good.
func (p *Pod) awaitEnd() {
	for _, c := range p.list() {
		if c.kind != mainContainer {
			continue
		}
		if !c.started {
			// An application in this program has no known end.
			return
		}
		select {
		case <-c.over:
		case <-p.context.Done():
			return
		}
	}
	if err := p.endSidecars(context.Background(), time.Now().Add(p.grace())); err != nil {
		p.lab.log.Warn("a pod did not end", "pod", p.Name(), "error", err)
	}
	close(p.finished)
}

// Done returns a channel that is closed when all containers of the pod have ended for
// good, as those of a Job do. The pod's network exists until the pod is stopped.
func (p *Pod) Done() <-chan struct{} { return p.finished }

// grace returns the pod's grace period.
func (p *Pod) grace() time.Duration {
	if seconds := p.object.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// terminate stops all containers.
func (p *Pod) terminate(ctx context.Context) error {
	deadline := time.Now().Add(p.grace())
	containers := p.list()
	errs, ephemeral := make(chan error, len(containers)), make(chan error, len(containers))
	mains, others := 0, 0
	for _, c := range containers {
		switch c.kind {
		case mainContainer:
			mains++
			go func() { errs <- c.terminate(ctx, deadline) }()
		case ephemeralContainer:
			// Native sidecars do not wait for them.
			others++
			go func() { ephemeral <- c.terminate(ctx, deadline) }()
		}
	}
	var all []error
	for range mains {
		all = append(all, <-errs)
	}
	all = append(all, p.endSidecars(ctx, deadline))
	for range others {
		all = append(all, <-ephemeral)
	}
	return errors.Join(all...)
}

// endSidecars stops the native sidecars in reverse order.
func (p *Pod) endSidecars(ctx context.Context, deadline time.Time) error {
	var errs []error
	containers := p.list()
	for n := len(containers) - 1; n >= 0; n-- {
		if c := containers[n]; c.kind == nativeSidecar {
			errs = append(errs, c.terminate(ctx, deadline))
		}
	}
	return errors.Join(errs...)
}

// terminate stops a container: preStop hook, SIGTERM, and SIGKILL at the deadline.
func (c *Container) terminate(ctx context.Context, deadline time.Time) error {
	c.mu.Lock()
	c.stopping = true
	i := c.instance
	c.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if i == nil {
		if !c.started {
			// An application in this program runs, but gets no signals.
			c.preStop(ctx)
		}
		return nil
	}
	select {
	case <-i.done:
		return nil
	default:
	}
	if ctx.Err() == nil {
		c.preStop(ctx)
		_ = i.signal(syscall.SIGTERM)
	}
	select {
	case <-i.done:
		return nil
	case <-ctx.Done():
	}
	_ = i.signal(syscall.SIGKILL)
	select {
	case <-i.done:
		return nil
	case <-time.After(stopTimeout):
		return c.wrap("killing", fmt.Errorf("it still runs after %v", stopTimeout))
	}
}
