package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *runtimeService) CreateContainer(_ context.Context, request *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	if _, ok := r.store.sandboxes[request.GetPodSandboxId()]; !ok {
		return nil, status.Errorf(codes.NotFound, "no sandbox %q", request.GetPodSandboxId())
	}
	id := r.store.id()
	path, err := r.logPath(id, request.GetConfig(), request.GetSandboxConfig())
	if err != nil {
		return nil, err
	}
	r.store.containers[id] = &container{
		id:      id,
		sandbox: request.GetPodSandboxId(),
		config:  request.GetConfig(),
		logPath: path,
		created: time.Now(),
	}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

func (r *runtimeService) StartContainer(_ context.Context, request *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	found, ok := r.store.containers[request.GetContainerId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no container %q", request.GetContainerId())
	}
	if err := found.start(time.Now()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &cri.StartContainerResponse{}, nil
}

func (r *runtimeService) StopContainer(_ context.Context, request *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	if found, ok := r.store.containers[request.GetContainerId()]; ok {
		found.stop(time.Now())
	}
	return &cri.StopContainerResponse{}, nil
}

func (r *runtimeService) RemoveContainer(_ context.Context, request *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	delete(r.store.containers, request.GetContainerId())
	return &cri.RemoveContainerResponse{}, nil
}

func (r *runtimeService) ContainerStatus(_ context.Context, request *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	found, ok := r.store.containers[request.GetContainerId()]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no container %q", request.GetContainerId())
	}
	shown := &cri.ContainerStatus{
		Id:          found.id,
		Metadata:    found.config.GetMetadata(),
		State:       found.state(time.Now()),
		CreatedAt:   nanoseconds(found.created),
		StartedAt:   nanoseconds(found.started),
		Image:       found.config.GetImage(),
		ImageRef:    found.config.GetImage().GetImage(),
		ImageId:     found.config.GetImage().GetImage(),
		Labels:      found.config.GetLabels(),
		Annotations: found.config.GetAnnotations(),
		Mounts:      found.config.GetMounts(),
		LogPath:     found.logPath,
	}
	if shown.State == cri.ContainerState_CONTAINER_EXITED {
		shown.FinishedAt, shown.ExitCode = nanoseconds(found.finished), found.exitCode
		shown.Reason = "Completed"
		if found.exitCode != exitedDone {
			shown.Reason = "Error"
		}
	}
	return &cri.ContainerStatusResponse{Status: shown}, nil
}

func (r *runtimeService) ListContainers(_ context.Context, request *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	filter, now := request.GetFilter(), time.Now()
	answer := &cri.ListContainersResponse{}
	for _, c := range r.store.containers {
		if filter.GetId() != "" && filter.GetId() != c.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandbox ||
			filter.GetState() != nil && filter.GetState().GetState() != c.state(now) ||
			!matches(filter.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		answer.Containers = append(answer.Containers, &cri.Container{
			Id:           c.id,
			PodSandboxId: c.sandbox,
			Metadata:     c.config.GetMetadata(),
			Image:        c.config.GetImage(),
			ImageRef:     c.config.GetImage().GetImage(),
			ImageId:      c.config.GetImage().GetImage(),
			State:        c.state(now),
			CreatedAt:    nanoseconds(c.created),
			Labels:       c.config.GetLabels(),
			Annotations:  c.config.GetAnnotations(),
		})
	}
	return answer, nil
}
