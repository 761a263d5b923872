package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin serves a described machine as NVIDIA's plugin serves whole GPUs.
type plugin struct {
	api.UnimplementedDevicePluginServer
	machine *machine
	list    gpuallocator.DeviceList
	policy  gpuallocator.Policy
	delay   time.Duration
	done    <-chan struct{}
	lock    sync.Mutex
	calls   io.Writer
}

// call is one line of the log: GPUs by index, -1 for a nil in the answer.
type call struct {
	Available []int `json:"available"`
	Must      []int `json:"must"`
	Size      int   `json:"size"`
	Answer    []int `json:"answer"`
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends the devices once, all healthy: nothing changes here.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	answer := &api.ListAndWatchResponse{}
	for index, uuid := range p.machine.UUIDs {
		device := &api.Device{ID: uuid, Health: api.Healthy}
		if numa := p.machine.NUMA[index]; numa >= 0 {
			device.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: numa}}}
		}
		answer.Devices = append(answer.Devices, device)
	}
	if err := stream.Send(answer); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-stream.Context().Done():
	}
	return nil
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, asked := range request.GetContainerRequests() {
		ids, err := p.prefer(asked)
		if err != nil {
			return nil, err
		}
		chosen := &api.ContainerPreferredAllocationResponse{DeviceIDs: ids}
		answer.ContainerResponses = append(answer.ContainerResponses, chosen)
	}
	return answer, nil
}

// prefer asks go-gpuallocator and logs what it said. An answer with a nil in it ends the process,
// as it ends NVIDIA's plugin.
func (p *plugin) prefer(asked *api.ContainerPreferredAllocationRequest) ([]string, error) {
	available, err := p.list.Filter(asked.GetAvailableDeviceIDs())
	if err != nil {
		return nil, err
	}
	required, err := p.list.Filter(asked.GetMustIncludeDeviceIDs())
	if err != nil {
		return nil, err
	}
	time.Sleep(p.delay)
	size := int(asked.GetAllocationSize())
	chosen := p.policy.Allocate(available, required, size)
	p.log(call{indices(available), indices(required), size, indices(chosen)})
	ids := make([]string, 0, size)
	for _, device := range chosen {
		if device == nil {
			panic("go-gpuallocator answered with a nil device")
		}
		ids = append(ids, device.UUID)
	}
	return ids, nil
}

func (p *plugin) log(entry call) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if err := json.NewEncoder(p.calls).Encode(entry); err != nil {
		panic(err)
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, asked := range request.GetContainerRequests() {
		for _, id := range asked.GetDevicesIds() {
			if !slices.Contains(p.machine.UUIDs, id) {
				return nil, fmt.Errorf("unknown device %q", id)
			}
		}
		visible := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(asked.GetDevicesIds(), ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: visible})
	}
	return answer, nil
}

func indices(devices []*gpuallocator.Device) []int {
	found := make([]int, 0, len(devices))
	for _, device := range devices {
		if device == nil {
			found = append(found, -1)
		} else {
			found = append(found, device.Index)
		}
	}
	slices.Sort(found)
	return found
}
