// Command structured asks kube-scheduler's own allocator of Dynamic Resource Allocation.
//
// It reads a line of JSON for each question: a node's ResourceSlices, a DeviceClass, the devices
// that are allocated, and how many devices each request of a claim wants, or the requests
// themselves. It answers with the devices that the allocator gives, in its order; without any where
// it gives none.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type device struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

type question struct {
	Node      string                       `json:"node"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Class     resourceapi.DeviceClass      `json:"class"`
	Allocated []device                     `json:"allocated"`
	Counts    []int64                      `json:"counts"`
	Requests  []resourceapi.DeviceRequest  `json:"requests"`
}

type answer struct {
	Devices []device `json:"devices"`
	Error   string   `json:"error,omitempty"`
}

func (q *question) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{&q.Class}, nil
}

func (q *question) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != q.Class.Name {
		return nil, fmt.Errorf("no class %s", name)
	}
	return &q.Class, nil
}

// As kube-scheduler has them by its default gates.
var features = structured.Features{
	AdminAccess:            true,
	PrioritizedList:        true,
	PartitionableDevices:   true,
	DeviceTaints:           true,
	DeviceBindingAndStatus: true,
	ConsumableCapacity:     true,
}

var cache = cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})

func (q *question) answer(ctx context.Context) answer {
	taken := sets.New[structured.DeviceID]()
	for _, each := range q.Allocated {
		taken.Insert(structured.MakeDeviceID(each.Driver, each.Pool, each.Device))
	}
	state := structured.AllocatedState{
		AllocatedDevices:         taken,
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, features, state, q, q.Slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: "claim"}}
	claim.Spec.Devices.Requests = q.Requests
	for number, count := range q.Counts {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: fmt.Sprintf("container-%d-request-0", number),
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: q.Class.Name,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           count,
			},
		})
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: q.Node}}
	results, err := allocator.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{Devices: []device{}}
	for _, result := range results {
		for _, each := range result.Devices.Results {
			found.Devices = append(found.Devices, device{each.Driver, each.Pool, each.Device})
		}
	}
	return found
}

func main() {
	lines, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(lines)
	for decoder.More() {
		var asked question
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := out.Encode(asked.answer(context.Background())); err != nil {
			os.Exit(1)
		}
	}
}
