{{- define "outrigger.namespace" -}}
{{ .Values.osm.osmNamespace | default .Release.Namespace }}
{{- end }}

{{- /* "true" for the release that is the whole control plane, else "". */ -}}
{{- define "outrigger.isDefault" -}}
{{ if eq .Values.revision "default" }}true{{ end }}
{{- end }}

{{- define "outrigger.injectorName" -}}
outrigger-injector{{ if not (include "outrigger.isDefault" .) }}-{{ .Values.revision }}{{ end }}
{{- end }}

{{- /* The suffix of what has no namespace, so that meshes of one cluster do not
take each other's objects. A mesh's name may hold what theirs may not. */ -}}
{{- define "outrigger.meshSuffix" -}}
{{ if ne .Values.osm.meshName "osm" }}.{{ .Values.osm.meshName | lower | replace "_" "-" }}{{ end }}
{{- end }}

{{- define "outrigger.webhookConfigName" -}}
{{- with .Values.osm.webhookConfigNamePrefix -}}
{{ . }}-{{ $.Values.osm.meshName | lower | replace "_" "-" }}{{ if not (include "outrigger.isDefault" $) }}-{{ $.Values.revision }}{{ end }}
{{- else -}}
{{ include "outrigger.injectorName" . }}{{ include "outrigger.meshSuffix" . }}
{{- end }}
{{- end }}

{{- define "outrigger.labels" -}}
app.kubernetes.io/name: outrigger
app.kubernetes.io/instance: {{ .Values.osm.meshName | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "outrigger.image" -}}
{{- $image := .root.Values.osm.image -}}
{{ $image.registry }}/{{ get $image.name .name }}
{{- with get $image.digest .name }}@{{ . }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}
