{{- /* Made by `make chart` from manifests/scheduler/kube-scheduler-config.yaml: change that. */ -}}
{{- define "gpu-topology.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: {{ .Values.scheduler.percentageOfNodesToScore }}
profiles:
- schedulerName: {{ .Values.scheduler.name | quote }}
extenders:
- urlPrefix: https://gpu-topology.{{ .Release.Namespace }}.svc:8888/scheduler
  enableHTTPS: true
  tlsConfig:
    caFile: /etc/gpu-topology/tls/ca.crt
    certFile: /etc/gpu-topology/tls/tls.crt
    keyFile: /etc/gpu-topology/tls/tls.key
    serverName: gpu-topology.{{ .Release.Namespace }}.svc
  filterVerb: filter
  prioritizeVerb: prioritize
{{- if not .Values.extender.shadow }}
  bindVerb: bind
{{- end }}
{{- if not .Values.extender.shadow }}
  preemptVerb: preempt
{{- end }}
  weight: 5
  nodeCacheCapable: true
  httpTimeout: {{ ternary "1s" "10s" (default false .Values.extender.shadow) }}
  ignorable: {{ default false .Values.extender.shadow }}
  managedResources:
  - name: nvidia.com/gpu
    ignoredByScheduler: false
  - name: nvidia.com/gpu.shared
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.5gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.5gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.10gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.10gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.20gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.20gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.40gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.6gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.6gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.12gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.12gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.24gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.10gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.20gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.20gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.40gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.40gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.80gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.12gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.12gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.24gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.24gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.47gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.47gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.94gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.48gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.48gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.96gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.18gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.18gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.35gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.35gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.71gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.71gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.141gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.36gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.36gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.72gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.72gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.144gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.23gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.23gb.me
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.45gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.45gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.90gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.90gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.180gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-1g.47gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-2g.47gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-3g.93gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-4g.93gb
    ignoredByScheduler: false
  - name: nvidia.com/mig-7g.186gb
    ignoredByScheduler: false
leaderElection:
  leaderElect: true
  resourceName: gpu-topology-scheduler
  resourceNamespace: {{ .Release.Namespace }}
{{- end }}
