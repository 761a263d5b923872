package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// runtimeService answers what a kubelet asks of a runtime. What it lacks (exec, attach, events …)
// is answered Unimplemented.
type runtimeService struct {
	cri.UnimplementedRuntimeServiceServer
	store   *store
	logs    string
	streams streaming.Server
}

func (r *runtimeService) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       "records",
		RuntimeVersion:    "0.1.0",
		RuntimeApiVersion: "v1",
	}, nil
}

func (r *runtimeService) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	conditions := []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: true},
	}
	return &cri.StatusResponse{
		Status:          &cri.RuntimeStatus{Conditions: conditions},
		RuntimeHandlers: []*cri.RuntimeHandler{{Name: ""}},
	}, nil
}

func (r *runtimeService) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	linux := &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS}
	return &cri.RuntimeConfigResponse{Linux: linux}, nil
}

func (r *runtimeService) UpdateRuntimeConfig(context.Context, *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}

func (r *runtimeService) UpdateContainerResources(context.Context, *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func (r *runtimeService) UpdatePodSandboxResources(context.Context, *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

func (r *runtimeService) ReopenContainerLog(context.Context, *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	return &cri.ReopenContainerLogResponse{}, nil
}

func (r *runtimeService) ListContainerStats(context.Context, *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	return &cri.ListContainerStatsResponse{}, nil
}

func (r *runtimeService) ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

func (r *runtimeService) ListMetricDescriptors(context.Context, *cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse, error) {
	return &cri.ListMetricDescriptorsResponse{}, nil
}

func (r *runtimeService) ListPodSandboxMetrics(context.Context, *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse, error) {
	return &cri.ListPodSandboxMetricsResponse{}, nil
}

// logPath is where a container logs. It must never be empty: the kubelet cleans up the logs of a
// removed container by the pattern path + "*", relative to its own working folder.
func (r *runtimeService) logPath(id string, config *cri.ContainerConfig, pod *cri.PodSandboxConfig) (string, error) {
	path := filepath.Join(pod.GetLogDirectory(), config.GetLogPath())
	if pod.GetLogDirectory() == "" || config.GetLogPath() == "" {
		path = filepath.Join(r.logs, id, "0.log")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	return path, file.Close()
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
