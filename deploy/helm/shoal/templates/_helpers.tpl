{{- define "shoal.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else }}{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 48 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" }}{{ end }}{{ end }}
{{- end }}

{{- define "shoal.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "shoal.single" -}}{{ if not .Values.kafka.bootstrap }}true{{ end }}{{- end }}
{{- define "shoal.bootstrap" -}}
{{ .Values.kafka.bootstrap | default (printf "%s-broker:9092" (include "shoal.fullname" .)) }}
{{- end }}
{{- /* Whether gateways reach the embedded broker, and the Secret with its certificate. */ -}}
{{- define "shoal.serveBroker" -}}
{{ if and (include "shoal.single" .) .Values.gateway.enabled }}true{{ end }}
{{- end }}
{{- define "shoal.brokerSecret" -}}
{{ .Values.broker.existingSecret | default (printf "%s-broker" (include "shoal.fullname" .)) }}
{{- end }}
{{- define "shoal.windows" -}}
{{ if and .Values.kafka.bootstrap (eq .Values.controller.demand "merged") }}true{{ end }}
{{- end }}
{{- define "shoal.namespace" -}}{{ default .Release.Namespace .Values.engines.namespace }}{{- end }}
{{- define "shoal.account" -}}
{{ .Values.serviceAccount.name | default (printf "%s-executor" (include "shoal.fullname" .)) }}
{{- end }}
{{- define "shoal.secret" -}}{{ include "shoal.fullname" . }}{{- end }}
{{- define "shoal.configmap" -}}
{{ .Values.config.existingConfigMap | default (include "shoal.fullname" .) }}
{{- end }}

{{- define "shoal.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* Seconds from SIGTERM until the pod is killed: the drain, the time before it, and a margin. */ -}}
{{- define "shoal.gatewayGrace" -}}
{{ add .Values.gateway.drainSeconds .Values.gateway.preStopSeconds 10 }}
{{- end }}

{{- /* Settings of the pods of a component, as YAML. Takes (list root component). */ -}}
{{- define "shoal.pod" -}}
{{- $values := (index . 0).Values -}}
{{- $part := ternary "controller" (index . 1) (eq (index . 1) "single") -}}
{{- mergeOverwrite (deepCopy $values.pod) ((index $values $part | default dict).pod | default dict) | toYaml }}
{{- end }}

{{- define "shoal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Metadata and scheduling of every pod. Take (list root component). */ -}}
{{- define "shoal.podMeta" -}}
{{- $root := index . 0 }}{{ $pod := include "shoal.pod" . | fromYaml -}}
labels:
  {{- include "shoal.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
  {{- with $pod.labels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  shoal.dev/config: {{ $root.Values.config.text | sha256sum | trunc 16 }}
  shoal.dev/secrets: {{ include "shoal.secretData" $root | sha256sum | trunc 16 }}
  {{- with $pod.annotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{- define "shoal.scheduling" -}}
{{- $root := index . 0 }}{{ $pod := include "shoal.pod" . | fromYaml -}}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
  {{- with $pod.user }}
  runAsUser: {{ int . }}
  runAsGroup: {{ int . }}
  fsGroup: {{ int . }}
  {{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with pick $pod "nodeSelector" "tolerations" "affinity" }}
{{- range $name, $value := . }}
{{- with $value }}
{{ $name }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
topologySpreadConstraints:
{{- with $pod.topologySpreadConstraints }}
{{ toYaml . }}
{{- else }}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "shoal.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ index $ 1 }}
{{- end }}
{{- end }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "shoal.container" -}}
image: {{ include "shoal.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "shoal.containerSecurity" . | nindent 2 }}
{{- end }}

{{- /* Probes. Liveness asks the event loop alone, so an outage of Kafka restarts nothing. */ -}}
{{- define "shoal.probes" -}}
startupProbe: {httpGet: {path: /livez, port: {{ .port }}}, periodSeconds: 2, failureThreshold: 150}
livenessProbe: {httpGet: {path: /livez, port: {{ .port }}}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: {path: {{ .ready }}, port: {{ .port }}}, periodSeconds: 2, timeoutSeconds: 2{{ with .failures }}, failureThreshold: {{ . }}{{ end }}}
{{- end }}

{{- /* Secrets as files, by component. Takes (list root components). */ -}}
{{- define "shoal.secretSources" -}}
{{- $root := index . 0 }}{{ $parts := index . 1 }}{{ $v := $root.Values -}}
{{- $own := include "shoal.secret" $root -}}
{{- with $v.kafka }}
{{- if .password }}
- secret: {name: {{ $own }}, items: [{key: kafka-password, path: kafka/password}]}
{{- else if .existingSecret }}
- secret:
    name: {{ .existingSecret }}
    items:
    {{- if hasPrefix "SASL" .protocol }}
    - {key: password, path: kafka/password}
    {{- end }}
    {{- if .ca }}
    - {key: ca.crt, path: kafka/ca.crt}
    {{- end }}
    {{- if .certificate }}
    - {key: tls.crt, path: kafka/tls.crt}
    - {key: tls.key, path: kafka/tls.key}
    {{- end }}
{{- end }}
{{- end }}
{{- if and (include "shoal.serveBroker" $root) (or (has "gateway" $parts) (has "broker" $parts)) }}
- secret:
    name: {{ include "shoal.brokerSecret" $root }}
    items: [{key: tls.crt, path: broker/tls.crt}, {key: tls.key, path: broker/tls.key}]
{{- end }}
{{- with $v.keys.existingSecret }}
- secret:
    name: {{ . }}
    items:
    {{- if or (has "controller" $parts) (has "executor" $parts) (has "windows" $parts) }}
    - {key: cluster.key, path: keys/cluster.key}
    {{- else if has "feed" $parts }}
    - {key: operator.key, path: keys/operator.key}
    {{- else }}
    {{- range $i := until (int $v.gateway.replicas) }}
    - {key: {{ include "shoal.fullname" $root }}-gateway-{{ $i }}.key, path: keys/{{ include "shoal.fullname" $root }}-gateway-{{ $i }}.key}
    {{- end }}
    {{- end }}
{{- end }}
{{- range $name := ternary (list "read" "operator" "operators" "alert") (list "read") (has "controller" $parts) }}
{{- if and (or (has "controller" $parts) (has "feed" $parts)) (include "shoal.hasToken" (list $root $name)) }}
- secret: {name: {{ $v.tokens.existingSecret | default $own }}, items: [{key: {{ $name }}, path: tokens/{{ $name }}}]}
{{- end }}
{{- end }}
{{- if or (has "gateway" $parts) (has "executor" $parts) }}
{{- if include "shoal.engineSecret" $root }}
- secret: {name: {{ include "shoal.engineSecret" $root }}, items: [{key: engine.key, path: engine/engine.key}]}
{{- end }}
{{- end }}
{{- if has "gateway" $parts }}
{{- if $v.gateway.apiKeys.existingSecret }}
- secret: {name: {{ $v.gateway.apiKeys.existingSecret }}, items: [{key: keys.yaml, path: gateway/keys.yaml}]}
{{- else if $v.gateway.apiKeys.text }}
- secret: {name: {{ $own }}, items: [{key: keys.yaml, path: gateway/keys.yaml}]}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.engineSecret" -}}
{{- if .Values.engineKey.existingSecret }}{{ .Values.engineKey.existingSecret }}
{{- else if .Values.engineKey.value }}{{ include "shoal.fullname" . }}-engine{{ end }}
{{- end }}

{{- define "shoal.hasToken" -}}
{{- $t := (index . 0).Values.tokens -}}
{{- if $t.existingSecret }}{{ if has (index . 1) $t.existingKeys }}true{{ end }}{{ else if index $t (index . 1) }}true{{ end }}
{{- end }}

{{- /* Environment of a container: every secret is a file. Takes (list root parts component), with
the component of its pod. */ -}}
{{- define "shoal.environment" -}}
{{- $root := index . 0 }}{{ $parts := index . 1 }}{{ $v := $root.Values -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: HOME, value: /tmp}
- {name: NUMBA_CACHE_DIR, value: /tmp}
{{- with (include "shoal.pod" (list $root (index . 2)) | fromYaml).env }}
{{ toYaml . }}
{{- end }}
{{- with $v.kafka }}
{{- if .bootstrap }}
- {name: SHOAL_KAFKA_PROTOCOL, value: {{ .protocol }}}
{{- if hasPrefix "SASL" .protocol }}
- {name: SHOAL_KAFKA_MECHANISM, value: {{ .mechanism }}}
- {name: SHOAL_KAFKA_USERNAME, value: {{ .username | quote }}}
- {name: SHOAL_KAFKA_PASSWORD_FILE, value: /etc/shoal/secrets/kafka/password}
{{- end }}
{{- if .ca }}
- {name: SHOAL_KAFKA_CA_FILE, value: /etc/shoal/secrets/kafka/ca.crt}
{{- end }}
{{- if .certificate }}
- {name: SHOAL_KAFKA_CERT_FILE, value: /etc/shoal/secrets/kafka/tls.crt}
- {name: SHOAL_KAFKA_KEY_FILE, value: /etc/shoal/secrets/kafka/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "shoal.serveBroker" $root) (has "gateway" $parts) }}
- {name: SHOAL_KAFKA_PROTOCOL, value: SSL}
- {name: SHOAL_KAFKA_CA_FILE, value: /etc/shoal/secrets/broker/tls.crt}
- {name: SHOAL_KAFKA_CERT_FILE, value: /etc/shoal/secrets/broker/tls.crt}
- {name: SHOAL_KAFKA_KEY_FILE, value: /etc/shoal/secrets/broker/tls.key}
{{- end }}
{{- if $v.keys.existingSecret }}
{{- if or (has "controller" $parts) (has "executor" $parts) (has "windows" $parts) }}
- {name: SHOAL_CLUSTER_KEY_FILE, value: /etc/shoal/secrets/keys/cluster.key}
{{- else if has "feed" $parts }}
- {name: SHOAL_OPERATOR_KEY_FILE, value: /etc/shoal/secrets/keys/operator.key}
{{- else }}
- {name: SHOAL_GATEWAY_KEY_FILE, value: /etc/shoal/secrets/keys/$(POD_NAME).key}
{{- end }}
{{- end }}
{{- if and (or (has "controller" $parts) (has "feed" $parts)) (include "shoal.hasToken" (list $root "read")) }}
- {name: SHOAL_READ_TOKEN_FILE, value: /etc/shoal/secrets/tokens/read}
{{- end }}
{{- if and (has "controller" $parts) (include "shoal.hasToken" (list $root "operator")) }}
- {name: SHOAL_OPERATOR_TOKEN_FILE, value: /etc/shoal/secrets/tokens/operator}
{{- end }}
{{- if and (has "controller" $parts) (include "shoal.hasToken" (list $root "operators")) }}
- {name: SHOAL_OPERATORS_FILE, value: /etc/shoal/secrets/tokens/operators}
{{- end }}
{{- if and (or (has "gateway" $parts) (has "executor" $parts)) (include "shoal.engineSecret" $root) }}
- {name: SHOAL_ENGINE_KEY_FILE, value: /etc/shoal/secrets/engine/engine.key}
{{- end }}
{{- end }}

{{- /* Takes (list root component). */ -}}
{{- define "shoal.mounts" -}}
{{- with (include "shoal.pod" . | fromYaml).volumeMounts }}
{{- toYaml . }}
{{ end -}}
- {name: config, mountPath: /etc/shoal/config, readOnly: true}
- {name: secrets, mountPath: /etc/shoal/secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- /* Takes (list root parts component). */ -}}
{{- define "shoal.volumes" -}}
{{- with (include "shoal.pod" (list (index . 0) (index . 2)) | fromYaml).volumes }}
{{- toYaml . }}
{{ end -}}
- {name: config, configMap: {name: {{ include "shoal.configmap" (index . 0) }}}}
- name: secrets
  projected:
    defaultMode: 0440
    sources: {{ include "shoal.secretSources" . | trim | default "[]" | nindent 6 }}
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
{{- end }}

{{- /* Options of the parts, each a list of words. */ -}}
{{- define "shoal.controllerArgs" -}}
- --http=0.0.0.0:8702
- --log-format=json
- --demand={{ .Values.controller.demand }}
{{- if .Values.controller.decisionLog.enabled }}
- --record=/var/lib/shoal/decisions
- --record-mib={{ .Values.controller.decisionLog.mib }}
{{- else }}
- --record=
{{- end }}
{{- if include "shoal.hasToken" (list . "alert") }}
- --alert-token-file=/etc/shoal/secrets/tokens/alert
{{- end }}
{{- range .Values.controller.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "shoal.gatewayArgs" -}}
- --log-format=json
- --host=0.0.0.0
- --port=8700
- --workers={{ .Values.gateway.workers }}
- --drain-s={{ .Values.gateway.drainSeconds }}
- --state-dir=/tmp/gateway
{{- if or .Values.gateway.apiKeys.text .Values.gateway.apiKeys.existingSecret }}
- --keys-file=/etc/shoal/secrets/gateway/keys.yaml
{{- end }}
{{- with .Values.gateway.allowedHosts }}
- --allowed-hosts={{ join "," . }}
{{- end }}
{{- range .Values.gateway.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "shoal.executorArgs" -}}
- --kubernetes
- --log-format=json
- --namespace={{ include "shoal.namespace" . }}
- --advertise=$(POD_IP)
- --state-dir=/tmp/executor
- --metrics-host=0.0.0.0
- --metrics-port=8703
{{- if eq .Values.executor.mode "pods" }}
- --pod-templates=/etc/shoal/templates
{{- end }}
{{- with .Values.executor.pools }}
- --pools={{ join "," . }}
{{- end }}
{{- if not .Values.executor.readNodes }}
- --no-nodes
{{- end }}
{{- with .Values.executor.routeLagSeconds }}
- --route-lag={{ . }}
{{- end }}
{{- if include "shoal.engineSecret" . }}
- --engine-key-secret={{ include "shoal.engineSecret" . }}/engine.key
{{- end }}
{{- range .Values.executor.scaleKinds }}
- --scale-kind={{ . }}
{{- end }}
{{- if .Values.models.enabled }}
- --models-from=http://{{ ternary "127.0.0.1" (printf "%s-controller" (include "shoal.fullname" .)) (not (empty (include "shoal.single" .))) }}:8702
{{- end }}
{{- range .Values.executor.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "shoal.templatesName" -}}
{{ .Values.executor.existingPodTemplates | default (printf "%s-pod-templates" (include "shoal.fullname" .)) }}
{{- end }}

{{- define "shoal.secretData" -}}
{{- with .Values.kafka.password }}
kafka-password: {{ . | quote }}
{{- end }}
{{- range $name := list "read" "operator" "operators" "alert" }}
{{- with index $.Values.tokens $name }}
{{ $name }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- with .Values.gateway.apiKeys.text }}
keys.yaml: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "shoal.acts" -}}{{ if and .Values.executor.enabled (ne .Values.executor.mode "observe") }}true{{ end }}{{- end }}

{{- /* Containers that feed free GPUs and prices of the cluster to the controller at .url. */ -}}
{{- define "shoal.supplyContainers" -}}
{{- $root := index . 0 }}{{ $parts := index . 1 }}{{ $url := index . 2 }}{{ $component := index . 3 -}}
- name: supply
  {{- include "shoal.container" $root | nindent 2 }}
  args:
  - kubernetes
  - availability
  - --config=/etc/shoal/config/shoal.yaml
  - --namespace={{ include "shoal.namespace" $root }}
  - --serve=127.0.0.1:9210
  env: {{- include "shoal.environment" (list $root $parts $component) | nindent 2 }}
  resources: {{- toYaml $root.Values.supply.resources | nindent 4 }}
  volumeMounts: {{- include "shoal.mounts" (list $root $component) | nindent 2 }}
{{- range $feed := list "availability" "prices" }}
- name: feed-{{ $feed }}
  {{- include "shoal.container" $root | nindent 2 }}
  args: [feed, {{ $feed }}, "--from=http://127.0.0.1:9210/{{ $feed }}", --follow, "--url={{ $url }}"]
  env: {{- include "shoal.environment" (list $root $parts $component) | nindent 2 }}
  resources: {{- toYaml $root.Values.supply.resources | nindent 4 }}
  volumeMounts: {{- include "shoal.mounts" (list $root $component) | nindent 2 }}
{{- end }}
{{- end }}
