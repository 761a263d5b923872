// NVIDIA's device plugin as far as it chooses devices: line by line, without a driver and sockets.
//
// Every line of standard input is a machine or a question about the last one, every line of
// standard output the answer.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	_ "unsafe" // for go:linkname

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	spec "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"github.com/NVIDIA/k8s-device-plugin/internal/rm"
)

const longestLine = 1 << 20

// policyField is the plugin's policy for shared devices in its configuration, since v0.20.
const policyField = "sharedDevicesAllocationPolicy"

// question is one line of input; with Units it begins a machine.
type question struct {
	Units      []unit   `json:"units,omitempty"`
	Replicas   int      `json:"replicas,omitempty"`
	Strategy   string   `json:"strategy,omitempty"` // none, time-slicing, mps
	Policy     string   `json:"policy,omitempty"`   // of the plugin; empty: as it is by itself
	FailsMany  bool     `json:"failsMany,omitempty"`
	Available  []string `json:"available,omitempty"`
	Required   []string `json:"required,omitempty"`
	Size       int      `json:"size,omitempty"`
	Requesting []string `json:"requesting,omitempty"`
}

// unit is a GPU, or a MIG instance: then the index has a colon.
type unit struct {
	ID    string `json:"id"`
	Index string `json:"index"`
}

type reply struct {
	IDs     []string `json:"ids"`
	Refused string   `json:"refused,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// resourceManager and manager have the fields of the plugin's types of these names: its constructor
// wants a driver, its methods do not.
type resourceManager struct {
	config   *spec.Config
	resource spec.ResourceName
	devices  rm.Devices
}

type manager struct {
	resourceManager
	nvml nvml.Interface
}

//go:linkname preferred github.com/NVIDIA/k8s-device-plugin/internal/rm.(*nvmlResourceManager).getPreferredAllocation
func preferred(of *manager, available, required []string, size int) ([]string, error)

//go:linkname validate github.com/NVIDIA/k8s-device-plugin/internal/rm.(*resourceManager).ValidateRequest
func validate(of *resourceManager, ids rm.AnnotatedIDs) error

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	out := json.NewEncoder(os.Stdout)
	var machine *manager
	for lines.Scan() {
		found := reply{IDs: []string{}}
		var asked question
		err := json.Unmarshal(lines.Bytes(), &asked)
		switch {
		case err != nil:
		case asked.Units != nil:
			machine, err = asked.machine()
		case machine == nil:
			err = fmt.Errorf("no machine has been begun")
		case asked.Requesting != nil:
			if refusal := validate(&machine.resourceManager, asked.Requesting); refusal != nil {
				found.Refused = refusal.Error()
			}
		default:
			found.IDs, err = preferred(machine, asked.Available, asked.Required, asked.Size)
		}
		if err != nil {
			found.Error = err.Error()
		}
		if err := out.Encode(found); err != nil {
			panic(err)
		}
	}
}

// machine serves its units as the plugin's configuration says.
func (q *question) machine() (*manager, error) {
	devices := rm.Devices{}
	for _, unit := range q.Units {
		if q.Strategy == "none" {
			devices[unit.ID] = device(unit.ID, unit.Index, 1)
			continue
		}
		for replica := range q.Replicas {
			id := string(rm.NewAnnotatedID(unit.ID, replica))
			devices[id] = device(id, unit.Index, q.Replicas)
		}
	}
	config, err := q.config()
	if err != nil {
		return nil, err
	}
	if got := string(config.Sharing.SharingStrategy()); got != q.Strategy {
		return nil, fmt.Errorf("the plugin takes the strategy %q for %q", q.Strategy, got)
	}
	return &manager{resourceManager: resourceManager{config, "nvidia.com/gpu", devices}}, nil
}

// config is read as the plugin reads its own file: types of fields differ between releases.
func (q *question) config() (*spec.Config, error) {
	said := map[string]any{"version": "v1"}
	shared := map[string]any{
		"failRequestsGreaterThanOne": q.FailsMany,
		"resources": []map[string]any{
			{"name": "nvidia.com/gpu", "replicas": max(q.Replicas, 2)},
		},
	}
	switch q.Strategy {
	case "none":
	case "time-slicing":
		said["sharing"] = map[string]any{"timeSlicing": shared}
	case "mps":
		said["sharing"] = map[string]any{"mps": shared}
	default:
		return nil, fmt.Errorf("strategy %q is unknown", q.Strategy)
	}
	if q.Policy != "" {
		plugin := map[string]any{policyField: q.Policy}
		said["flags"] = map[string]any{"plugin": plugin}
	}
	text, err := json.Marshal(said)
	if err != nil {
		return nil, err
	}
	found := &spec.Config{}
	if err := json.Unmarshal(text, found); err != nil {
		return nil, err
	}
	if q.Policy == "" {
		return found, nil
	}
	if text, err = json.Marshal(found.Flags); err != nil {
		return nil, err
	}
	if !strings.Contains(string(text), policyField) {
		return nil, fmt.Errorf("this release of the plugin has no policy to choose")
	}
	return found, nil
}

func device(id, index string, replicas int) *rm.Device {
	found := &rm.Device{Index: index, Replicas: replicas}
	found.ID = id
	return found
}
