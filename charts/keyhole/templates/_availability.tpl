{{/* How many pods a drained node may take at a time. */}}

{{/* dict name, of (as keyhole.labels), and one of maxUnavailable and minAvailable. A pod that is not ready may always go: it
serves nothing yet, and a node whose servers wait for their job would never be drained. */}}
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
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "keyhole.selector" .of | nindent 6 }}
{{- end }}
