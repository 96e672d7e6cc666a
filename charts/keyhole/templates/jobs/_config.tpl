{{/* What the driver finds below /etc/spark; a change of it restarts the driver. dict root, job */}}
{{- define "keyhole.job.config" -}}
spark-defaults.conf: |
  {{- range $name, $value := mergeOverwrite (include "keyhole.sparkDefaults" . | fromYaml) .job.sparkConf (include "keyhole.sparkConf" . | fromYaml) }}
  {{ $name }} {{ include "keyhole.text" $value }}
  {{- end }}
executor-pod.yaml: |
  {{- include "keyhole.job.executorPod" . | nindent 2 }}
{{- end }}
