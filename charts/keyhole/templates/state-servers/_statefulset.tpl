{{/* State servers in pods of their own, with what belongs to them. dict root, path (of its values), server (values), component, role, extra (env) */}}
{{- define "keyhole.stateServers" -}}
{{- $component := .component }}
{{- $path := .path }}
{{- $role := .role }}
{{- $extra := .extra }}
{{- $of := dict "root" .root "component" .component }}
{{- $root := .root }}
{{- with .server }}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $root.Release.Name }}-{{ $component }}
  labels: {{- include "keyhole.labels" $of | nindent 4 }}
spec:
  replicas: {{ .replicas }}
  serviceName: {{ $root.Release.Name }}-{{ $component }}
  # They don't wait for each other: none is ready before a job or a feed has run.
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "keyhole.selector" $of | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "keyhole.podLabels" $of | nindent 8 }}
        keyhole.dev/state-server: "true"
      {{- with .podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add (ceil .drainSeconds) 20 }}
      securityContext: {{- include "keyhole.podSecurity" $root | nindent 8 }}
      {{- include "keyhole.placement" (dict "root" $root "place" . "selector" (include "keyhole.selector" $of)) | nindent 6 }}
      containers:
        - {{- include "keyhole.stateServer" (dict "root" $root "path" $path "server" . "role" $role "extra" $extra) | nindent 10 }}
      volumes:
        - {name: state-server-tmp, emptyDir: {}}
        {{- if eq .store.volume "emptyDir" }}
        {{- include "keyhole.storeEmptyDir" . | nindent 8 }}
        {{- end }}
        {{- include "keyhole.security.volumes" (dict "root" $root "secrets" (dict "state-server" $root.Values.security.tls.secrets.stateServer)) | nindent 8 }}
  {{- if eq .store.volume "persistentClaim" }}
  volumeClaimTemplates:
    - metadata:
        name: store
        labels: {{- include "keyhole.selector" $of | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .store.storageClassName }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources: {requests: {storage: {{ include "keyhole.text" .store.size | quote }}}}
  {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $root.Release.Name }}-{{ $component }}
  labels: {{- include "keyhole.labels" $of | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "keyhole.selector" $of | nindent 4 }}
  ports:
    - {name: grpc, port: 7410}
{{- if .podDisruptionBudget.enabled }}
{{ include "keyhole.disruptionBudget" (dict "name" (printf "%s-%s" $root.Release.Name $component) "of" $of "maxUnavailable" .podDisruptionBudget.maxUnavailable "holds" true) }}
{{- end }}
{{- end }}
{{- end }}
