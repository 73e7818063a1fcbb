{{- define "quorate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Cut to 50, so that -redis-0 and the other suffixes still fit into 63. */}}
{{- define "quorate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "quorate.redisName" -}}
{{- printf "%s-redis" (include "quorate.fullname" .) -}}
{{- end -}}

{{/* Called with a dict: root, component. */}}
{{- define "quorate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "quorate.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "quorate.labels" -}}
{{ include "quorate.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: quorate
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Labels of pods: none that changes with the chart's version, or each upgrade of the chart would
restart every Redis node for nothing.
*/}}
{{- define "quorate.podLabels" -}}
{{ include "quorate.selectorLabels" . }}
app.kubernetes.io/part-of: quorate
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "quorate.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "quorate.redisImage" -}}
{{- with .Values.redis.bundled.image -}}
{{- if .digest -}}{{ printf "%s@%s" .repository .digest }}{{- else -}}{{ printf "%s:%s" .repository .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "quorate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "quorate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The secret that holds the nodes' URLs, and the key in it. */}}
{{- define "quorate.redisSecretName" -}}
{{- if .Values.redis.existingSecret -}}
{{- .Values.redis.existingSecret -}}
{{- else -}}
{{- printf "%s-nodes" (include "quorate.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "quorate.redisSecretKey" -}}
{{- if .Values.redis.existingSecret -}}{{ .Values.redis.existingSecretKey }}{{- else -}}urls{{- end -}}
{{- end -}}

{{/* Secret and key of the password for URLs without one; empty where there is none. */}}
{{- define "quorate.passwordSecretName" -}}
{{- if .Values.redis.bundled.enabled -}}
{{- if .Values.redis.bundled.auth.enabled -}}
{{- .Values.redis.bundled.auth.existingSecret | default (printf "%s-nodes" (include "quorate.fullname" .)) -}}
{{- end -}}
{{- else -}}
{{- .Values.redis.passwordSecret -}}
{{- end -}}
{{- end -}}

{{- define "quorate.passwordSecretKey" -}}
{{- if .Values.redis.bundled.enabled -}}password{{- else -}}{{ .Values.redis.passwordSecretKey }}{{- end -}}
{{- end -}}

{{- define "quorate.keysSecretName" -}}
{{- .Values.auth.existingSecret | default (printf "%s-keys" (include "quorate.fullname" .)) -}}
{{- end -}}

{{- define "quorate.keysSecretKey" -}}
{{- if .Values.auth.existingSecret -}}{{ .Values.auth.existingSecretKey }}{{- else -}}keys.toml{{- end -}}
{{- end -}}

{{/* "true" where the chart itself makes the first key. */}}
{{- define "quorate.makesKey" -}}
{{- if not (or .Values.auth.existingSecret .Values.auth.keys .Values.auth.insecureNoAuth) -}}true{{- end -}}
{{- end -}}

{{- define "quorate.initialKeyName" -}}
{{- printf "%s-initial-key" (include "quorate.fullname" .) -}}
{{- end -}}

{{- define "quorate.tlsSecretName" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "quorate.fullname" .)) -}}
{{- end -}}

{{/*
How long a restarted node abstains, in whole seconds: the longest lease and its drift (1 %),
and some seconds until every server has looked again. Longer where maxTtlSeconds was larger
before, which only the nodes know (ready.sh in redis.yaml).
*/}}
{{- define "quorate.quarantineSeconds" -}}
{{- $ttl := int .Values.config.maxTtlSeconds -}}
{{- add $ttl (div (add $ttl 99) 100) 15 -}}
{{- end -}}

{{/*
Mistakes that the schema cannot express, each with what to do about it. Included by the
Deployment, so that nothing renders while one stands.
*/}}
{{- define "quorate.validate" -}}
{{- $redis := .Values.redis -}}
{{- $ways := 0 -}}
{{- if $redis.existingSecret }}{{ $ways = add1 $ways }}{{ end -}}
{{- if $redis.urls }}{{ $ways = add1 $ways }}{{ end -}}
{{- if $redis.bundled.enabled }}{{ $ways = add1 $ways }}{{ end -}}
{{- if ne (int $ways) 1 -}}
{{- fail "quorate: say where the nodes are, in exactly one way: redis.existingSecret, redis.urls, or redis.bundled.enabled=true" -}}
{{- end -}}
{{- if ne (len $redis.urls) (len (uniq $redis.urls)) -}}
{{- fail "quorate: redis.urls names a node twice; a node has one vote" -}}
{{- end -}}
{{- if and $redis.caSecret (not $redis.existingSecret) (not (contains "rediss://" (join "," $redis.urls))) -}}
{{- fail "quorate: redis.caSecret is for rediss:// nodes, and none is one" -}}
{{- end -}}
{{- $auths := 0 -}}
{{- if .Values.auth.existingSecret }}{{ $auths = add1 $auths }}{{ end -}}
{{- if .Values.auth.keys }}{{ $auths = add1 $auths }}{{ end -}}
{{- if .Values.auth.insecureNoAuth }}{{ $auths = add1 $auths }}{{ end -}}
{{- if gt (int $auths) 1 -}}
{{- fail "quorate: auth.existingSecret, auth.keys and auth.insecureNoAuth exclude each other" -}}
{{- end -}}
{{- if and .Values.tls.certificate (not .Values.tls.privateKey) -}}
{{- fail "quorate: tls.certificate without tls.privateKey" -}}
{{- end -}}
{{- if and .Values.tls.privateKey (not .Values.tls.certificate) -}}
{{- fail "quorate: tls.privateKey without tls.certificate" -}}
{{- end -}}
{{- if and .Values.tls.enabled .Values.tls.clientCA (not .Values.tls.existingSecret) (not .Values.tls.clientCACertificate) -}}
{{- fail "quorate: tls.clientCA needs the CA: tls.clientCACertificate, or ca.crt in tls.existingSecret" -}}
{{- end -}}
{{- /* These would be passed over, or hold for the servers and not for all that must agree with them. */ -}}
{{- $own := dict
  "QUORATE_LISTEN" "service.port (the pods' own port is fixed)"
  "QUORATE_REDIS" "redis.urls"
  "QUORATE_REDIS_FILE" "redis.existingSecret or redis.urls"
  "QUORATE_REDIS_PASSWORD_FILE" "redis.passwordSecret or redis.bundled.auth"
  "QUORATE_REDIS_CA" "redis.caSecret"
  "QUORATE_KEY_PREFIX" "config.keyPrefix"
  "QUORATE_MAX_TTL" "config.maxTtlSeconds"
  "QUORATE_SHUTDOWN_TIMEOUT" "config.shutdownTimeoutSeconds"
  "QUORATE_API_KEYS" "auth.existingSecret or auth.keys"
  "QUORATE_INSECURE_NO_AUTH" "auth.insecureNoAuth"
  "QUORATE_TLS_CERT" "tls.enabled, and tls.existingSecret or tls.certificate"
  "QUORATE_TLS_KEY" "tls.enabled, and tls.existingSecret or tls.privateKey"
  "QUORATE_TLS_CLIENT_CA" "tls.clientCA" -}}
{{- $extra := keys (.Values.config.extra | default dict) -}}
{{- range .Values.extraEnv }}{{ $extra = append $extra .name }}{{ end -}}
{{- range $name := sortAlpha $extra -}}
{{- with get $own $name -}}
{{- fail (printf "quorate: %s has no place in config.extra or extraEnv; set %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- /* A label given twice is refused by the API server, or breaks a selector. */ -}}
{{- $podLabels := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" -}}
{{- $allLabels := concat $podLabels (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart") -}}
{{- $labels := dict
  "commonLabels" .Values.commonLabels
  "podLabels" .Values.podLabels
  "redis.bundled.podLabels" $redis.bundled.podLabels
  "service.labels" .Values.service.labels
  "serviceMonitor.labels" .Values.serviceMonitor.labels
  "prometheusRule.labels" .Values.prometheusRule.labels
  "dashboard.labels" .Values.dashboard.labels -}}
{{- range $where, $given := $labels -}}
{{- range $label := keys ($given | default dict) | sortAlpha -}}
{{- if has $label (hasSuffix "podLabels" $where | ternary $podLabels $allLabels) -}}
{{- fail (printf "quorate: %s: %s is a label of the chart's own" $where $label) -}}
{{- end -}}
{{- if and (ne $where "commonLabels") (hasKey ($.Values.commonLabels | default dict) $label) -}}
{{- fail (printf "quorate: %s: %s is in commonLabels, too" $where $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (eq (eq (toString .minAvailable) "") (eq (toString .maxUnavailable) "")) -}}
{{- fail "quorate: set exactly one of podDisruptionBudget.minAvailable and .maxUnavailable (the other to \"\")" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "quorate: autoscaling.minReplicas is more than autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}

{{/* Settings that server and init share: where the nodes are, and what their markers say. */}}
{{- define "quorate.nodeEnv" -}}
- name: QUORATE_REDIS_FILE
  value: /etc/quorate/nodes/{{ include "quorate.redisSecretKey" . }}
{{- if include "quorate.passwordSecretName" . }}
- name: QUORATE_REDIS_PASSWORD_FILE
  value: /etc/quorate/nodes-password/{{ include "quorate.passwordSecretKey" . }}
{{- end }}
{{- if .Values.redis.caSecret }}
- name: QUORATE_REDIS_CA
  value: /etc/quorate/nodes-ca/{{ .Values.redis.caSecretKey }}
{{- end }}
- name: QUORATE_MAX_TTL
  value: {{ printf "%ds" (int .Values.config.maxTtlSeconds) | quote }}
{{- with .Values.config.keyPrefix }}
- name: QUORATE_KEY_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* What these settings lead to. Only the entries that are wanted: a secret may hold more. */}}
{{- define "quorate.nodeMounts" -}}
- { name: nodes, mountPath: /etc/quorate/nodes, readOnly: true }
{{- if include "quorate.passwordSecretName" . }}
- { name: nodes-password, mountPath: /etc/quorate/nodes-password, readOnly: true }
{{- end }}
{{- if .Values.redis.caSecret }}
- { name: nodes-ca, mountPath: /etc/quorate/nodes-ca, readOnly: true }
{{- end }}
{{- end -}}

{{- define "quorate.nodeVolumes" -}}
- name: nodes
  secret:
    secretName: {{ include "quorate.redisSecretName" . }}
    defaultMode: 0440
    items:
      - { key: {{ include "quorate.redisSecretKey" . }}, path: {{ include "quorate.redisSecretKey" . }} }
{{- with include "quorate.passwordSecretName" . }}
- name: nodes-password
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - { key: {{ include "quorate.passwordSecretKey" $ }}, path: {{ include "quorate.passwordSecretKey" $ }} }
{{- end }}
{{- with .Values.redis.caSecret }}
- name: nodes-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - { key: {{ $.Values.redis.caSecretKey }}, path: {{ $.Values.redis.caSecretKey }} }
{{- end }}
{{- end -}}
