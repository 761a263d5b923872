{{- define "gpu-topology.image" -}}
{{- include "gpu-topology.reference" (dict "value" "image" "repository" .Values.image.repository "tag" (.Values.image.tag | default .Chart.AppVersion) "digest" .Values.image.digest) }}
{{- end }}

{{- define "gpu-topology.agentImage" -}}
{{- $repository := .Values.agent.image.repository | default (printf "%s-agent" .Values.image.repository) }}
{{- include "gpu-topology.reference" (dict "value" "agent.image" "repository" $repository "tag" (.Values.image.tag | default .Chart.AppVersion) "digest" .Values.agent.image.digest) }}
{{- end }}

{{- /* The version of the cluster without what its provider adds to it: v1.33.4-eks-5e0fdde. Argo CD
hands on v1.34, of which no image has its name: the first one of it is v1.34.0. */ -}}
{{- define "gpu-topology.schedulerImage" -}}
{{- $cluster := regexFind "^v[0-9]+\\.[0-9]+(\\.[0-9]+)?" .Capabilities.KubeVersion.Version }}
{{- $patched := ternary (printf "%s.0" $cluster) $cluster (eq (len (splitList "." $cluster)) 2) }}
{{- include "gpu-topology.reference" (dict "value" "scheduler.image" "repository" .Values.scheduler.image.repository "tag" (.Values.scheduler.image.tag | default $patched) "digest" .Values.scheduler.image.digest) }}
{{- end }}

{{- /* The text by which a kubelet pulls an image. `value` is where its repository and digest were
said; the agents' tag is the extender's. */ -}}
{{- define "gpu-topology.reference" -}}
{{- if not .repository }}
{{- fail "image.repository is empty: set it to the extender's image in your registry, without its tag, such as registry.example.com/team/gpu-topology. The images are in no public registry: `make images` builds them" }}
{{- end }}
{{- if regexMatch "[:@][^/]*$" .repository }}
{{- fail (printf "%s.repository is %q: allowed is a name without tag and digest, which have values of their own" .value .repository) }}
{{- end }}
{{- if not (regexMatch "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$" .tag) }}
{{- fail (printf "%s.tag is %q: allowed is a tag, such as 0.1.0; a digest is written to %s.digest" (.value | replace "agent." "") .tag .value) }}
{{- end }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "gpu-topology.schedulerLabels" -}}
app.kubernetes.io/component: scheduler
app.kubernetes.io/name: gpu-topology
{{- end }}

{{- define "gpu-topology.certificatesLabels" -}}
app.kubernetes.io/component: certificates
app.kubernetes.io/name: gpu-topology
{{- end }}

{{- /* Not empty if the chart makes the certificates. */ -}}
{{- define "gpu-topology.certificates" -}}
{{- if and .Values.scheduler.enabled .Values.scheduler.certificates (not .Values.certManager.enabled) }}yes{{ end }}
{{- end }}

{{- define "gpu-topology.onOpenShift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}yes{{ end }}
{{- end }}

{{- define "gpu-topology.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "gpu-topology.steering" -}}
{{- $mutating := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
{{- if ne .Values.scheduler.steering "auto" }}{{ .Values.scheduler.steering }}
{{- else if $mutating }}mutate
{{- else }}refuse
{{- end }}
{{- end }}

{{- /* CEL: whether a pod asks for a resource that the extender manages. A limit is always there. */ -}}
{{- define "gpu-topology.asksForGpus" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
c.?resources.?limits.orValue({}).exists(name, name in ['nvidia.com/gpu', 'nvidia.com/gpu.shared']
|| name.startsWith('nvidia.com/mig-')))
{{- end }}

{{- /* CEL: whether a scheduler places the pod. A kubelet shows its static pods, which their files
place, as mirror pods; the accounts of scheduler.mayNameNodes choose the node by themselves. */ -}}
{{- define "gpu-topology.isScheduled" -}}
object.spec.?nodeName.orValue('') == ''
|| !('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({})
|| request.userInfo.username in [{{ range $i, $name := .Values.scheduler.mayNameNodes }}{{ if $i }}, {{ end }}'{{ $name }}'{{ end }}])
{{- end }}
