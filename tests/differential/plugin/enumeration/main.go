// NVIDIA's device plugin as far as it finds devices: line by line, over whatever NVML says.
//
// Every line of standard input is a configuration of the plugin as JSON, every line of standard
// output what the plugin would serve on the machine as it is at that moment. The order of the calls
// is that of the plugin's own start.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/info"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	spec "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"github.com/NVIDIA/k8s-device-plugin/internal/rm"
)

const longestLine = 1 << 20

// served is a device as the kubelet would hear of it, with its index in the plugin's own words.
type served struct {
	ID     string  `json:"id"`
	Index  string  `json:"index"`
	Memory uint64  `json:"memory"`
	Numa   []int64 `json:"numa"`
}

type reply struct {
	Resources map[string][]served `json:"resources"`
	Error     string              `json:"error,omitempty"`
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		found := reply{Resources: map[string][]served{}}
		if err := enumerate(lines.Bytes(), found.Resources); err != nil {
			found.Error = err.Error()
		}
		if err := out.Encode(found); err != nil {
			panic(err)
		}
	}
}

// enumerate is what the plugin does between reading its configuration and registering.
func enumerate(configuration []byte, resources map[string][]served) error {
	config := &spec.Config{}
	if err := json.Unmarshal(configuration, config); err != nil {
		return fmt.Errorf("not a configuration: %w", err)
	}
	spec.DisableResourceNamingInConfig(config)
	nvmllib := nvml.New()
	devicelib := device.New(nvmllib)
	infolib := info.New(
		info.WithNvmlLib(nvmllib), info.WithDeviceLib(devicelib), info.WithPlatform(info.PlatformNVML),
	)
	if err := rm.AddDefaultResourcesToConfig(infolib, nvmllib, devicelib, config); err != nil {
		return fmt.Errorf("default resources: %w", err)
	}
	managers, err := rm.NewNVMLResourceManagers(infolib, nvmllib, devicelib, config)
	if err != nil {
		return err
	}
	for _, manager := range managers {
		name := string(manager.Resource())
		for _, found := range manager.Devices() {
			resources[name] = append(resources[name], entry(found))
		}
		sort.Slice(resources[name], func(i, j int) bool {
			return resources[name][i].ID < resources[name][j].ID
		})
	}
	return nil
}

func entry(found *rm.Device) served {
	numa := []int64{}
	if found.Topology != nil {
		for _, node := range found.Topology.Nodes {
			numa = append(numa, node.ID)
		}
	}
	return served{found.ID, found.Index, found.TotalMemory, numa}
}
