{{- /* Values that are valid each but not together. Each refusal says why and names the way out. */ -}}
{{- define "shoal.refuse" -}}
{{- $v := .Values -}}
{{- if not (or $v.config.text $v.config.existingConfigMap) }}
{{- fail "config is empty: give the shoal.yaml (--set-file config.text=shoal.yaml) or config.existingConfigMap" }}
{{- end }}
{{- if and $v.config.text $v.config.existingConfigMap }}
{{- fail "config.text and config.existingConfigMap are both set: allowed is one of them" }}
{{- end }}
{{- if include "shoal.single" . }}
{{- if gt (int $v.controller.replicas) 1 }}
{{- fail (printf "controller.replicas is %d, but kafka.bootstrap is not set: controllers elect a leader through Kafka; allowed is 1, or set kafka.bootstrap" (int $v.controller.replicas)) }}
{{- end }}
{{- if gt (int $v.executor.replicas) 1 }}
{{- fail (printf "executor.replicas is %d, but kafka.bootstrap is not set: one pod runs all parts; allowed is 1, or set kafka.bootstrap" (int $v.executor.replicas)) }}
{{- end }}
{{- if gt (int $v.windows.replicas) 1 }}
{{- fail (printf "windows.replicas is %d, but kafka.bootstrap is not set: without Kafka the controller merges the telemetry itself; allowed is 0 or 1, or set kafka.bootstrap" (int $v.windows.replicas)) }}
{{- end }}
{{- if or (ne $v.kafka.protocol "PLAINTEXT") $v.kafka.password $v.kafka.existingSecret }}
{{- fail "kafka has a protocol or a login, but kafka.bootstrap is not set" }}
{{- end }}
{{- end }}
{{- if and (include "shoal.windows" .) (lt (int $v.windows.replicas) 1) }}
{{- fail "windows.replicas is 0, but controller.demand is merged: no process would merge the telemetry; allowed is 1 or more, or set controller.demand=telemetry" }}
{{- end }}
{{- if and $v.kafka.password $v.kafka.existingSecret }}
{{- fail "kafka.password and kafka.existingSecret are both set: allowed is one of them" }}
{{- end }}
{{- if hasPrefix "SASL" $v.kafka.protocol }}
{{- if not (and $v.kafka.mechanism $v.kafka.username (or $v.kafka.password $v.kafka.existingSecret)) }}
{{- fail (printf "kafka.protocol is %s: kafka.mechanism, kafka.username, and kafka.existingSecret or kafka.password are needed" $v.kafka.protocol) }}
{{- end }}
{{- else if $v.kafka.password }}
{{- fail (printf "kafka.password is set, but kafka.protocol is %s: allowed with SASL_SSL and SASL_PLAINTEXT" $v.kafka.protocol) }}
{{- end }}
{{- if and (or $v.kafka.ca $v.kafka.certificate) (not $v.kafka.existingSecret) }}
{{- fail "kafka.ca or kafka.certificate is set: their files come from kafka.existingSecret, which is not set" }}
{{- end }}
{{- if and $v.kafka.bootstrap $v.broker.existingSecret }}
{{- fail "broker.existingSecret and kafka.bootstrap are both set: it is for the embedded broker; allowed is one of them" }}
{{- end }}
{{- if and $v.tokens.existingSecret (or $v.tokens.read $v.tokens.operator $v.tokens.operators $v.tokens.alert) }}
{{- fail "tokens.existingSecret and tokens in the values are both set: allowed is one of them" }}
{{- end }}
{{- if and $v.engineKey.value $v.engineKey.existingSecret }}
{{- fail "engineKey.value and engineKey.existingSecret are both set: allowed is one of them" }}
{{- end }}
{{- if and $v.gateway.apiKeys.text $v.gateway.apiKeys.existingSecret }}
{{- fail "gateway.apiKeys.text and gateway.apiKeys.existingSecret are both set: allowed is one of them" }}
{{- end }}
{{- if and $v.engineKey.value (ne (include "shoal.namespace" .) .Release.Namespace) }}
{{- fail (printf "engineKey.value is set, but the engines are in namespace %s: their pods read a Secret of that namespace; make one in both namespaces and name it in engineKey.existingSecret" (include "shoal.namespace" .)) }}
{{- end }}
{{- if and (include "shoal.acts" .) (eq $v.executor.mode "pods") (not (or $v.executor.podTemplates $v.executor.existingPodTemplates)) }}
{{- fail "executor.mode is pods, but there is no pod template: give executor.podTemplates (pod.yaml) or executor.existingPodTemplates" }}
{{- end }}
{{- if and $v.executor.scaleKinds (eq $v.executor.mode "observe") }}
{{- fail "executor.scaleKinds is set, but executor.mode is observe: allowed with scale and pods" }}
{{- end }}
{{- if and $v.executor.podTemplates $v.executor.existingPodTemplates }}
{{- fail "executor.podTemplates and executor.existingPodTemplates are both set: allowed is one of them" }}
{{- end }}
{{- if and $v.models.enabled (not (include "shoal.acts" .)) }}
{{- fail "models.enabled is true, but no executor acts, and only an executor writes these objects; allowed with executor.mode scale and pods" }}
{{- end }}
{{- if and $v.supply.enabled $v.executor.enabled (not $v.executor.readNodes) }}
{{- fail "supply.enabled is true, but executor.readNodes is false: free GPUs and prices are read from nodes; set supply.enabled=false" }}
{{- end }}
{{- if and (not $v.serviceAccount.create) (not $v.serviceAccount.name) }}
{{- fail "serviceAccount.create is false: serviceAccount.name is needed" }}
{{- end }}
{{- range $file, $text := $v.executor.podTemplates }}
{{- $template := fromYaml $text }}
{{- with $template.Error }}
{{- fail (printf "executor.podTemplates.%s is not YAML: %s" $file .) }}
{{- end }}
{{- if not (kindIs "slice" (dig "spec" "containers" "" $template)) }}
{{- fail (printf "executor.podTemplates.%s has no list spec.containers: allowed is a pod" $file) }}
{{- end }}
{{- end }}
{{- end }}
