{{/* What the release's pods request together: for the notes after an install. */}}

{{/* A quantity of processor time in thousandths of a core: 500m, 0.5, 2. Empty: 0. */}}
{{- define "keyhole.millicores" -}}
{{- $text := include "keyhole.text" . -}}
{{- if hasSuffix "m" $text -}}
{{- trimSuffix "m" $text | float64 | ceil | int64 -}}
{{- else -}}
{{- mulf 1000.0 (float64 $text) | ceil | int64 -}}
{{- end -}}
{{- end }}

{{/* As YAML: millicores, mebibytes. Those of executors, which Spark makes, and of both drivers, among them. Without the pod of
`helm test`, and without what an autoscaler adds. */}}
{{- define "keyhole.requests" -}}
{{- $all := list -}}
{{- with .Values.clientProxy -}}
{{- if .enabled -}}
{{- $replicas := kindIs "invalid" .replicas | ternary 2 .replicas -}}
{{- $all = append $all (dict "pods" (ternary .autoscaling.minReplicas $replicas .autoscaling.enabled) "of" .resources) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "replica" "stateServers" "metricsExporter" "kafka" -}}
{{- with get $.Values $name -}}
{{- if .enabled -}}
{{- $all = append $all (dict "pods" (.replicas | default 1) "of" .resources) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.jobs -}}
{{- $job := include "keyhole.job" (dict "root" $ "given" .) | fromYaml -}}
{{- $drivers := ternary 2 1 $job.driver.standby -}}
{{- $executors := mul $drivers $job.executors.instances -}}
{{- $spark := dict "requests" (dict "cpu" $job.executors.cpuRequest "memory" $job.executors.memoryLimit) -}}
{{- $all = concat $all (list (dict "pods" $drivers "of" $job.driver.resources) (dict "pods" $executors "of" $spark)) -}}
{{- if $job.stateServer.sidecar -}}
{{- $all = append $all (dict "pods" $executors "of" $job.stateServer.resources) -}}
{{- end -}}
{{- if $job.source.enabled -}}
{{- $all = append $all (dict "pods" 1 "of" $job.source.resources) -}}
{{- end -}}
{{- end -}}
{{- range .Values.feeds -}}
{{- $feed := include "keyhole.feed" (dict "root" $ "given" .) | fromYaml -}}
{{- $all = append $all (dict "pods" 1 "of" $feed.resources) -}}
{{- end -}}
{{- $millicores := 0 -}}
{{- $mebibytes := 0 -}}
{{- range $all -}}
{{- $millicores = add $millicores (mul .pods (include "keyhole.millicores" (dig "requests" "cpu" "" .of) | int64)) -}}
{{- $mebibytes = add $mebibytes (mul .pods (include "keyhole.mebibytes" (dig "requests" "memory" "" .of) | int64)) -}}
{{- end -}}
{{ dict "millicores" $millicores "mebibytes" $mebibytes | toYaml }}
{{- end }}
