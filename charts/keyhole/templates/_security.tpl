{{/* Certificates, and who may do what: as settings, as mounts and as volumes of each component. */}}

{{/* dict root, prefix, [readers: whoever reads comes here] */}}
{{- define "keyhole.security.env" -}}
{{- with .root.Values.security.tls }}
{{- if .enabled }}
- {name: {{ $.prefix }}TLS, value: "on"}
- {name: {{ $.prefix }}TLS_CERTIFICATE, value: /etc/keyhole/tls/tls.crt}
- {name: {{ $.prefix }}TLS_KEY, value: /etc/keyhole/tls/tls.key}
- {name: {{ $.prefix }}TLS_CA, value: /etc/keyhole/tls/ca.crt}
# Pods are found by their addresses, which no certificate has.
- {name: {{ $.prefix }}TLS_SERVER_NAME, value: {{ .serverName | default (include "keyhole.clientProxy.host" $.root) | quote }}}
{{- if and $.readers (not .readersNeedCertificates) }}
- {name: {{ $.prefix }}TLS_CLIENT_CERTIFICATES, value: "off"}
{{- end }}
{{- else }}
# Values say so: security.tls.enabled is false.
- {name: {{ $.prefix }}PLAINTEXT, value: allow}
{{- end }}
{{- end }}
{{- with .root.Values.security.access }}
{{- if .policyConfigMap }}
- {name: {{ $.prefix }}POLICY, value: /etc/keyhole/policy/policy.toml}
{{- end }}
{{- if .tokensSecret }}
- {name: {{ $.prefix }}TOKENS, value: /etc/keyhole/tokens/tokens.toml}
{{- end }}
{{- if .jwks }}
- {name: {{ $.prefix }}JWKS, value: {{ .jwks | quote }}}
- {name: {{ $.prefix }}ISSUER, value: {{ .issuer | quote }}}
- {name: {{ $.prefix }}AUDIENCE, value: {{ .audience | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* dict root, name: of the volume with the certificate, of which a pod may have several */}}
{{- define "keyhole.security.mounts" -}}
{{- if .root.Values.security.tls.enabled }}
- {name: tls-{{ .name }}, mountPath: /etc/keyhole/tls, readOnly: true}
{{- end }}
{{- if .root.Values.security.access.policyConfigMap }}
- {name: policy, mountPath: /etc/keyhole/policy, readOnly: true}
{{- end }}
{{- if .root.Values.security.access.tokensSecret }}
- {name: tokens, mountPath: /etc/keyhole/tokens, readOnly: true}
{{- end }}
{{- if ne .name "client-proxy" }}
{{- include "keyhole.kafka.mount" .root }}
{{- end }}
{{- end }}

{{/* dict root, secrets: the certificate's Secret by the name of the volume; empty: that of all */}}
{{- define "keyhole.security.volumes" -}}
{{- $tls := .root.Values.security.tls }}
{{- if $tls.enabled }}
{{- range $name, $secret := .secrets }}
- name: tls-{{ $name }}
  # For user and group alone; in decimal, as Spark's own reader of pod templates knows no octal.
  secret: {secretName: {{ $secret | default $tls.secretName | quote }}, defaultMode: 288}
{{- end }}
{{- end }}
{{- with .root.Values.security.access.policyConfigMap }}
- name: policy
  configMap: {name: {{ . | quote }}}
{{- end }}
{{- with .root.Values.security.access.tokensSecret }}
- name: tokens
  secret: {secretName: {{ . | quote }}, defaultMode: 288}
{{- end }}
{{- if not (hasKey .secrets "client-proxy") }}
{{- include "keyhole.kafka.volume" .root }}
{{- end }}
{{- end }}

{{/* How Kafka is spoken to, for all that do: proxies don't. */}}
{{- define "keyhole.kafka.mount" -}}
{{- if .Values.kafka.clientSecret }}
- {name: kafka-client, mountPath: /etc/keyhole/kafka, readOnly: true}
{{- end }}
{{- end }}

{{- define "keyhole.kafka.volume" -}}
{{- with .Values.kafka.clientSecret }}
- name: kafka-client
  secret: {secretName: {{ . | quote }}, defaultMode: 288}
{{- end }}
{{- end }}

{{/* A token to show to proxies; the Secret's name, or nothing. */}}
{{- define "keyhole.token.mount" -}}
{{- if . }}
- {name: token, mountPath: /etc/keyhole/token, readOnly: true}
{{- end }}
{{- end }}

{{- define "keyhole.token.volume" -}}
{{- with . }}
- name: token
  secret: {secretName: {{ . | quote }}, defaultMode: 288}
{{- end }}
{{- end }}
