{{- /* The terms of the selectors below. */ -}}
{{- define "outrigger.webhookTerms" -}}
{{- $revision := concat (list .Values.revision) .Values.revisionTags | toJson -}}
{{- $mesh := list .Values.osm.meshName | toJson -}}
monitored: {key: openservicemesh.io/monitored-by, operator: In, values: {{ $mesh }}}
notMonitored: {key: openservicemesh.io/monitored-by, operator: NotIn, values: {{ $mesh }}}
revision: {key: openservicemesh.io/rev, operator: In, values: {{ $revision }}}
noRevision: {key: openservicemesh.io/rev, operator: DoesNotExist}
istioRevision: {key: istio.io/rev, operator: In, values: {{ $revision }}}
otherIstioRevision: {key: istio.io/rev, operator: NotIn, values: {{ $revision }}}
noIstioRevision: {key: istio.io/rev, operator: DoesNotExist}
injection: {key: istio-injection, operator: Exists}
injectionEnabled: {key: istio-injection, operator: In, values: [enabled]}
noInjection: {key: istio-injection, operator: DoesNotExist}
inject: {key: sidecar.istio.io/inject, operator: In, values: ["true"]}
noInject: {key: sidecar.istio.io/inject, operator: NotIn, values: ["true"]}
{{- end }}

{{- /* Selects the pods for which the API server calls the injector: those in namespaces of
this mesh whose revision, from the pod or else the namespace, is this one. They are the
rules namespace_not_monitored and other_revision of docs/injection.md. A selector has no
"or", so there are several; no pod matches two of them, which would call the injector
twice. */ -}}
{{- define "outrigger.webhookSelectors" -}}
{{- $default := include "outrigger.isDefault" . -}}
- {name: pod-revision, namespace: [monitored], pod: [revision]}
{{- if not .Values.injector.compat.istio }}
- {name: namespace-revision, namespace: [monitored, revision], pod: [noRevision]}
{{- if $default }}
- {name: namespace, namespace: [monitored, noRevision], pod: [noRevision]}
{{- end }}
{{- else }}
- {name: namespace-revision, namespace: [monitored, revision], pod: [noRevision, noIstioRevision]}
- {name: pod-istio-revision, namespace: [monitored], pod: [noRevision, istioRevision]}
- {name: namespace-istio-revision, namespace: [monitored, noRevision, noInjection, istioRevision], pod: [noRevision, noIstioRevision]}
{{- if $default }}
- {name: namespace, namespace: [monitored, noRevision, noInjection, noIstioRevision], pod: [noRevision, noIstioRevision]}
- {name: namespace-injection, namespace: [monitored, noRevision, injection], pod: [noRevision, noIstioRevision]}
{{- end }}
{{- /* Namespaces with Istio's istio-injection=enabled. */}}
- {name: pod-revision.enabled, namespace: [notMonitored, injectionEnabled], pod: [revision]}
- {name: pod-istio-revision.enabled, namespace: [notMonitored, injectionEnabled], pod: [noRevision, istioRevision]}
- {name: namespace-revision.enabled, namespace: [notMonitored, injectionEnabled, revision], pod: [noRevision, noIstioRevision]}
{{- if $default }}
- {name: namespace.enabled, namespace: [notMonitored, injectionEnabled, noRevision], pod: [noRevision, noIstioRevision]}
{{- end }}
{{- /* Namespaces and pods that choose this revision by Istio's istio.io/rev. */}}
- {name: pod-istio-revision.istio, namespace: [notMonitored, noInjection], pod: [noRevision, istioRevision]}
- {name: pod-both-revisions.istio, namespace: [notMonitored, noInjection, otherIstioRevision], pod: [revision, noInject, istioRevision]}
- {name: pod-revision.istio, namespace: [notMonitored, noInjection, istioRevision], pod: [revision]}
- {name: namespace-both-revisions.istio, namespace: [notMonitored, noInjection, istioRevision, revision], pod: [noRevision, noIstioRevision]}
- {name: namespace-istio-revision.istio, namespace: [notMonitored, noInjection, istioRevision, noRevision], pod: [noRevision, noIstioRevision]}
{{- /* Pods with Istio's sidecar.istio.io/inject=true. */}}
- {name: pod-revision.asked, namespace: [notMonitored, noInjection, otherIstioRevision], pod: [revision, inject]}
- {name: namespace-revision.asked, namespace: [notMonitored, noInjection, otherIstioRevision, revision], pod: [noRevision, noIstioRevision, inject]}
{{- if $default }}
- {name: pod.asked, namespace: [notMonitored, noInjection, noIstioRevision, noRevision], pod: [noRevision, noIstioRevision, inject]}
{{- end }}
{{- end }}
{{- end }}
