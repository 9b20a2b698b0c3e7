package podtemplate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

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

// stringPath is the way to a string of a pod: indexes of fields and elements, where pointers are
// followed.
type stringPath []int

// placesOf returns the places of all placeholders of a pod. It is false if there are others, in
// keys or values of maps.
func placesOf(pod *corev1.Pod) ([]stringPath, bool) {
	var places []stringPath
	return places, addPlaces(&places, nil, reflect.ValueOf(pod).Elem())
}

func addPlaces(places *[]stringPath, here stringPath, v reflect.Value) bool {
	here = slices.Clip(here)
	switch v.Kind() {
	case reflect.String:
		if strings.Contains(v.String(), placeholderStart) {
			*places = append(*places, here)
		}
	case reflect.Pointer:
		return v.IsNil() || addPlaces(places, here, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && !addPlaces(places, append(here, i), v.Field(i)) {
				return false
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if !addPlaces(places, append(here, i), v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		m, ok := v.Interface().(map[string]string)
		for key, value := range m {
			if ok && (strings.Contains(key, placeholderStart) || strings.Contains(value, placeholderStart)) {
				return false
			}
		}
	}
	return true
}

// put replaces the placeholders in the string at the place by their values.
func (p stringPath) put(pod *corev1.Pod, values []string) {
	v := reflect.ValueOf(pod).Elem()
	for _, i := range p {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() == reflect.Slice {
			v = v.Index(i)
		} else {
			v = v.Field(i)
		}
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	v.SetString(putValues(v.String(), values))
}
