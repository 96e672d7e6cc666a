{{/* How much memory a container has, and what becomes of it. */}}

{{/* A quantity of Kubernetes' in bytes: 1Gi, 500M, 1e9. Empty: 0. */}}
{{- define "keyhole.bytes" -}}
{{- $text := include "keyhole.text" . -}}
{{- $number := regexFind "^[0-9.]+([eE][0-9]+)?" $text -}}
{{- $units := dict "m" 0.001 "" 1 "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- printf "%.0f" (mulf (float64 $number) (get $units (trimPrefix $number $text))) -}}
{{- end }}

{{/* The same in whole MiB, rounded down. */}}
{{- define "keyhole.mebibytes" -}}
{{- div (include "keyhole.bytes" . | int64) 1048576 -}}
{{- end }}

{{/* Memory as Spark writes it, in MiB: 512m, 1g. */}}
{{- define "keyhole.sparkMebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[kmgt]" . -}}
{{- if eq $unit "k" -}}
{{- div $number 1024 -}}
{{- else -}}
{{- mul $number (get (dict "m" 1 "g" 1024 "t" 1048576) $unit) -}}
{{- end -}}
{{- end }}

{{/* What becomes of the memory of Spark's container of an executor, in MiB, as YAML; docs/kubernetes-reference.md has it
with the measurement. The JVM's parts beside its heap are bounds that it is given; what it takes for threads, symbols,
compilers and its collector has none, and is `rest`. The heap gets what is left. Of executors (values). */}}
{{- define "keyhole.executorMemory" -}}
{{- $limit := include "keyhole.mebibytes" .memoryLimit | int64 -}}
{{- $cores := int64 .cores -}}
{{- $python := add 128 (mul 192 $cores) -}}
{{- with .pythonMemory -}}
{{- $python = include "keyhole.mebibytes" . | int64 -}}
{{- end -}}
{{- $rocksdb := max 64 (div $limit 16) -}}
{{- with .rocksdbMemory -}}
{{- $rocksdb = include "keyhole.mebibytes" . | int64 -}}
{{- end -}}
{{- /* Each task has spark.reducer.maxSizeInFlight, 48m, of blocks on their way to it. */}}
{{- $direct := add 16 (mul 48 $cores) -}}
{{- $parts := dict "python" $python "rocksdb" $rocksdb "metaspace" 192 "codeCache" 96 "direct" $direct "rest" 128 "free" (div $limit 20) -}}
{{- $heap := $limit -}}
{{- range $parts -}}
{{- $heap = sub $heap . -}}
{{- end -}}
{{ merge (dict "limit" $limit "heap" $heap) $parts | toYaml }}
{{- end }}

{{/* From which limit on, in MiB, the heap has so much: dict executors (values), heap (MiB). Parts that grow with the limit
are taken as if nothing of them were rounded down, so that each higher limit is enough, too. */}}
{{- define "keyhole.limitOfHeap" -}}
{{- $memory := include "keyhole.executorMemory" .executors | fromYaml -}}
{{- $fixed := add (int64 .heap) (int64 $memory.python) (int64 $memory.metaspace) (int64 $memory.codeCache) (int64 $memory.direct) (int64 $memory.rest) -}}
{{- if .executors.rocksdbMemory -}}
{{- div (add (mul 20 (add $fixed (int64 $memory.rocksdb))) 18) 19 -}}
{{- else -}}
{{- max (div (add (mul 20 (add $fixed 64)) 18) 19) (div (add (mul 80 $fixed) 70) 71) -}}
{{- end -}}
{{- end }}

{{/* Refuses what an earlier chart had in place of memoryLimit. dict path, executors */}}
{{- define "keyhole.validate.formerMemory" -}}
{{- $given := list -}}
{{- range $name := list "memory" "memoryOverhead" -}}
{{- if get $.executors $name -}}
{{- $given = append $given (printf "%s (%s)" $name (include "keyhole.text" (get $.executors $name))) -}}
{{- end -}}
{{- end -}}
{{- if $given -}}
{{- $heap := 1024 -}}
{{- with include "keyhole.text" (.executors.memory | default "") -}}
{{- if regexMatch "^[0-9]+[kmgt]$" . -}}
{{- $heap = include "keyhole.sparkMebibytes" . -}}
{{- end -}}
{{- end -}}
{{- $limit := include "keyhole.limitOfHeap" (dict "executors" .executors "heap" $heap) -}}
{{- fail (printf "%s.executors has %s of an earlier chart: take that out, and set executors.memoryLimit, the limit of Spark's container, of which the heap is what the other parts leave (docs/kubernetes-reference.md). %sMi has a heap of %v MiB. With --reuse-values the earlier chart's defaults come back: give --reset-then-reuse-values" .path (join " and " $given) $limit $heap) -}}
{{- end -}}
{{- end }}

{{/* Options of an executor's JVM: the bounds, before those of the job. A second collector beside the first would be an
error. dict memory, given */}}
{{- define "keyhole.executorJavaOptions" -}}
{{- $options := list (printf "-XX:MaxMetaspaceSize=%dm" (int64 .memory.metaspace)) (printf "-XX:ReservedCodeCacheSize=%dm" (int64 .memory.codeCache)) (printf "-XX:MaxDirectMemorySize=%dm" (int64 .memory.direct)) -}}
{{- if and (lt (int64 .memory.heap) 4096) (not (regexMatch "-XX:[+]Use[A-Za-z0-9]*GC" .given)) -}}
{{- /* Of two processors and 1792 MiB Java takes its collector for large heaps, which has threads and tables of its own. */}}
{{- $options = append $options "-XX:+UseSerialGC" -}}
{{- end -}}
{{- append $options .given | join " " | trim -}}
{{- end }}

{{/* What becomes of the memory of a state server's container, in MiB, as YAML; docs/kubernetes-reference.md has it. `way` is an
epoch on its way to Kafka and the store, `rest` what is left for rows, updates and pages. Staged rows and updates have bounds made
of that: 16 at least, and at most what a server without a limit has. Of a server (values). */}}
{{- define "keyhole.stateServerMemory" -}}
{{- $limit := include "keyhole.mebibytes" .resources.limits.memory | int64 -}}
{{- $parts := dict "process" 80 "way" 136 "free" (div $limit 20) "store" 0 -}}
{{- $rest := sub $limit (add $parts.process $parts.way $parts.free) -}}
{{- if eq .store.kind "rocksdb" -}}
{{- /* Its cache, and what one state was written last. */}}
{{- $_ := set $parts "store" 320 -}}
{{- else if eq .store.kind "memory" -}}
{{- $_ := set $parts "store" (div (max 0 $rest) 2) -}}
{{- end -}}
{{- $rest = max 0 (sub $rest $parts.store) -}}
{{ merge (dict "limit" $limit "rest" $rest "staged" (div $rest 2 | max 16 | min 2048) "uncommitted" (div $rest 4 | max 16 | min 512)) $parts | toYaml }}
{{- end }}

{{/* The bounds as settings, but those that `env` has. Without a limit there is nothing to make them of. Of a server (values) */}}
{{- define "keyhole.stateServerBounds" -}}
{{- if dig "limits" "memory" "" .resources -}}
{{- $memory := include "keyhole.stateServerMemory" . | fromYaml -}}
{{- $env := .env -}}
{{- range $name, $part := dict "KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES" $memory.staged "KEYHOLE_STATE_SERVER_MAX_UNCOMMITTED_BYTES" $memory.uncommitted }}
{{- if not (hasKey $env $name) }}
- {name: {{ $name }}, value: {{ mul (int64 $part) 1048576 | quote }}}
{{- end }}
{{- end }}
{{- end -}}
{{- end }}

{{/* dict path, resources */}}
{{- define "keyhole.validate.memory" -}}
{{- range $kind := list "requests" "limits" -}}
{{- with dig $kind "memory" "" $.resources -}}
{{- $bytes := include "keyhole.bytes" . | int64 -}}
{{- if lt $bytes 16777216 -}}
{{- fail (printf "%s.%s.memory is %s, which is %d bytes, and nothing runs in so little: write it with its unit, as 512Mi" $.path $kind (include "keyhole.text" .) $bytes) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $request := dig "requests" "memory" "" .resources -}}
{{- $limit := dig "limits" "memory" "" .resources -}}
{{- if and $request $limit (gt (include "keyhole.bytes" $request | int64) (include "keyhole.bytes" $limit | int64)) -}}
{{- fail (printf "%s.requests.memory is %s, above the limit (%s): Kubernetes takes no such pod" .path (include "keyhole.text" $request) (include "keyhole.text" $limit)) -}}
{{- end -}}
{{- end }}

{{/* Of a volume; empty: none is given. dict path, size */}}
{{- define "keyhole.validate.size" -}}
{{- with .size -}}
{{- $bytes := include "keyhole.bytes" . | int64 -}}
{{- if lt $bytes 16777216 -}}
{{- fail (printf "%s is %s, which is %d bytes, and holds nothing: write it with its unit, as 10Gi" $.path (include "keyhole.text" .) $bytes) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A JVM needs room beside its heap. dict path, resources, heap (MiB), heapPath, beside (MiB) */}}
{{- define "keyhole.validate.heap" -}}
{{- with dig "limits" "memory" "" .resources -}}
{{- $limit := include "keyhole.mebibytes" . | int64 -}}
{{- $needed := add (int64 $.heap) $.beside -}}
{{- if lt $limit $needed -}}
{{- fail (printf "%s.limits.memory is %s, and %s is a heap of %d MiB, beside which the process needs %d MiB: raise the limit to %dMi or more, or lower the heap" $.path (include "keyhole.text" .) $.heapPath (int64 $.heap) (int64 $.beside) $needed) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* dict path, job */}}
{{- define "keyhole.validate.jobMemory" -}}
{{- $path := .path -}}
{{- $job := .job -}}
{{- include "keyhole.validate.memory" (dict "path" (printf "%s.driver.resources" $path) "resources" $job.driver.resources) -}}
{{- include "keyhole.validate.memory" (dict "path" (printf "%s.stateServer.resources" $path) "resources" $job.stateServer.resources) -}}
{{- include "keyhole.validate.memory" (dict "path" (printf "%s.source.resources" $path) "resources" $job.source.resources) -}}
{{- if lt (include "keyhole.sparkMebibytes" $job.driver.memory | int64) 512 -}}
{{- fail (printf "%s.driver.memory is %s, and Spark needs a heap of 512 MiB: with less the driver ends as it starts. Set it to 512m or more" $path $job.driver.memory) -}}
{{- end -}}
{{- include "keyhole.validate.heap" (dict "path" (printf "%s.driver.resources" $path) "resources" $job.driver.resources "heapPath" (printf "%s.driver.memory" $path) "heap" (include "keyhole.sparkMebibytes" $job.driver.memory) "beside" 512) -}}
{{- range $name := list "memoryLimit" "pythonMemory" "rocksdbMemory" -}}
{{- $given := get $job.executors $name -}}
{{- if and $given (lt (include "keyhole.bytes" $given | int64) 16777216) -}}
{{- fail (printf "%s.executors.%s is %s, which is %s bytes: write it with its unit, as 512Mi" $path $name (include "keyhole.text" $given) (include "keyhole.bytes" $given)) -}}
{{- end -}}
{{- end -}}
{{- $memory := include "keyhole.executorMemory" $job.executors | fromYaml -}}
{{- if lt (int64 $memory.heap) 512 -}}
{{- fail (printf "%s.executors.memoryLimit is %s, of which %d MiB are left for the heap, and Spark needs 512: Python has %d MiB of it, RocksDB %d, the rest of the JVM %d. Raise the limit by %dMi or more, or take fewer cores" $path (include "keyhole.text" $job.executors.memoryLimit) (int64 $memory.heap) (int64 $memory.python) (int64 $memory.rocksdb) (add $memory.metaspace $memory.codeCache $memory.direct $memory.rest) (sub (include "keyhole.limitOfHeap" (dict "executors" $job.executors "heap" 512) | int64) (int64 $memory.limit))) -}}
{{- end -}}
{{- end }}

{{- define "keyhole.validate.containers" -}}
{{- range $name := list "clientProxy" "replica" "stateServers" "metricsExporter" "kafka" "test" -}}
{{- include "keyhole.validate.memory" (dict "path" (printf "%s.resources" $name) "resources" (get (get $.Values $name) "resources")) -}}
{{- end -}}
{{- with .Values.kafka -}}
{{- if .enabled -}}
{{- include "keyhole.validate.heap" (dict "path" "kafka.resources" "resources" .resources "heapPath" "kafka.heapMegabytes" "heap" .heapMegabytes "beside" 256) -}}
{{- end -}}
{{- end -}}
{{- range .Values.feeds -}}
{{- $feed := include "keyhole.feed" (dict "root" $ "given" .) | fromYaml -}}
{{- include "keyhole.validate.memory" (dict "path" (printf "feeds[%s].resources" .name) "resources" $feed.resources) -}}
{{- end -}}
{{- end }}
