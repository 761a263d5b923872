package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/sets"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin stands at the other end of the device manager's calls, without a socket between.
type plugin struct {
	machine   *machine
	allocator *allocator
}

func newPlugin(described *machine, nvidia *allocator) (*plugin, error) {
	settings := described.Plugin
	switch settings.Policy {
	case "distributed", "packed", "none":
	case "best-effort":
		machine := allocatorQuestion{PCIe: settings.PCIe, NVLinks: settings.NVLinks}
		for _, device := range described.Devices {
			machine.UUIDs = append(machine.UUIDs, device.ID)
		}
		if _, err := nvidia.ask(machine); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("plugin: policy %q is unknown", settings.Policy)
	}
	return &plugin{described, nvidia}, nil
}

// API, Resource and SocketPath are the device manager's view of a plugin.
func (p *plugin) API() api.DevicePluginClient { return p }
func (p *plugin) Resource() string            { return p.machine.Resource }
func (p *plugin) SocketPath() string          { return "" }

func (p *plugin) listed(sick sets.Set[string]) *api.ListAndWatchResponse {
	found := &api.ListAndWatchResponse{}
	for _, spec := range p.machine.Devices {
		device := &api.Device{ID: spec.ID, Health: api.Healthy}
		if sick.Has(spec.ID) {
			device.Health = api.Unhealthy
		}
		for _, id := range spec.NUMA {
			if device.Topology == nil {
				device.Topology = &api.TopologyInfo{}
			}
			device.Topology.Nodes = append(device.Topology.Nodes, &api.NUMANode{ID: id})
		}
		found.Devices = append(found.Devices, device)
	}
	return found
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty, ...grpc.CallOption) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: p.machine.Plugin.Policy != "none"}, nil
}

func (p *plugin) ListAndWatch(context.Context, *api.Empty, ...grpc.CallOption) (grpc.ServerStreamingClient[api.ListAndWatchResponse], error) {
	return nil, fmt.Errorf("devices are listed without a stream")
}

func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest, ...grpc.CallOption) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

// Allocate answers as NVIDIA's plugin: one that shares GPUs may refuse more than one device.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest, _ ...grpc.CallOption) (*api.AllocateResponse, error) {
	found := &api.AllocateResponse{}
	for _, asked := range request.GetContainerRequests() {
		if p.machine.Plugin.RefusesMany && len(asked.GetDevicesIds()) > 1 {
			return nil, fmt.Errorf("maximum request size for shared resources is 1; found %d", len(asked.GetDevicesIds()))
		}
		found.ContainerResponses = append(found.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return found, nil
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest, _ ...grpc.CallOption) (*api.PreferredAllocationResponse, error) {
	found := &api.PreferredAllocationResponse{}
	for _, asked := range request.GetContainerRequests() {
		ids, err := p.prefer(asked)
		if err != nil {
			return nil, err
		}
		found.ContainerResponses = append(found.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return found, nil
}

func (p *plugin) prefer(asked *api.ContainerPreferredAllocationRequest) ([]string, error) {
	available, required := asked.GetAvailableDeviceIDs(), asked.GetMustIncludeDeviceIDs()
	size := int(asked.GetAllocationSize())
	if p.machine.Plugin.Policy == "best-effort" {
		return p.allocator.ask(allocatorQuestion{Available: available, Required: required, Size: size})
	}
	return p.greedy(available, required, size)
}

// greedy picks device by device, each of the GPU with the fewest or the most members that are not
// candidates any more. Ties fall as the unordered candidates came; with roundRobin to the GPU picked
// least.
func (p *plugin) greedy(available, required []string, size int) ([]string, error) {
	candidates := slices.DeleteFunc(slices.Clone(available), func(id string) bool { return slices.Contains(required, id) })
	if len(candidates) < size-len(required) {
		return nil, fmt.Errorf("not enough devices")
	}
	taken, picked := map[string]int{}, map[string]int{}
	for _, device := range p.machine.Devices {
		if !slices.Contains(candidates, device.ID) {
			taken[group(device.ID)]++
		}
	}
	found := slices.Clone(required)
	for len(found) < size {
		best := 0
		for at, id := range candidates {
			if p.before(group(id), group(candidates[best]), taken, picked) {
				best = at
			}
		}
		chosen := candidates[best]
		candidates = slices.Delete(candidates, best, best+1)
		found = append(found, chosen)
		taken[group(chosen)]++
		picked[group(chosen)]++
	}
	return found, nil
}

func (p *plugin) before(a, b string, taken, picked map[string]int) bool {
	if taken[a] != taken[b] {
		return (taken[a] < taken[b]) == (p.machine.Plugin.Policy == "distributed")
	}
	return p.machine.Plugin.RoundRobin && picked[a] < picked[b]
}

// group is what the replicas of one device have in common.
func group(id string) string {
	name, _, _ := strings.Cut(id, "::")
	return name
}
