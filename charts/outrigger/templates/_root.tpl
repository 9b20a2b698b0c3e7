{{- /* The ports for proxies, as a map of names to numbers: those in the values and the
defaults of Outrigger's drivers, since a pod may choose any of them. A default port that the
values give to another class is left out. */ -}}
{{- define "outrigger.proxyPorts" -}}
{{- $names := dict "envoy" "ads" "pipy" "pipy" "haproxy" "haproxy" "grpc" "grpc" -}}
{{- $ports := dict -}}
{{- $classes := dict -}}
{{- range $i, $driver := .Values.osm.sidecarDrivers -}}
{{- if $driver.proxyServerPort -}}
{{- $class := lower $driver.sidecarName -}}
{{- $number := int $driver.proxyServerPort -}}
{{- with get $classes (toString $number) -}}
{{- fail (printf "osm.sidecarDrivers: %s and %s both have the proxyServerPort %d; give each its own" . $class $number) -}}
{{- end -}}
{{- $_ := set $classes (toString $number) $class -}}
{{- $_ := set $ports (get $names $class | default (print "proxies-" $i)) $number -}}
{{- end -}}
{{- end -}}
{{- range $name, $number := dict "ads" 15128 "pipy" 6060 "haproxy" 6061 "grpc" 15130 -}}
{{- if not (or (hasKey $ports $name) (hasKey $classes (toString $number))) -}}
{{- $_ := set $ports $name $number -}}
{{- end -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end }}

{{- /* The Secrets in the control plane's namespace that the controller fills, as a YAML
list. */ -}}
{{- define "outrigger.ownSecrets" -}}
{{- list .Values.osm.caBundleSecretName "outrigger-ca-state" | toYaml -}}
{{- end }}

{{- /* The Secrets in the control plane's namespace that the controller may read, as a YAML
list. */ -}}
{{- define "outrigger.rootSecrets" -}}
{{- $names := include "outrigger.ownSecrets" . | fromYamlArray -}}
{{- if eq .Values.osm.certificateProvider.kind "vault" -}}
{{- $names = append $names (include "outrigger.vaultSecretName" .) -}}
{{- end -}}
{{- concat $names .Values.osm.certificateProvider.secretNames | uniq | toYaml -}}
{{- end }}

{{- define "outrigger.vaultSecretName" -}}
{{ .Values.osm.vault.secret.name | default "outrigger-vault-token" }}
{{- end }}

{{- /* "true" if cert-manager may sign: by the values or by the user's own
MeshRootCertificates. */ -}}
{{- define "outrigger.usesCertManager" -}}
{{ if or (eq .Values.osm.certificateProvider.kind "cert-manager") .Values.osm.featureFlags.enableMeshRootCertificate }}true{{ end }}
{{- end }}

{{- /* Rejects a provider without the values that it requires. */ -}}
{{- define "outrigger.checkRoot" -}}
{{- with .Values.osm -}}
{{- if eq .certificateProvider.kind "vault" -}}
{{- if not .vault.host -}}
{{- fail "osm.certificateProvider.kind: vault needs osm.vault.host" -}}
{{- end -}}
{{- if not (or .vault.token .vault.secret.name) -}}
{{- fail "osm.certificateProvider.kind: vault needs osm.vault.token, or its Secret in osm.vault.secret" -}}
{{- end -}}
{{- if and .vault.token .vault.secret.name -}}
{{- fail "osm.vault.token and osm.vault.secret both name the token; set one" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
