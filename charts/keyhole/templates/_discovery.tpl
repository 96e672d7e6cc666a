{{/* How components find each other, spelled as keyhole.discovery reads it. dict root, component, port */}}

{{- define "keyhole.discovery.stateServers" -}}
{{- if eq .Values.discovery.kind "static" -}}
{{ join "," .Values.discovery.servers }}
{{- else if eq .Values.discovery.kind "dns" -}}
dns:{{ .Release.Name }}-state-servers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:7410
{{- else -}}
kubernetes:7410?namespace={{ .Release.Namespace }}&selector=app.kubernetes.io/instance={{ .Release.Name }},keyhole.dev/state-server=true
{{- end -}}
{{- end }}

{{- define "keyhole.discovery.clientProxies" -}}
{{- if eq .Values.discovery.kind "kubernetes" -}}
kubernetes:7400?namespace={{ .Release.Namespace }}&selector=app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=client-proxy
{{- else -}}
dns:{{ .Release.Name }}-client-proxy-pods.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:7400
{{- end -}}
{{- end }}

{{- define "keyhole.discovery.coordinators" -}}
{{- if eq .Values.discovery.kind "kubernetes" -}}
{{- $components := list -}}
{{- if .Values.jobs -}}{{- $components = append $components "spark-driver" -}}{{- end -}}
{{- if .Values.feeds -}}{{- $components = append $components "feed" -}}{{- end -}}
{{- $found := list -}}
{{- range $components -}}
{{- $found = append $found (printf "kubernetes:7430?namespace=%s&selector=app.kubernetes.io/instance=%s,app.kubernetes.io/component=%s" $.Release.Namespace $.Release.Name .) -}}
{{- end -}}
{{ join "," $found }}
{{- else -}}
{{- $names := list -}}
{{- range .Values.feeds -}}
{{- $names = append $names (printf "dns:%s-%s-feed.%s.svc.%s:7430" $.Release.Name .name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- range .Values.jobs -}}
{{- $names = append $names (printf "dns:%s-%s-driver.%s.svc.%s:7430" $.Release.Name .name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{ join "," $names }}
{{- end -}}
{{- end }}

{{/* Those that a feed, or a job without sidecars, gives key groups to. By DNS, also where others list pods: a feed's image has no client for that, and its pod no rights. */}}
{{- define "keyhole.discovery.givenServers" -}}
{{- if eq .Values.discovery.kind "static" -}}
{{ join "," .Values.discovery.servers }}
{{- else -}}
dns:{{ .Release.Name }}-state-server{{ ternary "" "s" .Values.stateServers.enabled }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:7410
{{- end -}}
{{- end }}
