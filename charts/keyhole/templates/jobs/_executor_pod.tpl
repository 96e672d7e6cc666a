{{/* What Spark makes executors' pods of: it adds the container's image, command, memory and cores. dict root, job */}}
{{- define "keyhole.job.executorPod" -}}
{{- $root := .root -}}
{{- $job := .job -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "keyhole.podLabels" (dict "root" $root "component" "spark-executor" "application" $job.application "job" $job.name) | nindent 4 }}
    {{- if $job.stateServer.sidecar }}
    keyhole.dev/state-server: "true"
    {{- end }}
  {{- with $job.executors.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  # Executors ask nothing of the API server.
  automountServiceAccountToken: false
  # A Service's environment variables look like settings of ours, and unknown settings are refused.
  enableServiceLinks: false
  # Counts for the executor and the state server together, which stops after it.
  terminationGracePeriodSeconds: {{ add (ternary (ceil $job.stateServer.drainSeconds) 10.0 $job.stateServer.sidecar) 20 }}
  securityContext: {{- include "keyhole.podSecurity" . | nindent 4 }}
  {{- include "keyhole.placement" (dict "root" $root "place" $job.executors) | nindent 2 }}
  {{- if $job.stateServer.sidecar }}
  initContainers:
    # A native sidecar: it has started before the executor does, and stops after it.
    - restartPolicy: Always
      {{- include "keyhole.stateServer" (dict "root" $root "path" (printf "jobs[%s].stateServer" $job.name) "server" $job.stateServer "role" "owner") | nindent 6 }}
  {{- end }}
  containers:
    - name: spark-executor
      # Where Spark puts what the driver hands out.
      workingDir: /tmp
      {{- with $job.env }}
      env: {{- include "keyhole.env" . | nindent 8 }}
      {{- end }}
      {{- with include "keyhole.job.envFrom" $job }}
      envFrom: {{- . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "keyhole.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $job.checkpoint.claimName }}
        - {name: checkpoint, mountPath: /var/lib/keyhole/checkpoint}
        {{- end }}
        # What the driver names for its tasks is at the same place here.
        {{- include "keyhole.security.mounts" (dict "root" $root "name" "job") | nindent 8 }}
        {{- include "keyhole.token.mount" $job.tokenSecretName | nindent 8 }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- if $job.stateServer.sidecar }}
    - {name: state-server-tmp, emptyDir: {}}
    {{- if eq $job.stateServer.store.volume "emptyDir" }}
    {{- include "keyhole.storeEmptyDir" $job.stateServer | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with $job.checkpoint.claimName }}
    - name: checkpoint
      persistentVolumeClaim: {claimName: {{ . | quote }}}
    {{- end }}
    {{- include "keyhole.security.volumes" (dict "root" $root "secrets" (ternary (dict "job" $job.tlsSecretName "state-server" $root.Values.security.tls.secrets.stateServer) (dict "job" $job.tlsSecretName) $job.stateServer.sidecar)) | nindent 4 }}
    {{- include "keyhole.token.volume" $job.tokenSecretName | nindent 4 }}
{{- end }}
