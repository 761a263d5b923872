{{- define "gpu-topology.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "gpu-topology.agentImage" -}}
{{- $repository := .Values.agent.image.repository | default (printf "%s-agent" .Values.image.repository) -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The version of the cluster without what its provider adds to it: v1.33.4-eks-5e0fdde. */ -}}
{{- define "gpu-topology.schedulerImage" -}}
{{- $cluster := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.scheduler.image.repository }}:{{ .Values.scheduler.image.tag | default $cluster }}
{{- end }}

{{- define "gpu-topology.schedulerLabels" -}}
app.kubernetes.io/component: scheduler
app.kubernetes.io/name: gpu-topology
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
