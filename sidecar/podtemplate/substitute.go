package podtemplate

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// putAllValues replaces the placeholders in every string of the pod by their values.
func putAllValues(pod *corev1.Pod, values []string) error {
	if len(values) == 0 {
		return nil
	}
	return putIn(reflect.ValueOf(pod).Elem(), values)
}

func putIn(v reflect.Value, values []string) error {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); len(s) > len(placeholderStart) {
			if with := putValues(s, values); with != s {
				v.SetString(with)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return putIn(v.Elem(), values)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				if err := putIn(f, values); err != nil {
					return err
				}
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := putIn(v.Index(i), values); err != nil {
				return err
			}
		}
	case reflect.Map:
		return putInMap(v, values)
	}
	return nil
}

// putInMap rebuilds maps of strings. A pod's other maps hold quantities, which cannot
// contain values.
func putInMap(v reflect.Value, values []string) error {
	m, ok := v.Interface().(map[string]string)
	if !ok || len(m) == 0 {
		return nil
	}
	with := make(map[string]string, len(m))
	for key, value := range m {
		key = putValues(key, values)
		if _, twice := with[key]; twice {
			return fmt.Errorf("it renders the key %q twice", key)
		}
		with[key] = putValues(value, values)
	}
	v.Set(reflect.ValueOf(with))
	return nil
}
