package main

import (
	"hash/maphash"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
)

// subject is what a client must know of a resource: its name and those of the resources
// that it refers to.
type subject struct {
	name string
	// refers are names of endpoints for a cluster, and of routes for a listener.
	refers []string
}

// texts has one copy of each name and version. Clients have most of them in common, and keep them
// as long as they run.
type texts struct {
	mu sync.RWMutex
	of map[string]string
}

// get returns the text as a string.
func (t *texts) get(text []byte) string {
	t.mu.RLock()
	found, ok := t.of[string(text)]
	t.mu.RUnlock()
	if !ok {
		found = string(text)
		t.mu.Lock()
		t.of[found] = found
		t.mu.Unlock()
	}
	return found
}

// subjects remembers subjects, because most proxies have the same resources.
type subjects struct {
	seed maphash.Seed
	mu   sync.RWMutex
	of   map[uint64]*subject
}

func newSubjects() *subjects {
	return &subjects{seed: maphash.MakeSeed(), of: make(map[uint64]*subject)}
}

// find returns the subject of a resource of the type.
func (s *subjects) find(typeURL string, value []byte) (*subject, error) {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(typeURL)
	_, _ = h.Write(value)
	key := h.Sum64()
	s.mu.RLock()
	found := s.of[key]
	s.mu.RUnlock()
	if found != nil {
		return found, nil
	}
	found, err := parseSubject(typeURL, value)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.of[key] = found
	s.mu.Unlock()
	return found, nil
}

func parseSubject(typeURL string, value []byte) (*subject, error) {
	switch typeURL {
	case resourcev3.ClusterType:
		var c clusterv3.Cluster
		if err := proto.Unmarshal(value, &c); err != nil {
			return nil, err
		}
		s := &subject{name: c.Name}
		if c.GetType() == clusterv3.Cluster_EDS {
			name := c.GetEdsClusterConfig().GetServiceName()
			if name == "" {
				name = c.Name
			}
			s.refers = []string{name}
		}
		return s, nil
	case resourcev3.ListenerType:
		var l listenerv3.Listener
		if err := proto.Unmarshal(value, &l); err != nil {
			return nil, err
		}
		s := &subject{name: l.Name}
		chains := l.FilterChains
		if l.DefaultFilterChain != nil {
			chains = append(chains, l.DefaultFilterChain)
		}
		for _, chain := range chains {
			for _, filter := range chain.Filters {
				var m hcmv3.HttpConnectionManager
				if any := filter.GetTypedConfig(); any == nil || !any.MessageIs(&m) || any.UnmarshalTo(&m) != nil {
					continue
				}
				if rds := m.GetRds(); rds != nil {
					s.refers = append(s.refers, rds.RouteConfigName)
				}
			}
		}
		return s, nil
	case resourcev3.RouteType:
		var r routev3.RouteConfiguration
		err := proto.Unmarshal(value, &r)
		return &subject{name: r.Name}, err
	case resourcev3.EndpointType:
		var e endpointv3.ClusterLoadAssignment
		err := proto.Unmarshal(value, &e)
		return &subject{name: e.ClusterName}, err
	}
	return &subject{}, nil
}
