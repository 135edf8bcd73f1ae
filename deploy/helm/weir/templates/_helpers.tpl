{{/* Name of all objects. */}}
{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 55 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 55 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Immutable selector of the pods. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of the pod of "helm test". They differ from the selector, so that no Service sends clients to it. */}}
{{- define "weir.testLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "weir.secret" -}}
{{ .Values.secret.existing | default (include "weir.name" .) }}
{{- end }}

{{- define "weir.serviceAccount" -}}
{{ .Values.serviceAccount.existing | default (include "weir.name" .) }}
{{- end }}

{{/* Port of an address. */}}
{{- define "weir.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{/* Constraints between values, checked before rendering. */}}
{{- define "weir.check" -}}
{{- $c := .Values.config }}
{{- if not $c.upstream.url }}{{ fail "config.upstream.url: required: the base URL of the upstream" }}{{ end }}
{{- if regexMatch "^(127\\.|localhost|\\[::1)" $c.admin.listen }}{{ fail "config.admin.listen: a loopback address is unreachable for probes and Prometheus; use :9090" }}{{ end }}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
{{- if and $several (hasPrefix "memory:" $c.store.url) }}
{{- fail "config.store.url: several replicas need Redis; name one, or set replicas to 1" }}
{{- end }}
{{- if and .Values.secret.existing .Values.secret.values }}{{ fail "secret: set existing or values, not both" }}{{ end }}
{{- if not (or .Values.secret.existing .Values.secret.values.admin) }}
{{- fail "secret.values.admin: token of the admin listener is missing; set it, or secret.existing with a key admin" }}
{{- end }}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) }}{{ fail "autoscaling.maxReplicas: less than minReplicas" }}{{ end }}
{{- end }}
