{{/* How many pods a drained node may take at a time. */}}

{{/* dict name, of (as keyhole.labels), holds, and one of maxUnavailable and minAvailable. Pods that hold key groups are not
ready while they restore one of them, and serve the others: they may go only where as many as needed are ready. Of the
others a pod that is not ready serves nothing, and may always go. */}}
{{- define "keyhole.disruptionBudget" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "keyhole.labels" .of | nindent 4 }}
spec:
  {{- with .maxUnavailable }}
  maxUnavailable: {{ . }}
  {{- end }}
  {{- with .minAvailable }}
  minAvailable: {{ . }}
  {{- end }}
  unhealthyPodEvictionPolicy: {{ ternary "IfHealthyBudget" "AlwaysAllow" (default false .holds) }}
  selector:
    matchLabels: {{- include "keyhole.selector" .of | nindent 6 }}
{{- end }}
