package envoy

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// validate visits the message and all nested ones, and reports those that are invalid
// or have unknown fields.
func validate(t *testing.T, where string, m protoreflect.Message) {
	t.Helper()
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		validate(t, where+" > "+string(inner.ProtoReflect().Descriptor().Name()), inner.ProtoReflect())
		return
	}
	if len(m.GetUnknown()) > 0 {
		t.Errorf("%s: %s has fields that its type does not have", where, m.Descriptor().FullName())
	}
	if v, ok := m.Interface().(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				validate(t, where, v.Message())
				return true
			})
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				validate(t, where, value.List().Get(i).Message())
			}
		default:
			validate(t, where, value.Message())
		}
		return true
	})
}
