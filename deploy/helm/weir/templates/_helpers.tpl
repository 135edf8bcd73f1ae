{{/* The name of everything. */}}
{{- define "weir.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 55 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 55 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What finds the pods; it never changes. */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
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

{{/* The number behind the last colon of an address. */}}
{{- define "weir.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{/* What must hold between values, said before anything is made of them. */}}
{{- define "weir.check" -}}
{{- $c := .Values.config }}
{{- if not $c.upstream.url }}{{ fail "config.upstream.url: required: the base URL of the API" }}{{ end }}
{{- if regexMatch "^(127\\.|localhost|\\[::1)" $c.admin.listen }}{{ fail "config.admin.listen: on loopback neither the kubelet's probes nor Prometheus reach it" }}{{ end }}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
{{- if and $several (hasPrefix "memory:" $c.store.url) }}
{{- fail "config.store.url: replicas with a ledger each would spend every budget once more: name a Redis, or set replicas to 1" }}
{{- end }}
{{- if and .Values.secret.existing .Values.secret.values }}{{ fail "secret: set existing or values, not both" }}{{ end }}
{{- if not (or .Values.secret.existing .Values.secret.values.admin) }}
{{- fail "secret.values.admin: required, or secret.existing with a key admin: the token of the admin listener" }}
{{- end }}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) }}{{ fail "autoscaling.maxReplicas: less than minReplicas" }}{{ end }}
{{- end }}
