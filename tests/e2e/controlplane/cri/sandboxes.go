package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *runtimeService) RunPodSandbox(_ context.Context, request *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	id := r.store.id()
	// The kubelet takes a sandbox without an address for a broken one; nobody ever dials it.
	address := fmt.Sprintf("198.18.%d.%d", r.store.count/250%250, r.store.count%250+1)
	r.store.sandboxes[id] = &sandbox{
		id:      id,
		config:  request.GetConfig(),
		handler: request.GetRuntimeHandler(),
		created: time.Now(),
		ready:   true,
		address: address,
	}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (r *runtimeService) StopPodSandbox(_ context.Context, request *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	if found, ok := r.store.sandboxes[request.GetPodSandboxId()]; ok {
		found.ready = false
	}
	for _, c := range r.store.members(request.GetPodSandboxId()) {
		c.stop(time.Now())
	}
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *runtimeService) RemovePodSandbox(_ context.Context, request *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	for _, c := range r.store.members(request.GetPodSandboxId()) {
		delete(r.store.containers, c.id)
	}
	delete(r.store.sandboxes, request.GetPodSandboxId())
	return &cri.RemovePodSandboxResponse{}, nil
}

func (r *runtimeService) PodSandboxStatus(_ context.Context, request *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	found, ok := r.store.sandboxes[request.GetPodSandboxId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", request.GetPodSandboxId())
	}
	context := found.config.GetLinux().GetSecurityContext()
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id:             found.id,
		Metadata:       found.config.GetMetadata(),
		State:          found.state(),
		CreatedAt:      nanoseconds(found.created),
		Network:        &cri.PodSandboxNetworkStatus{Ip: found.address},
		Linux:          &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: context.GetNamespaceOptions()}},
		Labels:         found.config.GetLabels(),
		Annotations:    found.config.GetAnnotations(),
		RuntimeHandler: found.handler,
	}}, nil
}

func (r *runtimeService) ListPodSandbox(_ context.Context, request *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	filter := request.GetFilter()
	answer := &cri.ListPodSandboxResponse{}
	for _, s := range r.store.sandboxes {
		if filter.GetId() != "" && filter.GetId() != s.id ||
			filter.GetState() != nil && filter.GetState().GetState() != s.state() ||
			!matches(filter.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		answer.Items = append(answer.Items, &cri.PodSandbox{
			Id:             s.id,
			Metadata:       s.config.GetMetadata(),
			State:          s.state(),
			CreatedAt:      nanoseconds(s.created),
			Labels:         s.config.GetLabels(),
			Annotations:    s.config.GetAnnotations(),
			RuntimeHandler: s.handler,
		})
	}
	return answer, nil
}
