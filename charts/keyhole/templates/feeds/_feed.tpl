{{/* A feed with everything that it did not say itself, as YAML. dict root, given */}}
{{- define "keyhole.feed" -}}
{{- $feed := mergeOverwrite (deepCopy .root.Values.feedDefaults) (deepCopy .given) -}}
{{- $_ := set $feed "application" (dir $feed.state) -}}
{{- $_ := set $feed "fullname" (printf "%s-%s-feed" .root.Release.Name $feed.name) -}}
{{ toYaml $feed }}
{{- end }}

{{/* The words of `keyhole feed`, as JSON. */}}
{{- define "keyhole.feed.arguments" -}}
{{- $words := list .state "--topic" .topic "--format" .format -}}
{{- $settings := "" -}}
{{- if .registrySecret }}{{ $settings = "?settings=/etc/keyhole/registry/registry.properties" }}{{ end -}}
{{- with .registry }}{{ $words = append $words (printf "--registry=%s%s" . $settings) }}{{ end -}}
{{- range .key }}{{ $words = append $words (printf "--key=%s" .) }}{{ end -}}
{{- range .value }}{{ $words = append $words (printf "--value=%s" .) }}{{ end -}}
{{- range .reduce }}{{ $words = append $words (printf "--reduce=%s" .) }}{{ end -}}
{{- range .mapKey }}{{ $words = append $words (printf "--map-key=%s" .) }}{{ end -}}
{{- range .index }}{{ $words = append $words (printf "--index=%s" .) }}{{ end -}}
{{- with .orderBy }}
{{- $words = append $words (printf "--order-by=%s" .) -}}
{{- /* Values of an earlier release, used again, have none. */ -}}
{{- if not (kindIs "invalid" $.keepDeletedSeconds) }}
{{- $words = append $words (printf "--keep-deleted=%s" (include "keyhole.text" $.keepDeletedSeconds)) -}}
{{- end -}}
{{- with $.unorderedDeletes }}{{ $words = append $words (printf "--unordered-deletes=%s" .) }}{{ end -}}
{{- end -}}
{{- with .deleteWhen }}{{ $words = append $words (printf "--delete-when=%s" .) }}{{ end -}}
{{- with .maxLength }}{{ $words = append $words (printf "--max-length=%s" (include "keyhole.text" .)) }}{{ end -}}
{{- with .ttlSeconds }}{{ $words = append $words (printf "--ttl=%s" (include "keyhole.text" .)) }}{{ end -}}
{{- with .keyGroups }}{{ $words = append $words (printf "--key-groups=%s" (include "keyhole.text" .)) }}{{ end -}}
{{- $words = append $words (printf "--standbys=%s" (include "keyhole.text" .standbys)) -}}
{{- if .fromEarliest }}{{ $words = append $words "--from-earliest" }}{{ end -}}
{{- if .strict }}{{ $words = append $words "--strict" }}{{ end -}}
{{- if .unchecked }}{{ $words = append $words "--unchecked" }}{{ end -}}
{{ toJson $words }}
{{- end }}

{{/* What the chart sets. dict root, feed */}}
{{- define "keyhole.feed.env" -}}
{{- $root := .root }}
{{- $feed := .feed }}
- {name: KEYHOLE_JOB_APPLICATION, value: {{ $feed.application | quote }}}
- name: KEYHOLE_JOB_SERVERS
  value: {{ include "keyhole.discovery.givenServers" $root | quote }}
- name: KEYHOLE_JOB_BOOTSTRAP_SERVERS
  value: {{ include "keyhole.kafka.bootstrapServers" $root | quote }}
- {name: KEYHOLE_JOB_METRICS, value: "0.0.0.0:7431"}
- {name: KEYHOLE_JOB_STATS, value: "0.0.0.0:7430"}
{{- include "keyhole.security.env" (dict "root" $root "prefix" "KEYHOLE_JOB_") | nindent 0 }}
{{- end }}
