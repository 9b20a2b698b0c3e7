package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// drivers starts each driver once: that of the default class, those of other classes that the
// MeshConfig names, now or later, and those of classes that pods choose.
//
// If the default driver does not start, the controller ends. Failures of others are only
// reported: otherwise everyone who may create a pod could end the controller, and so could a
// list of drivers that was copied from another mesh.
type drivers struct {
	arguments driver.ControllerContext
	from      origin
	names     []string
	end       context.CancelCauseFunc
	// show replaces the debug pages of drivers.
	show func(...map[string]http.Handler) error
	// wake has capacity one. A token means that the MeshConfig has changed.
	wake chan struct{}

	mu sync.Mutex
	// began is true once the drivers that the MeshConfig names have been started.
	began bool
	// started has the probes of each class whose driver was started, nil if it failed.
	started map[string]health.Probes
	pages   []map[string]http.Handler
}

func newDrivers(arguments driver.ControllerContext, from origin, names []string, end context.CancelCauseFunc) *drivers {
	return &drivers{arguments: arguments, from: from, names: names, end: end, wake: make(chan struct{}, 1), started: make(map[string]health.Probes)}
}

// initializationError is a failure to start. Its texts are those of Open Service Mesh's
// proposal for sidecar drivers.
type initializationError struct {
	what string
	err  error
}

func (e initializationError) Error() string { return e.what + ": " + e.err.Error() }
func (e initializationError) Unwrap() error { return e.err }

// run starts drivers until ctx ends. Its error ends the controller.
func (d *drivers) run(ctx context.Context, cat *catalog.Catalog) error {
	if !wait(ctx, d.from.read()) {
		return nil
	}
	if err := sidecar.InstallDriver(d.from.settings().GetSidecarClass()); err != nil {
		return initializationError{"Error creating sidecar driver", err}
	}
	// A proxy served before the Snapshot is complete would lose configuration.
	if !wait(ctx, cat.Ready()) || !wait(ctx, d.arguments.CertManager.Ready()) {
		return nil
	}
	changed := cat.Subscribe(ctx.Done())
	d.from.settings().OnChange(func(*source.Config) {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	})
	if err := d.start(ctx, d.from.settings().GetSidecarClass()); err != nil {
		return initializationError{"Error initializing proxy control server", err}
	}
	for _, class := range d.configured() {
		d.startLate(ctx, class)
	}
	d.mu.Lock()
	d.began = true
	d.mu.Unlock()

	for _, view := range cat.Snapshot().Views.All() {
		d.startLate(ctx, view.Proxy.Class)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
			for _, class := range d.configured() {
				d.startLate(ctx, class)
			}
		case uid := <-changed:
			// cat.View would follow the proxy, which may be connected to another controller.
			if view, ok := cat.Snapshot().Views.Get(uid); ok {
				d.startLate(ctx, view.Proxy.Class)
			}
		}
	}
}

// wait returns false if ctx ends first.
func wait(ctx context.Context, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
	}
}

// configured returns the classes that the MeshConfig names, the default first. Classes without
// a driver are left out; they are Problems of the MeshConfig.
func (d *drivers) configured() []string {
	classes := []string{d.from.settings().GetSidecarClass()}
	for _, entry := range d.from.settings().GetMeshConfig().Spec.Sidecar.SidecarDrivers {
		classes = append(classes, strings.ToLower(entry.SidecarName))
	}
	return slices.DeleteFunc(classes, func(class string) bool { return !slices.Contains(sidecar.Drivers(), class) })
}

// startLate is start, except that it only reports failures, and starts no driver twice.
func (d *drivers) startLate(ctx context.Context, class string) {
	d.mu.Lock()
	_, before := d.started[class]
	d.mu.Unlock()
	if before || ctx.Err() != nil {
		return
	}
	err := d.start(ctx, class)
	if err == nil {
		return
	}
	err = initializationError{"Error initializing proxy control server", fmt.Errorf("the pods of class %s get no configuration until the controller is restarted: %w", class, err)}
	d.arguments.Log.Error("a driver failed to start", "class", class, "error", err)
	if err := d.from.warn(ctx, err); err != nil {
		d.arguments.Log.Warn("no Event was recorded for a driver that failed to start", "class", class, "error", err)
	}
}

// start starts the driver of a class. It is called once for each.
func (d *drivers) start(ctx context.Context, class string) error {
	d.mu.Lock()
	d.started[class] = nil
	d.mu.Unlock()
	stop := make(chan struct{})
	context.AfterFunc(ctx, func() { close(stop) })
	arguments := d.arguments
	arguments.Context = ctx
	arguments.SidecarClass = class
	// 0 means the driver's default, which its Patch uses too.
	arguments.ProxyServerPort = d.from.settings().GetProxyServerPort(class)
	arguments.ProxyServiceCert = &certificate.Certificate{
		CommonName: certificate.CommonName(d.names[0]), DNSNames: d.names, TrustBundle: arguments.CertManager.TrustBundle(),
	}
	arguments.DebugHandlers = make(map[string]http.Handler)
	arguments.CancelFunc = func() { d.end(fmt.Errorf("driver %s cannot continue; the log says why", class)) }
	arguments.Stop = stop
	arguments.Log = arguments.Log.With("class", class)
	probes, err := sidecar.Start(&arguments)
	if err == nil && probes == nil {
		err = errors.New("it returned no health probes")
	}
	if err == nil {
		err = d.show(append(slices.Clone(d.pages), arguments.DebugHandlers)...)
	}
	if err != nil {
		return fmt.Errorf("driver %s: %w", class, err)
	}
	d.pages = append(d.pages, arguments.DebugHandlers)
	d.arguments.Log.Info("serving the proxies of a class", "class", class)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.started[class] = probes
	return nil
}

// probes returns the probes of all drivers, and one for the start of those that the MeshConfig
// names.
func (d *drivers) probes() []health.Probes {
	d.mu.Lock()
	defer d.mu.Unlock()
	began := d.began
	all := []health.Probes{health.Func{ID: "sidecar drivers", Ready: func() bool { return began }}}
	for _, probes := range d.started {
		if probes != nil {
			all = append(all, probes)
		}
	}
	slices.SortFunc(all, func(a, b health.Probes) int { return strings.Compare(a.GetID(), b.GetID()) })
	return all
}
