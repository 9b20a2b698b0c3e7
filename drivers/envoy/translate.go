package envoy

import (
	"fmt"
	"sync"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// Translator makes Configs of Views. What it returns is a pure function of the View.
// It remembers what it made, so that a View costs what differs from the one before,
// and proxies that see the same share it. It is safe for use by many goroutines.
type Translator struct {
	styles    *delivery.Cache[styleKey, styleState]
	outbounds *delivery.Outbounds[outboundKey, *Config]
	parts     *delivery.Cache[partKey, partState]
	proxies   *delivery.Cache[proxyKey, proxyState]
}

// How many are remembered at least: states of Settings, Outbounds, parts of Views,
// and kinds of proxies. What is forgotten is made again.
const (
	manyStyles    = 8
	manyOutbounds = 4096
	manyParts     = 1 << 15
	manyProxies   = 1 << 14
)

// NewTranslator returns a Translator that remembers nothing yet.
func NewTranslator() *Translator {
	return &Translator{
		styles:    delivery.NewCache[styleKey, styleState](manyStyles),
		outbounds: delivery.NewOutbounds[outboundKey, *Config](manyOutbounds),
		parts:     delivery.NewCache[partKey, partState](manyParts),
		proxies:   delivery.NewCache[proxyKey, proxyState](manyProxies),
	}
}

type styleKey struct {
	settings  mesh.Digest
	plaintext bool
}

type styleState struct {
	sync.Mutex
	style *outboundStyle
}

// outboundKey tells apart what is made of Outbounds. Outbounds of one key are states
// of the same thing, of which the last is remembered.
type outboundKey struct {
	style       *outboundStyle
	scope, zone string
}

// partKey names a part of a View. Parts of one key are states of the same thing.
type partKey struct {
	style      *outboundStyle
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

// proxyKey tells proxies apart that get different Configs of one Outbound.
type proxyKey struct {
	outboundKey
	inbound, egress mesh.Digest
	ipv4, ipv6      bool
	identity        mesh.Identity
}

type proxyState struct {
	sync.Mutex
	// own is what the proxy gets besides what is made of its Outbound, nil until it
	// is made.
	own *changes
	// made is what it got with the outbound.
	outbound, made *Config
}

// Config returns the configuration of the proxy that the View is of.
func (t *Translator) Config(view *mesh.View) *Config {
	style := t.style(view.Settings, view.Proxy.Plaintext)
	key := proxyKey{
		outboundKey: outboundKey{style: style, scope: view.Outbound.Scope, zone: view.Proxy.Zone},
		inbound:     view.Inbound.Digest(),
		egress:      view.Egress.Digest(),
	}
	key.ipv4, key.ipv6 = families(view.Proxy.Addresses)
	if view.Settings.Tracing != nil {
		// Spans say whose they are.
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

func (t *Translator) style(settings *mesh.Settings, plaintext bool) *outboundStyle {
	state := t.styles.Get(styleKey{settings.Digest(), plaintext})
	state.Lock()
	defer state.Unlock()
	if state.style == nil {
		state.style = newOutboundStyle(settings, plaintext)
	}
	return state.style
}

// outbound returns what is made of the Outbound.
func (t *Translator) outbound(key outboundKey, outbound *mesh.Outbound) *Config {
	return t.outbounds.Update(key, outbound, func(former *mesh.Outbound, config *Config) *Config {
		if config == nil {
			config = new(Config)
		}
		var changed changes
		for change := range outbound.Destinations.Diff(former.Destinations) {
			var made []*Resource
			if !change.Delete {
				made = t.part(partKey{style: key.style, kind: destinationPart, name: change.Name}, change.Value.Digest(),
					func() []*Resource { return key.style.destination(change.Value) })
			}
			changed.replace(change.Name, made, listenerType, routeType)
		}
		for change := range outbound.Backends.Diff(former.Backends) {
			if cluster, ok := config.Clusters.Get(change.Name); ok && cluster.Asks != "" {
				changed.remove(endpointType, cluster.Asks)
			}
			var made []*Resource
			if !change.Delete {
				name := partKey{style: key.style, kind: backendPart, name: change.Name}
				if prefersZone(change.Value, key.zone) {
					name.zone = key.zone
				}
				made = t.part(name, change.Value.Digest(), func() []*Resource { return key.style.backend(change.Value, key.zone) })
			}
			changed.replace(change.Name, made, clusterType)
		}
		return config.with(changed)
	})
}

// own returns what the proxy gets besides what is made of its Outbound.
func (t *Translator) own(key proxyKey, view *mesh.View) *changes {
	variant := fmt.Sprint(key.ipv4, key.ipv6, key.identity)
	own := new(changes)
	own.add(key.style.own)
	own.add(t.part(partKey{style: key.style, kind: egressPart, name: key.egress.String() + variant}, key.egress,
		func() []*Resource { return key.style.egress(view.Egress, view.Proxy.Addresses) }))
	own.add(t.part(partKey{style: key.style, kind: inboundPart, name: key.inbound.String() + variant}, key.inbound,
		func() []*Resource { return t.inbound(view.Proxy, view.Settings, view.Inbound) }))
	return own
}

// part returns what the function makes of the part with the digest.
func (t *Translator) part(key partKey, from mesh.Digest, make func() []*Resource) []*Resource {
	state := t.parts.Get(key)
	state.Lock()
	defer state.Unlock()
	if state.from != from {
		state.from, state.made = from, make()
	}
	return state.made
}
