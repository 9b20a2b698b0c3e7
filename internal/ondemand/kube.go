package ondemand

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

const (
	// gather is how long additions of a namespace are gathered before they are written.
	gather = 5 * time.Millisecond
	// writeTimeout limits one write.
	writeTimeout = 10 * time.Second

	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "outrigger-controller"
)

// Kube is a Store in ConfigMaps.
type Kube struct {
	client   kubernetes.Interface
	meshName string
	snapshot func() *fact.Snapshot

	mu sync.Mutex
	// gathering are the additions that will be written next, by namespace.
	gathering map[string]*batch
}

// batch has additions by service account. Done is closed when they are written, or err is set.
type batch struct {
	accounts map[string]fact.Used
	done     chan struct{}
	err      error
}

// NewKube returns a Store in the ConfigMaps of the namespaces. The client needs create on
// ConfigMaps, and get and update on those with the name fact.LearnedName. The function
// returns the current Snapshot.
func NewKube(client kubernetes.Interface, meshName string, snapshot func() *fact.Snapshot) *Kube {
	return &Kube{client: client, meshName: meshName, snapshot: snapshot, gathering: make(map[string]*batch)}
}

// Add is for Store.
func (k *Kube) Add(ctx context.Context, account fact.ServiceAccount, used fact.Used) error {
	b := k.gather(account, used)
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *Kube) gather(account fact.ServiceAccount, used fact.Used) *batch {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.gathering[account.Namespace]
	if b == nil {
		b = &batch{accounts: make(map[string]fact.Used), done: make(chan struct{})}
		k.gathering[account.Namespace] = b
		time.AfterFunc(gather, func() { k.flush(account.Namespace, b) })
	}
	b.accounts[account.Name] = b.accounts[account.Name].With(used)
	return b
}

func (k *Kube) flush(namespace string, b *batch) {
	k.mu.Lock()
	delete(k.gathering, namespace)
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	// Several replicas may write.
	err := retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) },
		func() error { return k.write(ctx, namespace, b.accounts) })
	if err != nil {
		b.err = fmt.Errorf("writing ConfigMap %s/%s: %w", namespace, fact.LearnedName, err)
	}
	close(b.done)
}

// write adds to the ConfigMap of a namespace.
func (k *Kube) write(ctx context.Context, namespace string, more map[string]fact.Used) error {
	configMaps := k.client.CoreV1().ConfigMaps(namespace)
	found, err := configMaps.Get(ctx, fact.LearnedName, metav1.GetOptions{})
	isNew := apierrors.IsNotFound(err)
	switch {
	case isNew:
		found = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fact.LearnedName, Labels: map[string]string{managedByLabel: managedBy, metadata.MonitoredBy: k.meshName},
		}}
	case err != nil:
		return err
	}
	former := maps.Clone(found.Data)
	addTo(found, more, k.snapshot())
	switch {
	case isNew:
		_, err = configMaps.Create(ctx, found, metav1.CreateOptions{})
	case maps.Equal(former, found.Data):
		return nil
	default:
		_, err = configMaps.Update(ctx, found, metav1.UpdateOptions{})
	}
	return err
}

// addTo adds to the content of a ConfigMap.
func addTo(found *corev1.ConfigMap, more map[string]fact.Used, in *fact.Snapshot) {
	f, _ := source.Learned(found)
	learned, _ := f.Content.(*fact.Learned)
	if found.Data == nil {
		found.Data = make(map[string]string)
	}
	size := 0
	for account, text := range found.Data {
		if _, changes := more[account]; !changes {
			size += len(account) + len(text)
		}
	}
	for account, used := range more {
		text := source.LearnedText(merge(learned.Accounts[account], used, in))
		if size += len(account) + len(text); size > maxSize {
			text = source.LearnedText(fact.Used{All: true})
		}
		found.Data[account] = text
	}
}
