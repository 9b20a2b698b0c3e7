{{- /* The ports that serve proxies, as a map of names to numbers: Envoy's, and those that
the values name for other classes. */ -}}
{{- define "outrigger.proxyPorts" -}}
{{- $ports := dict "ads" 15128 -}}
{{- range $i, $driver := .Values.osm.sidecarDrivers -}}
{{- if $driver.proxyServerPort -}}
{{- $_ := set $ports (ternary "ads" (print "proxies-" $i) (eq (lower $driver.sidecarName) "envoy")) (int $driver.proxyServerPort) -}}
{{- end -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end }}

{{- /* The Secrets of the control plane's namespace that the controller reads, and makes
if they are missing, as a YAML list. */ -}}
{{- define "outrigger.rootSecrets" -}}
{{- $names := list .Values.osm.caBundleSecretName "outrigger-ca-state" -}}
{{- if eq .Values.osm.certificateProvider.kind "vault" -}}
{{- $names = append $names (include "outrigger.vaultSecretName" .) -}}
{{- end -}}
{{- concat $names .Values.osm.certificateProvider.secretNames | uniq | toYaml -}}
{{- end }}

{{- define "outrigger.vaultSecretName" -}}
{{ .Values.osm.vault.secret.name | default "outrigger-vault-token" }}
{{- end }}

{{- /* Whether cert-manager may be asked to sign: by the values, or by a
MeshRootCertificate of the user's own. */ -}}
{{- define "outrigger.usesCertManager" -}}
{{ if or (eq .Values.osm.certificateProvider.kind "cert-manager") .Values.osm.featureFlags.enableMeshRootCertificate }}true{{ end }}
{{- end }}

{{- /* Refuses values that name a provider without what it needs. */ -}}
{{- define "outrigger.checkRoot" -}}
{{- with .Values.osm -}}
{{- if eq .certificateProvider.kind "vault" -}}
{{- if not .vault.host -}}
{{- fail "osm.certificateProvider.kind: vault needs osm.vault.host" -}}
{{- end -}}
{{- if not (or .vault.token .vault.secret.name) -}}
{{- fail "osm.certificateProvider.kind: vault needs osm.vault.token, or the Secret that holds it in osm.vault.secret" -}}
{{- end -}}
{{- if and .vault.token .vault.secret.name -}}
{{- fail "osm.vault.token and osm.vault.secret both name the token; set one" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
