package install

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// retired returns a Secret that is left from releases up to 0.1.0, or nil. It has the key of a
// CA that is no longer trusted, and an annotation that makes Helm keep it.
func (a *application) retired(ctx context.Context) (*unstructured.Unstructured, error) {
	if a.revision != defaultRevision {
		return nil, nil
	}
	return a.exists(ctx, named("v1", "Secret", a.namespace, "outrigger-repository-ca"))
}

// removeRetired removes the Secret that retired returns. The upgrade has succeeded before, so it
// only warns about errors.
func (a *application) removeRetired(ctx context.Context) {
	obj, err := a.retired(ctx)
	if err == nil && obj != nil {
		err = a.kube.CoreV1().Secrets(obj.GetNamespace()).Delete(ctx, obj.GetName(), metav1.DeleteOptions{})
	}
	switch {
	case obj == nil && err == nil || apierrors.IsNotFound(err):
	case err != nil:
		a.say("Secret %s/outrigger-repository-ca: this unused CA of an older release could not be removed: %v", a.namespace, err)
	default:
		a.say("%s: removed; it was the unused CA of an older release", title(obj))
	}
}
