{{/* What the driver finds below /etc/spark; a change of it restarts the driver. dict root, job */}}
{{- define "keyhole.job.config" -}}
spark-defaults.conf: |
  {{- range $name, $value := mergeOverwrite (include "keyhole.sparkDefaults" . | fromYaml) .job.sparkConf (include "keyhole.sparkConf" . | fromYaml) }}
  {{ $name }} {{ include "keyhole.text" $value }}
  {{- end }}
executor-pod.yaml: |
  {{- include "keyhole.job.executorPod" . | nindent 2 }}
{{- end }}

{{/* What the chart sets in the driver. dict root, job */}}
{{- define "keyhole.job.driverEnv" -}}
{{- $root := .root }}
{{- $job := .job }}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: SPARK_CONF_DIR, value: /etc/spark}
- {name: KEYHOLE_JOB_APPLICATION, value: {{ $job.application | quote }}}
{{- if $job.driver.standby }}
- {name: KEYHOLE_JOB_DRIVER_GROUP, value: {{ $job.name | quote }}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- if $job.stateServer.sidecar }}
# The sidecar of each executor.
- {name: KEYHOLE_JOB_SERVERS, value: "{host}:7410"}
{{- else }}
- {name: KEYHOLE_JOB_SERVERS, value: {{ include "keyhole.discovery.givenServers" $root | quote }}}
{{- end }}
- name: KEYHOLE_JOB_BOOTSTRAP_SERVERS
  value: {{ include "keyhole.kafka.bootstrapServers" $root | quote }}
{{- if $root.Values.clientProxy.enabled }}
- {name: KEYHOLE_JOB_PROXY, value: "{{ include "keyhole.clientProxy.host" $root }}:7400"}
{{- end }}
- {name: KEYHOLE_JOB_METRICS, value: "0.0.0.0:7431"}
- {name: KEYHOLE_JOB_STATS, value: "0.0.0.0:7430"}
- {name: {{ $job.settingsPrefix }}SPARK, value: cluster}
- {name: {{ $job.settingsPrefix }}CHECKPOINT, value: {{ $job.checkpoint.location | quote }}}
# For a job that `keyhole new` has made.
- {name: KEYHOLE_CHECKPOINTS, value: {{ $job.checkpoint.location | quote }}}
- {name: {{ $job.settingsPrefix }}DIRECTORY, value: /tmp/spark}
{{- include "keyhole.settings" (dict "prefix" $job.settingsPrefix "settings" $job.settings) | nindent 0 }}
{{- include "keyhole.security.env" (dict "root" $root "prefix" "KEYHOLE_JOB_") | nindent 0 }}
{{- if $job.tokenSecretName }}
- {name: KEYHOLE_JOB_TOKEN_FILE, value: /etc/keyhole/token/token}
{{- end }}
{{- end }}
