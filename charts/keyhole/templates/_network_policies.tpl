{{/* Peers of NetworkPolicies. */}}

{{- define "keyhole.networkPolicy.release" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: keyhole
    app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* dict root, components */}}
{{- define "keyhole.networkPolicy.components" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: keyhole
    app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: {{ toJson .components }}}
{{- end }}

{{/* The rule for who scrapes the port "metrics". */}}
{{- define "keyhole.networkPolicy.monitoring" -}}
- ports: [{port: metrics}]
  from:
    {{- if .Values.networkPolicy.monitoring }}
    {{- toYaml .Values.networkPolicy.monitoring | nindent 4 }}
    {{- else }}
    - namespaceSelector: {}
    {{- end }}
{{- end }}
