// Package ondemand learns which services the pods of a service account use, where an
// annotation asks that their sidecars get services on demand. Agents ask about addresses that
// their proxies do not know. What such an address belongs to is written to the namespace's
// ConfigMap outrigger-learned-services, or to a file if there is no API server. From there it
// comes back as a fact, like every other object, so that all replicas of the controller make
// the same Views.
package ondemand

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Store writes what is learned. It is safe for concurrent use.
type Store interface {
	// Add adds to what a service account uses, and returns when it is written.
	Add(ctx context.Context, account fact.ServiceAccount, used fact.Used) error
}

// arrival is how long a written fact may take to reach the Snapshot.
const arrival = 10 * time.Second

// Learner answers the questions of agents. It is safe for concurrent use.
type Learner struct {
	catalog *catalog.Catalog
	store   Store
}

// NewLearner returns a Learner.
func NewLearner(cat *catalog.Catalog, store Store) *Learner { return &Learner{cat, store} }

// Learn reports whether an address belongs to something in the mesh that the pod may call. If
// the pod's proxy gets services on demand and lacks this one, it is added, and Learn returns
// when the proxy's View has it.
func (l *Learner) Learn(ctx context.Context, account fact.ServiceAccount, podUID string, address netip.AddrPort) (bool, error) {
	used, found, err := l.catalog.Find(ctx, account, address)
	if err != nil || !found {
		return false, err
	}
	view, ok := l.catalog.View(podUID)
	if !ok || catalog.Knows(view, address) {
		return true, nil
	}
	if err := l.store.Add(ctx, account, used); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, arrival, fmt.Errorf("ConfigMap %s/%s was written, but does not arrive at this controller", account.Namespace, fact.LearnedName))
	defer cancel()
	return true, l.catalog.AwaitDestination(ctx, podUID, address)
}

// The limits of what is kept. An account that uses more than maxEach gets everything, and so
// does one that does not fit into the namespace's ConfigMap, whose size the API server limits.
const (
	maxEach = 500
	maxSize = 768 << 10
)

// merge returns what an account has used with more of it, without what no longer exists.
func merge(former, more fact.Used, in *fact.Snapshot) fact.Used {
	all := former.With(more)
	if all.All || len(all.Services)+len(all.Pods) > maxEach {
		return fact.Used{All: true}
	}
	var kept fact.Used
	for _, name := range all.Services {
		if _, ok := in.Services.Get(name.String()); ok {
			kept.Services = append(kept.Services, name)
		}
	}
	for _, name := range all.Pods {
		if _, ok := in.Workloads.Get(name.String()); ok {
			kept.Pods = append(kept.Pods, name)
		}
	}
	return kept
}

// object returns the fact of a namespace whose accounts have used this.
func object(namespace string, accounts map[string]fact.Used) fact.Fact {
	return fact.Fact{
		Object:  mesh.ObjectRef{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: fact.LearnedName},
		Content: mesh.Seal(&fact.Learned{Accounts: accounts}),
	}
}
