{{- /* A Deployment of the control plane. It is given a dict:
  root     the chart's context
  name     of the Deployment, its ServiceAccount and its pods' label app
  values   osm.injector or osm.osmController
  args     of the program
  ports    more ports of the container, a map of names to numbers
  volumes  a map of paths to volume sources, mounted read-only
The program is the image's entrypoint, whose name vendors may choose. */ -}}
{{- define "outrigger.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ include "outrigger.namespace" .root | quote }}
  labels:
    app: {{ .name }}
    {{- include "outrigger.labels" .root | nindent 4 }}
spec:
  {{- if not .values.autoScale.enable }}
  replicas: {{ .values.replicaCount }}
  {{- end }}
  selector:
    matchLabels: {app: {{ .name }}}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  template:
    metadata:
      labels:
        {{- $own := include "outrigger.labels" .root | fromYaml | merge (dict "app" .name) }}
        {{- merge $own .values.podLabels | toYaml | nindent 8 }}
      annotations:
        {{- merge (dict "prometheus.io/scrape" "true" "prometheus.io/port" "9091") .values.podAnnotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ .name }}
      automountServiceAccountToken: true
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      {{- with .root.Values.osm.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      nodeSelector:
        {{- merge (dict "kubernetes.io/os" "linux") (.values.nodeSelector | default dict) | toYaml | nindent 8 }}
      {{- with concat .root.Values.osm.controlPlaneTolerations .values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        - {{ merge (dict) . (dict "labelSelector" (dict "matchLabels" (dict "app" $.name))) | toYaml | nindent 10 | trim }}
        {{- end }}
      {{- end }}
      affinity:
        {{- with .values.affinity }}
        {{- /* Open Service Mesh's values file names its own pods here. */}}
        {{- regexReplaceAll "\\bosm-(controller|injector)\\b" (toYaml .) "outrigger-${1}" | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {app: {{ .name }}}
        {{- end }}
      containers:
        - name: outrigger
          image: {{ include "outrigger.image" (dict "root" .root "name" "outrigger") | quote }}
          imagePullPolicy: {{ .root.Values.osm.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          env:
            - name: OUTRIGGER_INIT_IMAGE
              value: {{ include "outrigger.image" (dict "root" .root "name" "outriggerInit") | quote }}
          ports:
            - {name: health, containerPort: 9091, protocol: TCP}
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}, protocol: TCP}
            {{- end }}
          livenessProbe:
            httpGet: {path: /health/alive, port: health}
            initialDelaySeconds: 5
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: /health/ready, port: health}
            periodSeconds: 5
            timeoutSeconds: 5
          resources:
            {{- toYaml .values.resource | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          {{- with .volumes }}
          volumeMounts:
            {{- range $path, $_ := . }}
            - {name: {{ base $path }}, mountPath: {{ $path }}, readOnly: true}
            {{- end }}
          {{- end }}
      {{- with .volumes }}
      volumes:
        {{- range $path, $source := . }}
        - {{ merge (dict "name" (base $path)) $source | toYaml | nindent 10 | trim }}
        {{- end }}
      {{- end }}
{{- end }}

{{- /* The PodDisruptionBudget and the autoscaler, for the same dict. */ -}}
{{- define "outrigger.scaling" -}}
{{- if .values.enablePodDisruptionBudget }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ include "outrigger.namespace" .root | quote }}
  labels:
    {{- include "outrigger.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app: {{ .name }}}
{{- end }}
{{- with .values.autoScale }}
{{- if .enable }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $.name }}
  namespace: {{ include "outrigger.namespace" $.root | quote }}
  labels:
    {{- include "outrigger.labels" $.root | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $.name }}}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    {{- range $resource := list "cpu" "memory" }}
    - type: Resource
      resource:
        name: {{ $resource }}
        target:
          type: Utilization
          averageUtilization: {{ (get $.values.autoScale $resource).targetAverageUtilization }}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}
