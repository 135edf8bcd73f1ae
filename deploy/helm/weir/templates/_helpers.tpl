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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of an object with labels of its own, which take precedence: (list $ LABELS). */}}
{{- define "weir.labelsWith" -}}
{{ merge (dict) (index . 1 | default dict) (include "weir.labels" (index . 0) | fromYaml) | toYaml }}
{{- end }}

{{- define "weir.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Name of the port for clients. */}}
{{- define "weir.scheme" -}}
{{ ternary "https" "http" (not (empty .Values.config.tls)) }}
{{- end }}

{{/* Port of the Service for clients. */}}
{{- define "weir.servicePort" -}}
{{ .Values.service.port | default (ternary 443 80 (not (empty .Values.config.tls))) }}
{{- end }}

{{/* Nine tenths of the memory limit in bytes: the rest is for memory that Go does not count. */}}
{{- define "weir.memoryLimit" -}}
{{- $limit := toString .Values.resources.limits.memory }}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 }}
{{- if not (regexMatch "^[0-9]+([kMG]|[KMG]i)?$" $limit) }}{{ fail "resources.limits.memory: use an integer with the unit Mi or Gi" }}{{ end }}
{{- div (mul (regexFind "^[0-9]+" $limit | int64) (get $units (regexFind "[A-Za-z]*$" $limit) | int64) 9) 10 }}
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
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}{{ fail "httpRoute.parentRefs: name a Gateway" }}{{ end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}{{ fail "ingress.hosts: name a host" }}{{ end }}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) }}{{ fail "autoscaling.maxReplicas: less than minReplicas" }}{{ end }}
{{- end }}
