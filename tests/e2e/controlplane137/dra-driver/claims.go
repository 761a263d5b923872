package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const kind = "k8s." + name + "/claim"

type object = map[string]any

// claims is what the kubelet asks of the driver. The kubelet asks one thing at a time.
type claims struct {
	folder string
	holder map[string]types.UID // of each device that this process has prepared
}

func newClaims(folder string) *claims {
	return &claims{folder, map[string]types.UID{}}
}

func (c *claims) PrepareResourceClaims(
	_ context.Context, wanted []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	found := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range wanted {
		devices, err := c.prepare(claim)
		log.Printf("prepared %s/%s: %v %v", claim.Namespace, claim.Name, devices, err)
		found[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return found, nil
}

func (c *claims) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	var described []object
	for _, given := range claim.Status.Allocation.Devices.Results {
		if given.Driver != name {
			continue
		}
		if holder, held := c.holder[given.Device]; held && holder != claim.UID {
			return nil, fmt.Errorf("%s is prepared for the claim %s", given.Device, holder)
		}
		id := fmt.Sprintf("%s-%s", claim.UID, given.Device)
		edits := object{"env": []string{"NVIDIA_VISIBLE_DEVICES=void"}}
		described = append(described, object{"name": id, "containerEdits": edits})
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{given.Request},
			PoolName:     given.Pool,
			DeviceName:   given.Device,
			CDIDeviceIDs: []string{kind + "=" + id},
		})
	}
	spec, err := json.Marshal(object{"cdiVersion": "0.6.0", "kind": kind, "devices": described})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.file(claim.UID), spec, 0o644); err != nil {
		return nil, err
	}
	for _, device := range devices {
		c.holder[device.DeviceName] = claim.UID
	}
	return devices, nil
}

func (c *claims) UnprepareResourceClaims(
	_ context.Context, done []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	found := map[types.UID]error{}
	for _, claim := range done {
		for device, holder := range c.holder {
			if holder == claim.UID {
				delete(c.holder, device)
			}
		}
		err := os.Remove(c.file(claim.UID))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		log.Printf("unprepared %s/%s: %v", claim.Namespace, claim.Name, err)
		found[claim.UID] = err
	}
	return found, nil
}

func (c *claims) HandleError(_ context.Context, err error, msg string) {
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		log.Fatalf("%s: %v", msg, err)
	}
	log.Printf("%s: %v", msg, err)
}

func (c *claims) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (c *claims) file(claim types.UID) string {
	return filepath.Join(c.folder, fmt.Sprintf("%s.json", claim))
}
