{{/* What the specs of all pods share. */}}

{{/* As the restricted Pod Security Standard wants it; 185 is the user of Spark's own images. */}}
{{- define "keyhole.podSecurity" -}}
runAsNonRoot: true
runAsUser: 185
runAsGroup: 185
fsGroup: 185
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "keyhole.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where a pod may run, and how it asks for names there. dict root, place, selector */}}
{{- define "keyhole.placement" -}}
{{- with .root.Values.dnsOptions }}
dnsConfig:
  options:
    {{- range $name, $value := . }}
    - name: {{ $name | quote }}
      {{- with $value }}
      value: {{ . | quote }}
      {{- end }}
    {{- end }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .place.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .place.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if hasKey .place "topologySpreadConstraints" }}
topologySpreadConstraints:
{{- if .place.topologySpreadConstraints }}
  {{- toYaml .place.topologySpreadConstraints | nindent 2 }}
{{- else }}
  {{- $selector := .selector }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Health by gRPC. Startup and liveness ask whether the loop turns: one that restores is not ready, but well; and a
sidecar that waited for its key groups would hold its executor up, whose job gives them out. dict port */}}
{{- define "keyhole.grpcProbes" -}}
{{- if .root.Values.security.tls.enabled }}
{{- /* The kubelet speaks gRPC without TLS only. A process each time: less often, and with the time that a process takes to
begin on a node whose cores are all busy. What is slow then must not be ended, nor taken from its Service. */}}
{{- $command := list "python" "-m" "keyhole.rpc.health_check" .component }}
startupProbe:
  exec: {command: {{ append $command "--alive" | toJson }}}
  periodSeconds: 5
  timeoutSeconds: 60
  failureThreshold: 60
readinessProbe:
  exec: {command: {{ $command | toJson }}}
  periodSeconds: 10
  timeoutSeconds: 60
  failureThreshold: 2
livenessProbe:
  exec: {command: {{ append $command "--alive" | toJson }}}
  periodSeconds: 30
  timeoutSeconds: 60
  failureThreshold: 3
{{- else }}
startupProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
readinessProbe:
  grpc: {port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  grpc: {port: {{ .port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}
{{- end }}

{{/* The container of a state server, as sidecar and by itself. dict root, path (of its values), server (values), role, extra (env) */}}
{{- define "keyhole.stateServer" -}}
name: state-server
image: {{ include "keyhole.image" (dict "root" .root "image" .root.Values.images.stateServer) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
env: {{- include "keyhole.ownEnv" (dict "path" (printf "%s.env" .path) "own" (include "keyhole.stateServer.env" .) "more" .server.env "prefix" "KEYHOLE_STATE_SERVER_" "owned" (list "DIRECTORY" "APPLICATIONS" "REPLICA_GROUP" "LOOKUPS")) | nindent 2 }}
ports:
  - {name: grpc, containerPort: 7410}
  - {name: metrics, containerPort: 7411}
  {{- if .server.lookupPort }}
  - {name: lookups, containerPort: 7412}
  {{- end }}
{{ include "keyhole.grpcProbes" (dict "root" .root "port" 7410 "component" "state-server") }}
resources: {{- toYaml .server.resources | nindent 2 }}
securityContext: {{- include "keyhole.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: store, mountPath: /var/lib/keyhole/stores}
  - {name: state-server-tmp, mountPath: /tmp}
  {{- include "keyhole.security.mounts" (dict "root" .root "name" "state-server") | nindent 2 }}
{{- end }}

{{/* dict store */}}
{{- define "keyhole.storeEmptyDir" -}}
- name: store
  {{- with .store.size }}
  emptyDir: {sizeLimit: {{ include "keyhole.text" . | quote }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}

{{/* What the chart sets in it. As keyhole.stateServer */}}
{{- define "keyhole.stateServer.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: KEYHOLE_STATE_SERVER_ID, value: $(POD_NAME)}
- {name: KEYHOLE_STATE_SERVER_HOST, value: 0.0.0.0}
- {name: KEYHOLE_STATE_SERVER_PORT, value: "7410"}
- {name: KEYHOLE_STATE_SERVER_ADVERTISE, value: "$(POD_IP):7410"}
- {name: KEYHOLE_STATE_SERVER_METRICS, value: "0.0.0.0:7411"}
{{- if .server.lookupPort }}
- {name: KEYHOLE_STATE_SERVER_LOOKUPS, value: "0.0.0.0:7412"}
{{- end }}
- name: KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS
  value: {{ include "keyhole.kafka.bootstrapServers" .root | quote }}
- {name: KEYHOLE_STATE_SERVER_DIRECTORY, value: /var/lib/keyhole/stores/files}
- {name: KEYHOLE_STATE_SERVER_STORE, value: {{ .server.store.kind }}}
{{- include "keyhole.stateServerBounds" .server }}
- {name: KEYHOLE_STATE_SERVER_DRAIN_SECONDS, value: {{ include "keyhole.text" .server.drainSeconds | quote }}}
- {name: KEYHOLE_STATE_SERVER_ROLE, value: {{ .role }}}
- {name: KEYHOLE_STATE_SERVER_LOG_LEVEL, value: {{ .server.logLevel }}}
{{- with .extra }}
{{- . | nindent 0 }}
{{- end }}
{{- include "keyhole.security.env" (dict "root" .root "prefix" "KEYHOLE_STATE_SERVER_") | nindent 0 }}
{{- end }}
