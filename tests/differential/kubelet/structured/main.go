// Command structured asks kube-scheduler's own allocator of Dynamic Resource Allocation.
//
// It reads a line of JSON for each question: a node's ResourceSlices, DeviceClasses, the devices
// that are allocated, and how many devices each request of a claim wants, or what several claims
// say. It answers with the devices that the allocator gives, in its order; without any where
// it gives none. What takes it longer than a second it gives up, as kube-scheduler does after
// ten.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Allocated []device                     `json:"allocated"`
	Counts    []int64                      `json:"counts"`
	Claims    []resourceapi.DeviceClaim    `json:"claims"`
}

type answer struct {
	Devices []device `json:"devices"`
	Error   string   `json:"error,omitempty"`
}

func (q *question) List() ([]*resourceapi.DeviceClass, error) {
	return q.Classes, nil
}

func (q *question) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range q.Classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
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
	plain := resourceapi.DeviceClaim{}
	for number, count := range q.Counts {
		plain.Requests = append(plain.Requests, resourceapi.DeviceRequest{
			Name: fmt.Sprintf("container-%d-request-0", number),
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: q.Classes[0].Name,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           count,
			},
		})
	}
	if len(q.Counts) > 0 {
		q.Claims = append(q.Claims, plain)
	}
	claims := []*resourceapi.ResourceClaim{}
	for number, devices := range q.Claims {
		name := fmt.Sprintf("claim-%d", number)
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       resourceapi.ResourceClaimSpec{Devices: devices},
		})
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: q.Node}}
	results, err := allocator.Allocate(ctx, node, claims)
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
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		found := asked.answer(ctx)
		cancel()
		if err := out.Encode(found); err != nil {
			os.Exit(1)
		}
	}
}
