{{- /* Up to v0.11 Open Service Mesh's values were under OpenServiceMesh, and a scaler had one
target. Every template begins with this, so that the others read but one form. What a file
leaves empty there is not set. */ -}}
{{- define "outrigger.oldValues" -}}
{{- $_ := include "outrigger.onlySet" (.Values.OpenServiceMesh | default dict) | fromYaml | mergeOverwrite .Values.osm -}}
{{- range $scale := list .Values.osm.injector.autoScale .Values.osm.osmController.autoScale -}}
{{- with $scale.targetAverageUtilization -}}
{{- $_ := set $scale.cpu "targetAverageUtilization" . -}}
{{- $_ := set $scale.memory "targetAverageUtilization" . -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Values of Open Service Mesh and osm-edge that have no effect, with the reason. */ -}}
{{- define "outrigger.inertValues" -}}
- why: Outrigger brings no such program along; install it on its own
  values:
    - osm.deployPrometheus
    - osm.prometheus
    - osm.deployGrafana
    - osm.grafana
    - osm.deployJaeger
    - osm.tracing.image
    - osm.tracing.affinity
    - osm.tracing.nodeSelector
    - osm.tracing.tolerations
    - osm.enableFluentbit
    - osm.fluentBit
    - contour.enabled
    - fsm.enabled
- why: the images of Open Service Mesh and osm-edge do not run Outrigger; its own are osm.image.name.outrigger and osm.image.name.outriggerInit
  values:
    {{- range $part := list "name" "digest" }}
    {{- range $image := list "osmBootstrap" "osmCRDs" "osmController" "osmHealthcheck" "osmInjector" "osmInterceptor" "osmPreinstall" "osmSidecarInit" }}
    - osm.image.{{ $part }}.{{ $image }}
    {{- end }}
    {{- end }}
- why: Outrigger has no such pods and Jobs
  values: [osm.osmBootstrap, osm.preinstall, osm.cleanup, osm.curlImage, osm.osmInterceptor]
- why: the Pipy repository is part of the controller
  values: [osm.pipyRepoImage, osm.repoServer.image, osm.repoServer.standalone]
- why: there is no validating webhook; the API server validates by the schemas of the CRDs
  values: [osm.validatorWebhook, osm.featureFlags.enableValidatingWebhook, smi.validateTrafficTarget]
- why: the injector keeps the caBundle of its own webhook configuration right, and nothing else is reconciled
  values: [osm.enableReconciler]
- why: meshes of different names share a cluster
  values: [osm.enforceSingleMesh]
- why: Outrigger does not join meshes of several clusters
  values: [osm.multicluster]
- why: nodes are chosen by osm.injector.nodeSelector and osm.osmController.nodeSelector
  values: [osm.nodeSelector]
- why: the webhook configuration has a name of Outrigger's own, so that Open Service Mesh's can stay beside it
  values: [osm.webhookConfigNamePrefix]
- why: a sidecar reaches its application at the pod's address in either mode, and nothing that only loopback serves
  values: [osm.localProxyMode]
- why: every certificate carries a SPIFFE ID
  values: [osm.featureFlags.enableSPIFFE]
- why: IngressBackends say for each backend whether it is HTTPS
  values: [osm.useHTTPSIngress]
- why: Kubernetes has no PodSecurityPolicies any more
  values: [osm.pspEnabled]
- why: a class speaks mTLS unless its entry of osm.sidecarDrivers says otherwise
  values: [osm.sidecarDisabledMTLS]
- why: it is osm.certificateProvider.serviceCertValidityDuration since Open Service Mesh v0.10
  values: [osm.serviceCertValidityDuration]
- why: it is osm.certificateProvider.kind since Open Service Mesh v0.10
  values: [osm.certificateManager]
{{- end }}

{{- /* One line for each thing that the user should know, as a YAML list. */ -}}
{{- define "outrigger.warnings" -}}
{{- range include "outrigger.inertValues" . | fromYamlArray }}
{{- $set := list }}
{{- range $path := .values }}
{{- $value := $.Values }}
{{- range splitList "." $path }}
{{- $value = ternary (get (ternary $value dict (kindIs "map" $value)) .) "" (kindIs "map" $value) }}
{{- end }}
{{- if kindIs "map" $value }}
{{- $value = include "outrigger.onlySet" $value | fromYaml }}
{{- end }}
{{- if $value }}
{{- $set = append $set $path }}
{{- end }}
{{- end }}
{{- if $set }}
- {{ printf "%s: no effect, because %s" (join ", " $set) .why | quote }}
{{- end }}
{{- end }}
{{- if has .Values.osm.image.registry (list "openservicemesh" "flomesh") }}
- {{ printf "osm.image.registry is %s, where there are no images of Outrigger; leave it and osm.image.tag out, or name your own" .Values.osm.image.registry | quote }}
{{- end }}
{{- if not .Values.meshConfig.create }}
- "meshConfig.create is false: the values that make up the MeshConfig have no effect; edit the MeshConfig osm-mesh-config"
{{- end }}
{{- with .Values.injector }}
{{- if and .enabled (not (or .patchCABundle .caBundle .injectCAFrom)) }}
- "nothing sets the webhook's caBundle: until somebody does, no pod can be created in monitored namespaces"
{{- end }}
{{- end }}
{{- end }}
