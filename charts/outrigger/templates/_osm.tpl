{{- /* Converts values of Open Service Mesh up to v0.11, which were under OpenServiceMesh and
had one target per autoscaler. Every template includes this first, so that the rest reads
only the new form. Empty values are ignored. */ -}}
{{- define "outrigger.oldValues" -}}
{{- $_ := include "outrigger.onlySet" (.Values.OpenServiceMesh | default dict) | fromYaml | mergeOverwrite .Values.osm -}}
{{- range $scale := list .Values.osm.injector.autoScale .Values.osm.osmController.autoScale -}}
{{- with $scale.targetAverageUtilization -}}
{{- $_ := set $scale.cpu "targetAverageUtilization" . -}}
{{- $_ := set $scale.memory "targetAverageUtilization" . -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Values of Open Service Mesh and osm-edge that have no effect, with the reasons. */ -}}
{{- define "outrigger.inertValues" -}}
- why: Outrigger does not include this program; install it separately
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
- why: images of Open Service Mesh and osm-edge do not contain Outrigger; its images are osm.image.name.outrigger and osm.image.name.outriggerInit
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
- why: the injector maintains the caBundle of its webhook configuration, and nothing else is reconciled
  values: [osm.enableReconciler]
- why: meshes with different names can share a cluster
  values: [osm.enforceSingleMesh]
- why: Outrigger does not join meshes of several clusters
  values: [osm.multicluster]
- why: nodes are selected by osm.injector.nodeSelector and osm.osmController.nodeSelector
  values: [osm.nodeSelector]
- why: the webhook configuration has Outrigger's own name, so that Open Service Mesh's can exist beside it
  values: [osm.webhookConfigNamePrefix]
- why: a sidecar connects to its application at the pod's address in either mode, and cannot reach a port that is open only on loopback
  values: [osm.localProxyMode]
- why: every certificate carries a SPIFFE ID
  values: [osm.featureFlags.enableSPIFFE]
- why: IngressBackends select HTTPS for each backend
  values: [osm.useHTTPSIngress]
- why: Kubernetes has no PodSecurityPolicies any more
  values: [osm.pspEnabled]
- why: a class speaks mTLS unless its entry of osm.sidecarDrivers says otherwise
  values: [osm.sidecarDisabledMTLS]
- why: Open Service Mesh v0.10 renamed it to osm.certificateProvider.serviceCertValidityDuration
  values: [osm.serviceCertValidityDuration]
- why: Open Service Mesh v0.10 renamed it to osm.certificateProvider.kind
  values: [osm.certificateManager]
{{- end }}

{{- /* The warnings for the user, one line each, as a YAML list. */ -}}
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
- {{ printf "osm.image.registry is %s, which has no images of Outrigger; remove it and osm.image.tag, or set your own" .Values.osm.image.registry | quote }}
{{- end }}
{{- if not .Values.meshConfig.create }}
- "meshConfig.create is false: the values for the MeshConfig have no effect; edit the MeshConfig osm-mesh-config"
{{- end }}
{{- with .Values.injector }}
{{- if and .enabled (not (or .patchCABundle .caBundle .injectCAFrom)) }}
- "the webhook's caBundle is not set: until it is, no pod can be created in monitored namespaces"
{{- end }}
{{- end }}
{{- end }}
