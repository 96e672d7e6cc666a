{{/* A job with everything that it did not say itself, as YAML. dict root, given */}}
{{- define "keyhole.job" -}}
{{- $job := mergeOverwrite (deepCopy .root.Values.jobDefaults) (deepCopy .given) -}}
{{- include "keyhole.validate.formerMemory" (dict "path" (printf "jobs[%s]" $job.name) "executors" $job.executors) -}}
{{- $_ := set $job "application" ($job.application | default $job.name) -}}
{{- $_ := set $job "module" ($job.module | default (printf "jobs.%s" ($job.name | replace "-" "_"))) -}}
{{- /* KEYHOLE_JOB_ is what every job has. */ -}}
{{- $own := last (splitList "." $job.module) -}}
{{- $own = ternary ($job.name | replace "-" "_") $own (eq $own "job") -}}
{{- $_ := set $job "settingsPrefix" ($job.settingsPrefix | default (printf "KEYHOLE_%s_" ($own | upper))) -}}
{{- $_ := set $job "image" (ternary $job.image .root.Values.images.sparkJob (ne $job.image.repository "")) -}}
{{- $_ := set $job.source "module" ($job.source.module | default (printf "%s.source" $job.module)) -}}
{{- $_ := set $job "fullname" (printf "%s-%s" .root.Release.Name $job.name) -}}
{{- $claim := $job.checkpoint.claim.existingClaim | default (printf "%s-checkpoint" $job.fullname) -}}
{{- $_ := set $job.checkpoint "claimName" (ternary "" $claim (ne $job.checkpoint.url "")) -}}
{{- $_ := set $job.checkpoint "location" ($job.checkpoint.url | default (printf "/var/lib/keyhole/checkpoint/%s" $job.application)) -}}
{{ toYaml $job }}
{{- end }}

{{/* The applications of the release's jobs and feeds, separated by commas. */}}
{{- define "keyhole.applications" -}}
{{- $applications := list -}}
{{- range .Values.jobs -}}
{{- $applications = append $applications (include "keyhole.job" (dict "root" $ "given" .) | fromYaml).application -}}
{{- end -}}
{{- range .Values.feeds -}}
{{- $applications = append $applications (dir .state) -}}
{{- end -}}
{{ uniq $applications | join "," }}
{{- end }}

{{/* The applications that replicas follow, separated by commas. */}}
{{- define "keyhole.replica.applications" -}}
{{- if .Values.replica.applications -}}
{{ join "," .Values.replica.applications }}
{{- else -}}
{{ include "keyhole.applications" . }}
{{- end -}}
{{- end }}

{{/* Whether Spark chooses the number of its executors; "true" or "false". Of a job */}}
{{- define "keyhole.job.choosesExecutors" -}}
{{ eq (get .sparkConf "spark.dynamicAllocation.enabled" | default "" | toString) "true" }}
{{- end }}

{{- define "keyhole.job.envFrom" -}}
{{- range .envSecrets }}
- secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* Settings of Spark's that a job may have otherwise. dict root, job */}}
{{- define "keyhole.sparkDefaults" -}}
# Spark's connectors for Kafka and S3, where the image has them.
spark.driver.extraClassPath: /opt/spark-kafka/*:/opt/spark-s3/*
spark.executor.extraClassPath: /opt/spark-kafka/*:/opt/spark-s3/*
{{- if hasPrefix "s3a://" .job.checkpoint.location }}
# Each file of the checkpoint is put there when it is whole, and not renamed.
spark.sql.streaming.checkpointFileManagerClass: org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager
{{- else if .job.checkpoint.claimName }}
# Spark's default starts five processes for each file of the checkpoint that it writes to a volume.
spark.sql.streaming.checkpointFileManagerClass: org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
{{- end }}
spark.ui.enabled: "false"
spark.ui.showConsoleProgress: "false"
spark.sql.session.timeZone: UTC
{{- end }}

{{/* Settings of Spark's that are the chart's. dict root, job */}}
{{- define "keyhole.sparkConf" -}}
{{- $job := .job -}}
{{- $root := .root -}}
{{- $memory := include "keyhole.executorMemory" $job.executors | fromYaml -}}
spark.master: k8s://https://kubernetes.default.svc
spark.submit.deployMode: client
spark.app.name: {{ $job.application | quote }}
{{- if $job.driver.standby }}
# The name of the service is both drivers'.
spark.driver.host: ${env:POD_IP}
{{- else }}
spark.driver.host: {{ $job.fullname }}-driver.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end }}
spark.driver.bindAddress: 0.0.0.0
spark.driver.port: "7078"
spark.driver.blockManager.port: "7079"
spark.blockManager.port: "7079"
spark.driver.memory: {{ $job.driver.memory | quote }}
spark.executor.instances: {{ $job.executors.instances | quote }}
spark.executor.cores: {{ $job.executors.cores | quote }}
# Of the limit of its container, which Spark makes of both.
spark.executor.memory: {{ int64 $memory.heap }}m
spark.executor.memoryOverhead: {{ sub (int64 $memory.limit) (int64 $memory.heap) }}m
spark.executor.extraJavaOptions: {{ include "keyhole.executorJavaOptions" (dict "memory" $memory "given" (get $job.sparkConf "spark.executor.extraJavaOptions" | default "")) | quote }}
# A block that is larger comes to disk. Spark's default, 200m, is more than the direct memory, with which no executor starts.
spark.network.maxRemoteBlockSizeFetchToMem: 32m
# All of RocksDB's caches and write buffers of an executor together: without it each has some of its own.
spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage: "true"
spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB: {{ int64 $memory.rocksdb | quote }}
spark.kubernetes.namespace: {{ $root.Release.Namespace | quote }}
# Executors go with the pod of their driver: it owns them.
spark.kubernetes.driver.pod.name: ${env:POD_NAME}
spark.kubernetes.authenticate.driver.serviceAccountName: {{ $job.fullname }}-driver
spark.kubernetes.authenticate.serviceAccountName: {{ $job.fullname }}-driver
spark.kubernetes.container.image: {{ include "keyhole.image" (dict "root" $root "image" $job.image) | quote }}
spark.kubernetes.container.image.pullPolicy: {{ $root.Values.image.pullPolicy }}
spark.kubernetes.executor.podTemplateFile: /etc/spark/executor-pod.yaml
spark.kubernetes.executor.podTemplateContainerName: spark-executor
spark.kubernetes.executor.request.cores: {{ $job.executors.cpuRequest | quote }}
{{- with $job.executors.cpuLimit }}
spark.kubernetes.executor.limit.cores: {{ . | quote }}
{{- end }}
# The service is the release's, and goes with it.
spark.kubernetes.driver.service.deleteOnTermination: "false"
{{- if eq $job.stateServer.store.volume "persistentClaim" }}
spark.kubernetes.executor.volumes.persistentVolumeClaim.store.mount.path: /var/lib/keyhole/stores
spark.kubernetes.executor.volumes.persistentVolumeClaim.store.mount.readOnly: "false"
spark.kubernetes.executor.volumes.persistentVolumeClaim.store.options.claimName: OnDemand
spark.kubernetes.executor.volumes.persistentVolumeClaim.store.options.storageClass: {{ $job.stateServer.store.storageClassName | quote }}
spark.kubernetes.executor.volumes.persistentVolumeClaim.store.options.sizeLimit: {{ include "keyhole.text" $job.stateServer.store.size | quote }}
spark.kubernetes.driver.ownPersistentVolumeClaim: "true"
spark.kubernetes.driver.reusePersistentVolumeClaim: "true"
{{- else }}
# Or else Spark tries to remove claims at its end, of which it made none and for which it has no rights.
spark.kubernetes.driver.ownPersistentVolumeClaim: "false"
spark.kubernetes.driver.reusePersistentVolumeClaim: "false"
{{- end }}
{{- if $root.Values.security.tls.enabled }}
# Between driver and executors.
spark.authenticate: "true"
spark.network.crypto.enabled: "true"
{{- end }}
{{- end }}
