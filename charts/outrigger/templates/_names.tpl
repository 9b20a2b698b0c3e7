{{- define "outrigger.namespace" -}}
{{ .Values.osm.osmNamespace | default .Release.Namespace }}
{{- end }}

{{- /* "true" for the release with the complete control plane, otherwise "". */ -}}
{{- define "outrigger.isDefault" -}}
{{ if eq .Values.revision "default" }}true{{ end }}
{{- end }}

{{- define "outrigger.injectorName" -}}
outrigger-injector{{ if not (include "outrigger.isDefault" .) }}-{{ .Values.revision }}{{ end }}
{{- end }}

{{- /* The suffix of the names of cluster-scoped objects, which separates the meshes of one
cluster. A mesh's name may contain characters that the names of objects may not. */ -}}
{{- define "outrigger.meshSuffix" -}}
{{ if ne .Values.osm.meshName "osm" }}.{{ .Values.osm.meshName | lower | replace "_" "-" }}{{ end }}
{{- end }}

{{- define "outrigger.webhookConfigName" -}}
{{ include "outrigger.injectorName" . }}{{ include "outrigger.meshSuffix" . }}
{{- end }}

{{- define "outrigger.labels" -}}
app.kubernetes.io/name: outrigger
app.kubernetes.io/instance: {{ .Values.osm.meshName | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* One of Outrigger's images. It is given a dict: root is the chart's context, and name
the key below osm.image.name. A released chart has the digests of its images in its
annotations; they are used unless the values set another name or tag. */ -}}
{{- define "outrigger.image" -}}
{{- $image := .root.Values.osm.image -}}
{{- $digest := get $image.digest .name -}}
{{- $ours := dict "outrigger" "outrigger" "outriggerInit" "outrigger-init" "outriggerCNI" "outrigger-cni" -}}
{{- if and (not $digest) (not $image.tag) (eq (get $image.name .name) (get $ours .name)) -}}
{{- with .root.Chart.Annotations -}}
{{- $digest = index . (printf "digest.%s" $.name) -}}
{{- end -}}
{{- end -}}
{{ $image.registry }}/{{ get $image.name .name }}
{{- with $digest }}@{{ . }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}
