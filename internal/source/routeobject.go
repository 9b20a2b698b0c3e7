package source

import (
	encoding "encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/json"

	"github.com/outrigger-mesh/outrigger/internal/fact"
)

// HTTPRoute is Gateway API's, with the fields that its Go type does not have.
type HTTPRoute struct {
	gateway.HTTPRoute `json:",inline"`
	later             laterFields
}

// HTTPRouteList is a list of HTTPRoutes.
type HTTPRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HTTPRoute `json:"items"`
}

// GRPCRoute is Gateway API's, with the fields that its Go type does not have.
type GRPCRoute struct {
	gateway.GRPCRoute `json:",inline"`
	later             laterFields
}

// GRPCRouteList is a list of GRPCRoutes.
type GRPCRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GRPCRoute `json:"items"`
}

// UnmarshalJSON also remembers unknown fields.
func (r *HTTPRoute) UnmarshalJSON(data []byte) error { return r.later.read(data, &r.HTTPRoute) }

// UnmarshalJSON also remembers unknown fields.
func (r *GRPCRoute) UnmarshalJSON(data []byte) error { return r.later.read(data, &r.GRPCRoute) }

// DeepCopyObject implements runtime.Object. The copy shares what nobody changes.
func (r *HTTPRoute) DeepCopyObject() runtime.Object {
	return &HTTPRoute{HTTPRoute: *r.HTTPRoute.DeepCopy(), later: r.later}
}

// DeepCopyObject implements runtime.Object. The copy shares what nobody changes.
func (r *GRPCRoute) DeepCopyObject() runtime.Object {
	return &GRPCRoute{GRPCRoute: *r.GRPCRoute.DeepCopy(), later: r.later}
}

// DeepCopyObject implements runtime.Object.
func (l *HTTPRouteList) DeepCopyObject() runtime.Object {
	list := &HTTPRouteList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		list.Items = append(list.Items, *l.Items[i].DeepCopyObject().(*HTTPRoute))
	}
	return list
}

// DeepCopyObject implements runtime.Object.
func (l *GRPCRouteList) DeepCopyObject() runtime.Object {
	list := &GRPCRouteList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		list.Items = append(list.Items, *l.Items[i].DeepCopyObject().(*GRPCRoute))
	}
	return list
}

// addGateway registers the Go types of Gateway API's kinds.
func addGateway(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Group: gateway.GroupName, Version: gateway.GroupVersion.Version}
	scheme.AddKnownTypes(version,
		&HTTPRoute{}, &HTTPRouteList{}, &GRPCRoute{}, &GRPCRouteList{},
		&gateway.TLSRoute{}, &gateway.TLSRouteList{}, &gateway.TCPRoute{}, &gateway.TCPRouteList{},
		&gateway.ReferenceGrant{}, &gateway.ReferenceGrantList{},
		&gateway.GatewayClass{}, &gateway.GatewayClassList{}, &gateway.Gateway{}, &gateway.GatewayList{})
	metav1.AddToGroupVersion(scheme, version)
	return nil
}

// laterFields are the fields of a route that Gateway API's Go types lack: newer ones, and
// misspelt ones. Without a condition that is not understood, a rule would match more.
type laterFields struct {
	// unknown are the paths of the fields, such as "spec.rules[0].match".
	unknown []string
	// sessions are by the index of the rule.
	sessions map[int]laterSession
}

// laterSession has the fields of sessionPersistence since Gateway API 1.7.
type laterSession struct {
	Cookie *laterCookie `json:"cookie"`
	Header *laterHeader `json:"header"`
}

type laterCookie struct {
	Name         string                      `json:"name"`
	Path         string                      `json:"path"`
	LifetimeType *gateway.CookieLifetimeType `json:"lifetimeType"`
}

type laterHeader struct {
	Name string `json:"name"`
}

// read decodes the route into the object of Gateway API's Go type.
func (l *laterFields) read(data []byte, into any) error {
	*l = laterFields{}
	found, err := json.UnmarshalStrict(data, into, json.DisallowUnknownFields)
	if err != nil || len(found) == 0 {
		return err
	}
	for _, field := range found {
		if quoted, ok := strings.CutPrefix(field.Error(), "unknown field "); ok {
			if path, err := strconv.Unquote(quoted); err == nil {
				l.unknown = append(l.unknown, path)
			}
		}
	}
	return l.readSessions(data)
}

// readSessions moves the session persistence of 1.7 from the unknown fields to sessions.
func (l *laterFields) readSessions(data []byte) error {
	var route struct {
		Spec struct {
			Rules []struct {
				SessionPersistence map[string]any `json:"sessionPersistence"`
			} `json:"rules"`
		} `json:"spec"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &route); err != nil {
		return err
	}
	for i, rule := range route.Spec.Rules {
		path := index("spec.rules", i) + ".sessionPersistence"
		fields := maps.Clone(rule.SessionPersistence)
		maps.DeleteFunc(fields, func(name string, _ any) bool { return name != "cookie" && name != "header" })
		if len(fields) == 0 {
			continue
		}
		text, err := encoding.Marshal(fields)
		if err != nil {
			return err
		}
		var session laterSession
		strange, err := json.UnmarshalStrict(text, &session, json.DisallowUnknownFields)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if l.sessions == nil {
			l.sessions = make(map[int]laterSession)
		}
		l.sessions[i] = session
		l.unknown = slices.DeleteFunc(l.unknown, func(field string) bool { return field == path+".cookie" || field == path+".header" })
		for _, field := range strange {
			l.unknown = append(l.unknown, path+"."+strings.Trim(strings.TrimPrefix(field.Error(), "unknown field "), `"`))
		}
	}
	return nil
}

// below returns the unknown fields of the part of the object with the path.
func (l *laterFields) below(path string) []string {
	var fields []string
	for _, field := range l.unknown {
		if strings.HasPrefix(field, path+".") || strings.HasPrefix(field, path+"[") {
			fields = append(fields, field)
		}
	}
	return fields
}

// checkFields reports the unknown fields outside of rules, matches and parents.
func (n *notes) checkFields(l *laterFields) {
	for _, field := range l.unknown {
		if !strings.HasPrefix(field, "spec.rules[") && !strings.HasPrefix(field, "spec.parentRefs[") && !strings.HasPrefix(field, "metadata.") && !strings.HasPrefix(field, "status.") {
			n.add(ReasonNoEffect, field, "the field is not known and is ignored; correct its name, or remove it")
		}
	}
}

// checkMatch reports whether all fields of a match are known.
func (n *notes) checkMatch(l *laterFields, path string) bool {
	fields := l.below(path)
	for _, field := range fields {
		n.noMatch(field, "the field is not known, and the match may need it")
	}
	return len(fields) == 0
}

// checkRuleFields drops the matches of a rule with an unknown field, which may be meant to
// hold them. A rule with an unknown field further below answers 500.
func (n *notes) checkRuleFields(l *laterFields, path string, rule *fact.RouteRule) {
	for _, field := range l.below(path) {
		switch rest := strings.TrimPrefix(field, path+"."); {
		case strings.HasPrefix(rest, "matches["):
		case !strings.ContainsAny(rest, ".["):
			n.add(fact.ReasonUnsupportedValue, field, "the field is not known and may restrict the rule, which therefore matches nothing; correct its name, or remove it")
			rule.Matches = nil
		default:
			n.unusable(rule, fact.ReasonUnsupportedValue, field, "the field is not known; correct its name, or remove it")
		}
	}
}
