{{- define "sweeperd.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sweeperd.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sweeperd.labels" -}}
{{ include "sweeperd.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.extra.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sweeperd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "sweeperd.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "sweeperd.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/*
The settings file. The page is served under the names of the Services. Helm reads each number as a fraction, and sweeperd
takes no 500.0 for a count.
*/}}
{{- define "sweeperd.config" -}}
{{- $name := include "sweeperd.fullname" . -}}
{{- $hosts := list $name (printf "%s-sweep" $name) (printf "%s-deliver" $name) -}}
{{- $toml := toToml (mustMergeOverwrite (dict "http" (dict "hosts" $hosts)) (deepCopy .Values.config)) -}}
{{- regexReplaceAll `(?m)^(\s*(?:[\w-]+|"(?:[^"\\]|\\.)*") = -?\d+)\.0$` $toml "${1}" -}}
{{- end -}}

{{/* Its name ends in a hash of the content, so changed settings are rolled out like a new image. */}}
{{- define "sweeperd.configMap" -}}
{{ include "sweeperd.fullname" . }}-{{ include "sweeperd.config" . | sha256sum | trunc 10 }}
{{- end -}}

{{/* Not empty if Redis's address is the file `redis-url` of the Secret. */}}
{{- define "sweeperd.urlOfSecret" -}}
{{- $names := list -}}
{{- range .Values.env }}{{ $names = append $names .name }}{{ end -}}
{{- if not (or (has "SWEEPERD_REDIS__URL" $names) .Values.config.shards (dig "redis" "url" "" .Values.config)) }}yes{{ end -}}
{{- end -}}

{{- define "sweeperd.env" -}}
{{- if include "sweeperd.urlOfSecret" .root }}
- name: SWEEPERD_REDIS__URL
  value: file:/run/secrets/sweeperd/redis-url
{{- end }}
{{- with .root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- with .role }}
- name: SWEEPERD_ROLE
  value: {{ . }}
{{- end }}
{{- end -}}

{{/* What all containers have: `sweeperd`, with these arguments. */}}
{{- define "sweeperd.container" -}}
name: sweeperd
image: {{ include "sweeperd.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
  {{- toYaml .args | nindent 2 }}
{{- with include "sweeperd.env" . }}
env:
  {{- . | nindent 2 }}
{{- end }}
{{- with .root.Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
volumeMounts:
  - name: config
    mountPath: /etc/sweeperd
    readOnly: true
  - name: secrets
    mountPath: /run/secrets/sweeperd
    readOnly: true
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What all pods have. `container`: a map. */}}
{{- define "sweeperd.pod" -}}
serviceAccountName: {{ include "sweeperd.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
containers:
  - {{- toYaml (mustMergeOverwrite .container (deepCopy .root.Values.extra.container)) | nindent 4 }}
volumes:
  - name: config
    configMap:
      name: {{ include "sweeperd.configMap" .root }}
  - name: secrets
    secret:
      secretName: {{ .root.Values.existingSecret | default (include "sweeperd.fullname" .root) }}
      defaultMode: 0440
      {{- /* Settings without secrets need no Secret. */}}
      {{- $named := contains "/run/secrets/sweeperd/" (toJson .root.Values.config) }}
      {{- if not (or .root.Values.existingSecret $named (include "sweeperd.urlOfSecret" .root)) }}
      optional: true
      {{- end }}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The metadata of all pods, beside the labels of a role. */}}
{{- define "sweeperd.podMetadata" -}}
{{- with .Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- include "sweeperd.selector" . | nindent 2 }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
