{{- /* "true" if a webhook injects pods, and if admission policies do; otherwise "". */ -}}
{{- define "outrigger.runsInjector" -}}
{{ if and .Values.injector.enabled (ne .Values.injector.mode "policy") }}true{{ end }}
{{- end }}
{{- define "outrigger.usesPolicies" -}}
{{ if and .Values.injector.enabled (ne .Values.injector.mode "webhook") }}true{{ end }}
{{- end }}

{{- /* Leaves out pods that an admission policy has injected, unless they have probes that it did not
see. A policy leaves its name in the status annotation. */ -}}
{{- define "outrigger.notByPolicy" -}}
!has(object.metadata.annotations) || !("openservicemesh.io/sidecar-status" in object.metadata.annotations) ||
!object.metadata.annotations["openservicemesh.io/sidecar-status"].contains("\"policy\":\"") ||
((has(object.spec.initContainers) ? object.spec.initContainers : []) + object.spec.containers).exists(c, c.name != "outrigger-proxy" &&
(["livenessProbe", "readinessProbe", "startupProbe"].exists(f, f in c && ("grpc" in c[f] ||
"tcpSocket" in c[f] && (type(c[f].tcpSocket.port) == int || "ports" in c && c.ports.exists(p, "name" in p && p.name == c[f].tcpSocket.port)) ||
"httpGet" in c[f] && c[f].httpGet.port != 15901 && (type(c[f].httpGet.port) == int || "ports" in c && c.ports.exists(p, "name" in p && p.name == c[f].httpGet.port)))) ||
"lifecycle" in c && ["postStart", "preStop"].exists(f, f in c.lifecycle && "httpGet" in c.lifecycle[f] && c.lifecycle[f].httpGet.port != 15901 &&
(type(c.lifecycle[f].httpGet.port) == int || "ports" in c && c.ports.exists(p, "name" in p && p.name == c.lifecycle[f].httpGet.port)))))
{{- end }}

{{- define "outrigger.caSecretName" -}}
{{ .Values.injector.certificate.caSecretName | default (print (include "outrigger.injectorName" .) "-ca") }}
{{- end }}

{{- /* Empty flags are set explicitly, since their defaults are not empty. The log level
has no flag: it follows the MeshConfig. */ -}}
{{- define "outrigger.injectorArgs" -}}
{{- $name := include "outrigger.injectorName" . -}}
{{- $injector := .Values.injector -}}
- injector
- --mesh-name={{ .Values.osm.meshName }}
- --mesh-namespace={{ include "outrigger.namespace" . }}
- --mesh-config=osm-mesh-config
- --revision={{ .Values.revision }}
- --service={{ $name }}
- --listen=:9090
- --health-listen=:9091
{{- if $injector.mountConfig }}
- --template-dir=/var/lib/outrigger/inject
- --template-configmap=
{{- else }}
- --template-dir=
- --template-configmap={{ $name }}
{{- end }}
{{- if $injector.patchCABundle }}
- --webhook-config={{ include "outrigger.webhookConfigName" . }}
{{- else }}
- --webhook-config=
{{- end }}
{{- with $injector.certificate }}
{{- if eq .mode "ownCA" }}
- --certificate=own-ca
- --ca-secret={{ include "outrigger.caSecretName" $ }}
{{- else if eq .mode "secret" }}
- --certificate=secret
- --certificate-secret={{ .secretName }}
{{- else }}
- --certificate=files
- --cert-dir=/etc/outrigger/certs
{{- end }}
{{- end }}
{{- end }}

{{- define "outrigger.injectorVolumes" -}}
{{- if .Values.injector.mountConfig }}
/var/lib/outrigger/inject: {configMap: {name: {{ include "outrigger.injectorName" . }}}}
{{- end }}
{{- with .Values.injector.certificate.volume }}
/etc/outrigger/certs: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "outrigger.injectionConfig" -}}
{{- $config := pick .Values.injector "policy" "defaultTemplates" "templates" "neverInjectSelector"
  "alwaysInjectSelector" "injectedAnnotations" "holdApplicationUntilReady" "compat" -}}
{{- $_ := set $config "nativeSidecars" (toString .Values.injector.nativeSidecars) -}}
{{- $_ := set $config "imagePullPolicy" .Values.osm.image.pullPolicy -}}
{{- $_ := set $config "initContainerImage" (include "outrigger.image" (dict "root" . "name" "outriggerInit")) -}}
{{- /* Left out if empty: injectors older than revision tags reject the field. */ -}}
{{- with .Values.revisionTags -}}
{{- $_ := set $config "revisionTags" . -}}
{{- end -}}
{{- if .Values.cni.enabled -}}
{{- $_ := set $config "cni" true -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{- /* Rejects contradictory values. */ -}}
{{- define "outrigger.checkInjector" -}}
{{- if has "default" .Values.revisionTags -}}
{{- fail "revisionTags: default is the name of a revision; choose another" -}}
{{- end -}}
{{- if include "outrigger.usesPolicies" . -}}
{{- if not (include "outrigger.isDefault" .) -}}
{{- fail (printf "injector.mode: %s is for the revision default, whose controller makes the admission policies; another revision needs injector.mode: webhook" .Values.injector.mode) -}}
{{- end -}}
{{- if semverCompare "<1.36-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "injector.mode: %s needs Kubernetes 1.36 or newer, and this is %s; set injector.mode: webhook (helm template: give the cluster's version with --kube-version)" .Values.injector.mode .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if eq (toString .Values.injector.nativeSidecars) "false" -}}
{{- fail (printf "injector.mode: %s makes native sidecars only; leave injector.nativeSidecars: false out, or set injector.mode: webhook" .Values.injector.mode) -}}
{{- end -}}
{{- if and .Values.injector.compat.istio (eq .Values.injector.mode "policy") -}}
{{- fail "injector.compat.istio needs the webhook; set injector.mode: both or webhook" -}}
{{- end -}}
{{- end -}}
{{- with .Values.injector -}}
{{- if and .patchCABundle (or .caBundle .injectCAFrom) -}}
{{- fail "injector.caBundle and injector.injectCAFrom are for injector.patchCABundle: false, or the injector would overwrite them" -}}
{{- end -}}
{{- if and .caBundle .injectCAFrom -}}
{{- fail "injector.caBundle and injector.injectCAFrom both name the webhook's CA; set one" -}}
{{- end -}}
{{- with .certificate -}}
{{- if and .caSecretName (ne .mode "ownCA") -}}
{{- fail "injector.certificate.caSecretName goes with injector.certificate.mode: ownCA" -}}
{{- end -}}
{{- if ne (eq .mode "secret") (not (empty .secretName)) -}}
{{- fail "injector.certificate.mode: secret and injector.certificate.secretName go together; set both or neither" -}}
{{- end -}}
{{- if and (eq .mode "files") (not .volume) -}}
{{- fail "injector.certificate.mode: files needs injector.certificate.volume, for example {secret: {secretName: webhook}}" -}}
{{- end -}}
{{- if and .volume (ne .mode "files") -}}
{{- fail "injector.certificate.volume goes with injector.certificate.mode: files" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
