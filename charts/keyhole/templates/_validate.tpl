{{- define "keyhole.validate.kafka" -}}
{{- with .Values.kafka }}
{{- if and .enabled .bootstrapServers }}
{{- fail (printf "kafka.enabled starts a Kafka of its own, and kafka.bootstrapServers names another one (%s): leave one of them out" .bootstrapServers) }}
{{- end }}
{{- if not (or .enabled .bootstrapServers) }}
{{- fail "kafka.bootstrapServers is empty: name your brokers as host:port, or set kafka.enabled=true to try Keyhole with a Kafka of its own" }}
{{- end }}
{{- if and .enabled .clientSecret }}
{{- fail (printf "kafka.clientSecret (%s) says how brokers of your own are spoken to, and kafka.enabled starts one that asks nobody: leave one of them out" .clientSecret) }}
{{- end }}
{{- range $name, $value := .settings }}
{{- if regexMatch "^(node[.]id|process[.]roles|log[.]dirs?|metadata[.]log[.]dir|controller[.].*|listeners|advertised[.]listeners|listener[.]security[.]protocol[.]map|inter[.]broker[.]listener[.]name)$" $name }}
{{- fail (printf "kafka.settings has %s, which the image sets: leave it out; a Kafka that needs it otherwise is one of your own (kafka.bootstrapServers)" $name) }}
{{- end }}
{{- if contains "," (toString $value) }}
{{- fail (printf "kafka.settings has %s with a comma (%s), which stands between settings: this Kafka takes no such value" $name $value) }}
{{- end }}
{{- end }}
{{- include "keyhole.validate.size" (dict "path" "kafka.persistence.size" "size" .persistence.size) }}
{{- if and .persistence.size (not .enabled) }}
{{- fail "kafka.persistence.size is of the release's own Kafka, which is not enabled: leave it out, or set kafka.enabled=true" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.discovery" -}}
{{- with .Values.discovery }}
{{- if and (eq .kind "static") (not .servers) }}
{{- fail "discovery.kind is static and discovery.servers is empty: name the state servers as host:port, or choose kubernetes or dns" }}
{{- end }}
{{- if and (ne .kind "static") .servers }}
{{- fail (printf "discovery.servers is given and discovery.kind is %s, which finds the servers itself: leave the servers out, or set discovery.kind=static" .kind) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.security" -}}
{{- with .Values.security.tls }}
{{- if and .enabled (not .secretName) }}
{{- fail "security.tls.enabled needs security.tls.secretName: a Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and .secretName (not .enabled) }}
{{- fail (printf "security.tls.secretName is %s and security.tls.enabled is false: plaintext must be meant, so leave the Secret out or enable TLS" .secretName) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.access" -}}
{{- $tls := .Values.security.tls }}
{{- with .Values.security.access }}
{{- if and (or .policyConfigMap .tokensSecret .jwks) (not $tls.enabled) }}
{{- fail "security.access says who may do what, and security.tls.enabled is false: without TLS nobody can say who they are, and tokens could be read on the way. Enable TLS, or leave security.access out" }}
{{- end }}
{{- if and (or .tokensSecret .jwks) (not .policyConfigMap) }}
{{- fail "security.access has tokens or jwks, and no policyConfigMap: callers would be known, and all of them may do everything. Name a policy" }}
{{- end }}
{{- if and .jwks (not (and .issuer .audience)) }}
{{- fail "security.access.jwks needs security.access.issuer and security.access.audience" }}
{{- end }}
{{- if and (or .issuer .audience) (not .jwks) }}
{{- fail "security.access.issuer and audience are of JWTs, and security.access.jwks is empty: say where their keys are" }}
{{- end }}
{{- end }}
{{- with $tls }}
{{- if and .enabled (not .readersNeedCertificates) (not $.Values.security.access.policyConfigMap) }}
{{- fail "security.tls.readersNeedCertificates is false and there is no security.access.policyConfigMap: whoever reaches a proxy could read everything. Name a policy, or ask for certificates" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.clientProxy" -}}
{{- with .Values.clientProxy }}
{{- if and .autoscaling.enabled (not (kindIs "invalid" .replicas)) }}
{{- fail (printf "clientProxy.replicas is %v and clientProxy.autoscaling is enabled, which sets the number itself: leave one of them out" .replicas) }}
{{- end }}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) }}
{{- fail (printf "clientProxy.autoscaling.minReplicas is %v, above maxReplicas (%v)" .autoscaling.minReplicas .autoscaling.maxReplicas) }}
{{- end }}
{{- if and .autoscaling.enabled (not (dig "requests" "cpu" "" .resources)) }}
{{- fail "clientProxy.autoscaling measures CPU against the request: give clientProxy.resources.requests.cpu" }}
{{- end }}
{{- if and (eq (int .processes) 0) (not (dig "limits" "cpu" "" .resources)) }}
{{- fail "clientProxy.processes is 0, one per core, and a pod without a limit of CPU counts all cores of its node: give clientProxy.resources.limits.cpu, or a number" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.replica" -}}
{{- with .Values.replica }}
{{- if .enabled }}
{{- if not (include "keyhole.replica.applications" $) }}
{{- fail "replica.enabled, and there is nothing to follow: name the applications in replica.applications, or give the release jobs or feeds" }}
{{- end }}
{{- if ne (len .applications) (len (uniq .applications)) }}
{{- fail (printf "replica.applications names one twice: %s" (join ", " .applications)) }}
{{- end }}
{{- include "keyhole.validate.store" (dict "path" "replica.store" "store" .store) }}
{{- end }}
{{- end }}
{{- end }}

{{/* dict path, store */}}
{{- define "keyhole.validate.store" -}}
{{- include "keyhole.validate.size" (dict "path" (printf "%s.size" .path) "size" .store.size) }}
{{- if and (eq .store.volume "persistentClaim") (not .store.size) }}
{{- fail (printf "%s.volume is persistentClaim and %s.size is empty: say how large the claims are" .path .path) }}
{{- end }}
{{- if and (eq .store.volume "persistentClaim") (eq .store.kind "memory") }}
{{- fail (printf "%s.kind is memory, which writes no files, and %s.volume is persistentClaim: choose lmdb or rocksdb, or emptyDir" .path .path) }}
{{- end }}
{{- if and (eq .store.volume "emptyDir") .store.storageClassName }}
{{- fail (printf "%s.storageClassName is of a claim, and %s.volume is emptyDir: leave it out, or set the volume to persistentClaim" .path .path) }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.jobs" -}}
{{- $names := list }}
{{- $applications := list }}
{{- $checkpoints := dict }}
{{- range .Values.jobs }}
{{- $job := include "keyhole.job" (dict "root" $ "given" .) | fromYaml }}
{{- $path := printf "jobs[%s]" .name }}
{{- if has $job.name $names }}
{{- fail (printf "two jobs have the name %s: give each its own" $job.name) }}
{{- end }}
{{- if has $job.application $applications }}
{{- fail (printf "two jobs have the application %s: an application is written by one job; give each its own" $job.application) }}
{{- end }}
{{- $names = append $names $job.name }}
{{- $applications = append $applications $job.application }}
{{- if gt (len $job.fullname) 50 }}
{{- fail (printf "the release and %s together have the name %s, which is longer than 50 characters, and names made of it would be too long: shorten one" $path $job.fullname) }}
{{- end }}
{{- include "keyhole.validate.checkpoint" (dict "path" (printf "%s.checkpoint" $path) "checkpoint" $job.checkpoint) }}
{{- with $job.checkpoint.url }}
{{- $place := trimAll "/" . }}
{{- if hasKey $checkpoints $place }}
{{- fail (printf "%s.checkpoint.url is %s, which is the checkpoint of %s: each job would go on with what the other one has read; give each a folder of its own" $path . (get $checkpoints $place)) }}
{{- end }}
{{- $_ := set $checkpoints $place $path }}
{{- end }}
{{- include "keyhole.validate.store" (dict "path" (printf "%s.stateServer.store" $path) "store" $job.stateServer.store) }}
{{- with $job.stateServer.store }}
{{- if and (eq .volume "persistentClaim") (not .storageClassName) }}
{{- fail (printf "%s.stateServer.store.storageClassName is empty: Spark makes the executors' claims, and makes none without a class" $path) }}
{{- end }}
{{- end }}
{{- if and $job.stateServer.sidecar (eq $.Values.discovery.kind "static") }}
{{- fail (printf "%s.stateServer.sidecar is true, and discovery.kind is static: executors have no fixed addresses, so proxies and exporter would not find the state servers beside them. Choose kubernetes or dns, or set %s.stateServer.sidecar=false, and the job's states are on discovery.servers" $path $path) }}
{{- end }}
{{- if and (not $job.stateServer.sidecar) (not $.Values.stateServers.enabled) (ne $.Values.discovery.kind "static") }}
{{- fail (printf "%s.stateServer.sidecar is false, and there are no other state servers: enable stateServers, or name some in discovery.servers (discovery.kind: static)" $path) }}
{{- end }}
{{- if and (not $job.stateServer.sidecar) (eq $job.stateServer.store.volume "persistentClaim") }}
{{- fail (printf "%s.stateServer.sidecar is false, and %s.stateServer.store asks for claims of the sidecars: leave it out; stateServers.store is that of the others" $path $path) }}
{{- end }}
{{- include "keyhole.validate.jobMemory" (dict "path" $path "job" $job) }}
{{- include "keyhole.validate.ownSettings" (dict "root" $ "path" $path "job" $job) }}
{{- if and $job.source.enabled (not $job.source.settingsPrefix) }}
{{- fail (printf "%s.source.enabled needs source.settingsPrefix: what the names of the source's settings begin with (KEYHOLE_READINGS_ for temperature_monitor)" $path) }}
{{- end }}
{{- if hasKey $job.source.settings "bootstrap_servers" }}
{{- fail (printf "%s.source.settings has bootstrap_servers, which the chart sets: leave it out, or let a source of your own run by itself" $path) }}
{{- end }}
{{- if and $job.test.topic (not (and $job.test.record $job.test.state)) }}
{{- fail (printf "%s.test.topic is given: say also which record is written (test.record) and in which state it shows (test.state)" $path) }}
{{- end }}
{{- include "keyhole.validate.elsewhere" (dict "root" $ "job" $job) }}
{{- end }}
{{- end }}

{{/* dict path, checkpoint */}}
{{- define "keyhole.validate.checkpoint" -}}
{{- $claim := .checkpoint.claim }}
{{- include "keyhole.validate.size" (dict "path" (printf "%s.claim.size" .path) "size" $claim.size) }}
{{- if and $claim.size $claim.existingClaim }}
{{- fail (printf "%s.claim has a size and an existingClaim (%s): a new claim is made, or an old one is used" .path $claim.existingClaim) }}
{{- end }}
{{- if and .checkpoint.url (or $claim.size $claim.existingClaim) }}
{{- fail (printf "%s has a url and a claim: Spark has one checkpoint; leave one of them out" .path) }}
{{- end }}
{{- if not (or .checkpoint.url $claim.size $claim.existingClaim) }}
{{- fail (printf "%s is empty: give a url of an object store, or claim.size, or claim.existingClaim. Without its checkpoint a job can't go on" .path) }}
{{- end }}
{{- end }}

{{/* What the chart sets itself can't be set otherwise. dict root, path, job */}}
{{- define "keyhole.validate.ownSettings" -}}
{{- $path := .path }}
{{- $job := .job }}
{{- $own := include "keyhole.sparkConf" (dict "root" .root "job" .job) | fromYaml }}
{{- range $name, $_ := $job.sparkConf }}
{{- if and (hasKey $own $name) (ne $name "spark.executor.extraJavaOptions") }}
{{- fail (printf "%s.sparkConf has %s, which the chart sets (%v): leave it out; values.yaml has a name for what may be changed" $path $name (get $own $name)) }}
{{- end }}
{{- end }}
{{- range list "CHECKPOINT" "DIRECTORY" "SPARK" }}
{{- if hasKey $job.settings (lower .) }}
{{- fail (printf "%s.settings has %s, which the chart sets: the checkpoint is %s.checkpoint, the directory an emptyDir" $path (lower .) $path) }}
{{- end }}
{{- end }}
{{- $set := dict }}
{{- range include "keyhole.job.driverEnv" (dict "root" .root "job" $job) | fromYamlArray }}
{{- if hasKey $set .name }}
{{- fail (printf "%s.settings has what is called %s, which the chart sets: leave it out, or give settingsPrefix another value" $path .name) }}
{{- end }}
{{- $_ := set $set .name true }}
{{- end }}
{{- /* Of the driver's container "keyhole.ownEnv" knows more. These are what Spark's scheduler gives an executor. */}}
{{- range $name, $_ := $job.env }}
{{- if regexMatch "^SPARK_(EXECUTOR_.*|JAVA_OPT_.*|DRIVER_URL|APPLICATION_ID|RESOURCE_PROFILE_ID|CLASSPATH)$" $name }}
{{- fail (printf "%s.env has %s, which Spark sets for its executors: leave it out" $path $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Another release with the same application would fence this one's driver, and be fenced by it, for ever. dict root, job */}}
{{- define "keyhole.validate.elsewhere" -}}
{{- $root := .root }}
{{- $job := .job }}
{{- range (lookup "apps/v1" "Deployment" $root.Release.Namespace "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- if and (eq (get $labels "app.kubernetes.io/component") "spark-driver") (eq (get $labels "keyhole.dev/application") $job.application) (ne (get $labels "app.kubernetes.io/instance") $root.Release.Name) }}
{{- fail (printf "the application %s of jobs[%s] is that of the release %s already, in this namespace: an application is written by one job. Give this one another name (application), or uninstall that release" $job.application $job.name (get $labels "app.kubernetes.io/instance")) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.monitoring" -}}
{{- with .Values.monitoring }}
{{- if and (or .monitors.enabled .alerts.enabled) (not ($.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
{{- fail "monitoring.monitors and monitoring.alerts need the Prometheus operator, and this cluster doesn't know monitoring.coreos.com/v1: install it before, or leave them off" }}
{{- end }}
{{- if and .alerts.enabled (not $.Values.metricsExporter.enabled) }}
{{- fail "monitoring.alerts are about what the metrics exporter tells, and metricsExporter.enabled is false: enable it, or leave the alerts off" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.stateServers" -}}
{{- with .Values.stateServers }}
{{- if .enabled }}
{{- if eq $.Values.discovery.kind "static" }}
{{- fail "stateServers.enabled makes state servers that have no fixed addresses, and discovery.kind is static: choose kubernetes or dns, or leave stateServers off" }}
{{- end }}
{{- include "keyhole.validate.store" (dict "path" "stateServers.store" "store" .store) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "keyhole.validate.feeds" -}}
{{- $names := list }}
{{- $states := list }}
{{- range .Values.feeds }}
{{- $feed := include "keyhole.feed" (dict "root" $ "given" .) | fromYaml }}
{{- $path := printf "feeds[%s]" .name }}
{{- if has $feed.name $names }}
{{- fail (printf "two feeds have the name %s: give each its own" $feed.name) }}
{{- end }}
{{- if has $feed.state $states }}
{{- fail (printf "two feeds have the state %s: one process feeds a state, and a second one is refused; give each its own" $feed.state) }}
{{- end }}
{{- $names = append $names $feed.name }}
{{- $states = append $states $feed.state }}
{{- if gt (len $feed.fullname) 55 }}
{{- fail (printf "the release and %s together have the name %s, which is longer than 55 characters, and names made of it would be too long: shorten one" $path $feed.fullname) }}
{{- end }}
{{- if and $feed.value $feed.reduce }}
{{- fail (printf "%s has value and reduce: value keeps a key's last row, reduce makes one of all of them; leave one of them out" $path) }}
{{- end }}
{{- $of_registry := not (has $feed.format (list "json" "debezium")) }}
{{- if and $of_registry (not $feed.registry) }}
{{- fail (printf "%s has the format %s, and no registry: say where the schema registry is (registry: http://registry:8081)" $path $feed.format) }}
{{- end }}
{{- if and $feed.registrySecret (not $feed.registry) }}
{{- fail (printf "%s has registrySecret, and no registry to speak to: give both, or leave it out" $path) }}
{{- end }}
{{- if not (or $feed.value $feed.reduce) }}
{{- fail (printf "%s has neither value nor reduce: say what is kept of a key (value: [amount:double], or reduce: [amount=sum])" $path) }}
{{- end }}
{{- range (lookup "apps/v1" "Deployment" $.Release.Namespace "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- if and (eq (get $labels "app.kubernetes.io/component") "feed") (eq (get (.metadata.annotations | default dict) "keyhole.dev/state") $feed.state) (ne (get $labels "app.kubernetes.io/instance") $.Release.Name) }}
{{- fail (printf "the state %s of %s is that of the release %s already, in this namespace: one process feeds a state. Name another one, or uninstall that release" $feed.state $path (get $labels "app.kubernetes.io/instance")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
