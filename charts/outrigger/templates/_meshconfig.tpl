{{- /* The spec of the MeshConfig. */ -}}
{{- define "outrigger.meshConfigSpec" -}}
{{- $spec := include "outrigger.meshConfigValues" . | fromYaml -}}
{{- include "outrigger.onlySet" (mergeOverwrite $spec .Values.meshConfig.spec) -}}
{{- end }}

{{- /* Removes null, "", [], {} and 0 from a map: fields that are not in the MeshConfig
have their defaults, while fields that are may be reported as having no effect. false
stays, because it is not the default of every field, and so does a drain of 0 seconds. */ -}}
{{- define "outrigger.onlySet" -}}
{{- $set := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $value = include "outrigger.onlySet" $value | fromYaml -}}
{{- end -}}
{{- if or $value (kindIs "bool" $value) (and (eq $key "drainSeconds") (not (kindIs "invalid" $value))) -}}
{{- $_ := set $set $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $set -}}
{{- end }}

{{- define "outrigger.meshConfigValues" -}}
{{- with .Values.osm -}}
sidecar:
  sidecarClass: {{ toJson .sidecarClass }}
  sidecarImage: {{ toJson .sidecarImage }}
  sidecarWindowsImage: {{ toJson .sidecarWindowsImage }}
  sidecarDrivers: {{ toJson .sidecarDrivers }}
  logLevel: {{ coalesce .sidecarLogLevel .envoyLogLevel "error" }}
  enablePrivilegedInitContainer: {{ toJson .enablePrivilegedInitContainer }}
  maxDataPlaneConnections: {{ toJson .maxDataPlaneConnections }}
  configResyncInterval: {{ toJson .configResyncInterval }}
  drainSeconds: {{ toJson $.Values.sidecar.drainSeconds }}
  preStopSeconds: {{ toJson $.Values.sidecar.preStopSeconds }}
  concurrency: {{ toJson .sidecarConcurrency }}
  resources: {{ toJson $.Values.sidecar.resources }}
  sidecarTimeout: {{ toJson .sidecarTimeout }}
  localProxyMode: {{ toJson .localProxyMode }}
  localDNSProxy: {{ toJson .localDNSProxy }}
traffic:
  enableEgress: {{ toJson .enableEgress }}
  enablePermissiveTrafficPolicyMode: {{ toJson .enablePermissiveTrafficPolicy }}
  interceptionMode: {{ toJson .trafficInterceptionMode }}
  http1PerRequestLoadBalancing: {{ toJson .http1PerRequestLoadBalancing }}
  http2PerRequestLoadBalancing: {{ toJson .http2PerRequestLoadBalancing }}
  outboundIPRangeExclusionList: {{ toJson .outboundIPRangeExclusionList }}
  outboundIPRangeInclusionList: {{ toJson .outboundIPRangeInclusionList }}
  outboundPortExclusionList: {{ toJson .outboundPortExclusionList }}
  inboundPortExclusionList: {{ toJson .inboundPortExclusionList }}
  networkInterfaceExclusionList: {{ toJson .networkInterfaceExclusionList }}
  {{- if .enableForwardedFor }}
  enableForwardedFor: true
  {{- end }}
  connectTimeout: {{ toJson .connectTimeout }}
observability:
  osmLogLevel: {{ toJson .controllerLogLevel }}
  enableDebugServer: {{ toJson .enableDebugServer }}
  {{- with .accessLog }}
  accessLog: {{ toJson . }}
  {{- end }}
  {{- if .tracing.enable }}
  tracing: {{ pick .tracing "enable" "protocol" "address" "port" "endpoint" "sampledFraction" | toJson }}
  {{- end }}
  {{- if .remoteLogging.enable }}
  remoteLogging: {{ toJson .remoteLogging }}
  {{- end }}
certificate:
  trustDomain: {{ toJson .trustDomain }}
  serviceCertValidityDuration: {{ toJson .certificateProvider.serviceCertValidityDuration }}
  certKeyBitSize: {{ toJson .certificateProvider.certKeyBitSize }}
featureFlags: {{ omit .featureFlags "enableMeshRootCertificate" | toJson }}
pluginChains: {{ toJson .pluginChains }}
repoServer: {{ pick .repoServer "ipaddr" "codebase" | toJson }}
{{- end }}
{{- end }}
