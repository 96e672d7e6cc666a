{{/* Names, labels, images: what every object has. */}}

{{/* Of all objects but pods' templates, whose labels must not change with the chart's version: that would roll them. dict root, component, [application] */}}
{{- define "keyhole.labels" -}}
{{ include "keyhole.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "keyhole.podLabels" -}}
{{ include "keyhole.selector" . }}
{{- with .application }}
keyhole.dev/application: {{ . | quote }}
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* By which Services and controllers know their pods. dict root, component, [job], [feed] */}}
{{- define "keyhole.selector" -}}
app.kubernetes.io/name: keyhole
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .job }}
keyhole.dev/job: {{ . | quote }}
{{- end }}
{{- with .feed }}
keyhole.dev/feed: {{ . | quote }}
{{- end }}
{{- end }}

{{/* dict root, image */}}
{{- define "keyhole.image" -}}
{{- $registry := .root.Values.image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") -}}
{{- if .image.digest -}}
{{ $name }}@{{ .image.digest }}
{{- else -}}
{{ $name }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "keyhole.kafka.bootstrapServers" -}}
{{- if .Values.kafka.enabled -}}
{{ .Release.Name }}-kafka.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:9092
{{- else -}}
{{ .Values.kafka.bootstrapServers }}{{ if .Values.kafka.clientSecret }}?settings=/etc/keyhole/kafka/kafka.properties{{ end }}
{{- end -}}
{{- end }}

{{- define "keyhole.clientProxy.host" -}}
{{ .Release.Name }}-client-proxy.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* A number of values.yaml is a float to Helm, which writes large ones as 1e+06. */}}
{{- define "keyhole.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ toString . }}
{{- end -}}
{{- end }}

{{/* Other environment variables, by name. */}}
{{- define "keyhole.env" -}}
{{- range $name, $value := . }}
- name: {{ $name | quote }}
  value: {{ include "keyhole.text" $value | quote }}
{{- end }}
{{- end }}

{{/* What the chart sets, and other variables behind it, none of which may be one of those, or one that the chart leaves out
as other values say: TLS among them. dict path, own (YAML), more, prefix, [owned: without the prefix] */}}
{{- define "keyhole.ownEnv" -}}
{{- $own := dict -}}
{{- range .own | fromYamlArray -}}
{{- $_ := set $own .name true -}}
{{- end -}}
{{- $secured := list "TLS" "TLS_CERTIFICATE" "TLS_KEY" "TLS_CA" "TLS_SERVER_NAME" "TLS_CLIENT_CERTIFICATES" "PLAINTEXT" "TOKEN_FILE" "POLICY" "TOKENS" "JWKS" "ISSUER" "AUDIENCE" -}}
{{- range concat $secured (.owned | default list) -}}
{{- $_ := set $own (print $.prefix .) true -}}
{{- end -}}
{{- range $name, $_ := .more -}}
{{- if hasKey $own $name -}}
{{- fail (printf "%s has %s, which is the chart's to set: leave it out; values.yaml has a name for what may be changed" $.path $name) -}}
{{- end -}}
{{- end -}}
{{- .own | trim }}
{{- include "keyhole.env" .more }}
{{- end }}

{{/* Settings without their prefix. dict prefix, settings */}}
{{- define "keyhole.settings" -}}
{{- $prefix := .prefix -}}
{{- range $name, $value := .settings }}
- name: {{ printf "%s%s" $prefix (upper $name) | quote }}
  value: {{ include "keyhole.text" $value | quote }}
{{- end }}
{{- end }}
