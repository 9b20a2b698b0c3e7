package envoy

import (
	"fmt"
	"sync"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// Translator makes Configs of Views. A Config is a pure function of the View. Results
// are cached, so that the cost of a View depends on what changed, and proxies with
// equal parts share them. It is safe for concurrent use.
type Translator struct {
	builders  *delivery.Cache[builderKey, builderState]
	outbounds *delivery.Outbounds[outboundKey, *Config]
	parts     *delivery.Cache[partKey, partState]
	proxies   *delivery.Cache[proxyKey, proxyState]
}

// Minimum numbers of cached builders, Outbounds, parts of Views and kinds of proxies.
// Dropped results are made again.
const (
	maxBuilders  = 8
	maxOutbounds = 4096
	maxParts     = 1 << 15
	maxProxies   = 1 << 14
)

// NewTranslator returns a Translator with empty caches.
func NewTranslator() *Translator {
	return &Translator{
		builders:  delivery.NewCache[builderKey, builderState](maxBuilders),
		outbounds: delivery.NewOutbounds[outboundKey, *Config](maxOutbounds),
		parts:     delivery.NewCache[partKey, partState](maxParts),
		proxies:   delivery.NewCache[proxyKey, proxyState](maxProxies),
	}
}

type builderKey struct {
	settings  mesh.Digest
	plaintext bool
}

type builderState struct {
	sync.Mutex
	builder *outboundBuilder
}

// outboundKey identifies the resources of an Outbound. Outbounds with the same key are
// versions of the same Outbound, of which the latest is cached.
type outboundKey struct {
	builder     *outboundBuilder
	scope, zone string
}

// partKey identifies a part of a View. Parts with the same key are versions of the same
// part.
type partKey struct {
	builder    *outboundBuilder
	kind       partKind
	name, zone string
}

type partKind int

const (
	destinationPart partKind = iota
	backendPart
	inboundPart
	egressPart
)

type partState struct {
	sync.Mutex
	from mesh.Digest
	made []*Resource
}

// proxyKey distinguishes proxies with different Configs of one Outbound.
type proxyKey struct {
	outboundKey
	// egress is that of the Egress and the Unknown ranges.
	inbound, egress mesh.Digest
	ipv4, ipv6      bool
	gateway         bool
	identity        mesh.Identity
}

type proxyState struct {
	sync.Mutex
	// own are the proxy's resources besides those of its Outbound; nil until they are
	// made.
	own *changes
	// made is the Config that combines own with outbound.
	outbound, made *Config
}

// Config returns the configuration of the View's proxy.
func (t *Translator) Config(view *mesh.View) *Config {
	builder := t.builder(view.Settings, view.Proxy.Plaintext)
	key := proxyKey{
		outboundKey: outboundKey{builder: builder, scope: view.Outbound.Scope, zone: view.Proxy.Zone},
		inbound:     view.Inbound.Digest(),
		egress:      view.Egress.Digest(),
	}
	key.ipv4, key.ipv6 = families(view.Proxy.Addresses)
	key.gateway = view.Proxy.Gateway
	if unknown := view.Outbound.Unknown; len(unknown) > 0 {
		key.egress = mesh.JoinDigests(key.egress, mesh.DigestOf(unknown))
	}
	if view.Settings.Tracing != nil {
		// Spans have the identity.
		key.identity = view.Proxy.Identity
	}
	outbound := t.outbound(key.outboundKey, view.Outbound)

	state := t.proxies.Get(key)
	state.Lock()
	defer state.Unlock()
	if state.own == nil {
		state.own = t.own(key, view)
	}
	if state.outbound != outbound {
		state.made = outbound.withOwn(state)
		state.outbound = outbound
	}
	return state.made
}

func (t *Translator) builder(settings *mesh.Settings, plaintext bool) *outboundBuilder {
	state := t.builders.Get(builderKey{settings.Digest(), plaintext})
	state.Lock()
	defer state.Unlock()
	if state.builder == nil {
		state.builder = newOutboundBuilder(settings, plaintext)
	}
	return state.builder
}

// outbound returns the resources of the Outbound.
func (t *Translator) outbound(key outboundKey, outbound *mesh.Outbound) *Config {
	return t.outbounds.Update(key, outbound, func(former *mesh.Outbound, config *Config) *Config {
		if config == nil {
			config = new(Config)
		}
		var changed changes
		changed.reserve(outbound.Destinations.Len()-former.Destinations.Len(), listenerType, routeType)
		changed.reserve(outbound.Backends.Len()-former.Backends.Len(), clusterType, endpointType)
		for change := range outbound.Destinations.Diff(former.Destinations) {
			var made []*Resource
			if !change.Delete {
				made = t.part(partKey{builder: key.builder, kind: destinationPart, name: change.Name}, change.Value.Digest(),
					func() []*Resource { return key.builder.destination(change.Value) })
			}
			changed.replace(change.Name, made, listenerType, routeType, extensionType)
		}
		for change := range outbound.Backends.Diff(former.Backends) {
			if cluster, ok := config.Clusters.Get(change.Name); ok && cluster.Asks != "" {
				changed.remove(endpointType, cluster.Asks)
			}
			var made []*Resource
			if !change.Delete {
				name := partKey{builder: key.builder, kind: backendPart, name: change.Name}
				if prefersZone(change.Value, key.zone) {
					name.zone = key.zone
				}
				made = t.part(name, change.Value.Digest(), func() []*Resource { return key.builder.backend(change.Value, key.zone) })
			}
			changed.replace(change.Name, made, clusterType)
		}
		return config.with(changed)
	})
}

// own returns the proxy's resources besides those of its Outbound.
func (t *Translator) own(key proxyKey, view *mesh.View) *changes {
	variant := fmt.Sprint(key.ipv4, key.ipv6, key.identity)
	own := new(changes)
	own.add(key.builder.own)
	if view.Proxy.Gateway {
		return own
	}
	own.add(t.part(partKey{builder: key.builder, kind: egressPart, name: key.egress.String() + variant}, key.egress,
		func() []*Resource {
			return key.builder.egress(view.Egress, view.Outbound.Unknown, view.Proxy.Addresses)
		}))
	own.add(t.part(partKey{builder: key.builder, kind: inboundPart, name: key.inbound.String() + variant}, key.inbound,
		func() []*Resource { return t.inbound(view.Proxy, view.Settings, view.Inbound) }))
	return own
}

// part returns the resources of the part with the digest, made by the function unless
// they are cached.
func (t *Translator) part(key partKey, digest mesh.Digest, make func() []*Resource) []*Resource {
	state := t.parts.Get(key)
	state.Lock()
	defer state.Unlock()
	if state.from != digest {
		state.from, state.made = digest, make()
	}
	return state.made
}
