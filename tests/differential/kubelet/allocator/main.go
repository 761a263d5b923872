// NVIDIA's allocator as a program of its own: it binds to NVML with cgo, and nothing else here does.
//
// Every line of standard input is a machine or a question about the last one, every line of standard
// output the answer. Where go-gpuallocator panics, or answers with a nil GPU that NVIDIA's plugin
// would dereference, the answer says that the plugin died.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
)

const longestLine = 1 << 20

// question is one line of input; with UUIDs it begins a machine.
type question struct {
	UUIDs     []string `json:"uuids,omitempty"`
	PCIe      [][]int  `json:"pcie,omitempty"`    // 10 SYS, 20 NODE, 30 PHB, 40 PXB, 50 PIX, 60 one board
	NVLinks   [][]int  `json:"nvlinks,omitempty"` // direct ones, as the GPU of the row counts them
	Available []string `json:"available,omitempty"`
	Required  []string `json:"required,omitempty"`
	Size      int      `json:"size,omitempty"`
}

type reply struct {
	IDs   []string `json:"ids"`
	Error string   `json:"error,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	out := json.NewEncoder(os.Stdout)
	var gpus gpuallocator.DeviceList
	for lines.Scan() {
		var asked question
		found := reply{IDs: []string{}}
		err := json.Unmarshal(lines.Bytes(), &asked)
		switch {
		case err != nil:
		case asked.UUIDs != nil:
			gpus, err = asked.gpus()
		default:
			found.IDs, err = asked.answer(gpus)
		}
		if err != nil {
			found.Error = err.Error()
		}
		if err := out.Encode(found); err != nil {
			panic(err)
		}
	}
}

func (q *question) answer(gpus gpuallocator.DeviceList) (ids []string, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the plugin died: %v", fault)
		}
	}()
	available, err := gpus.Filter(q.Available)
	if err != nil {
		return nil, err
	}
	required, err := gpus.Filter(q.Required)
	if err != nil {
		return nil, err
	}
	for _, gpu := range gpuallocator.NewBestEffortPolicy().Allocate(available, required, q.Size) {
		ids = append(ids, gpu.UUID)
	}
	return ids, nil
}

// sameBoard is the last of go-gpuallocator's PCIe link types: they count up from 1 (across CPUs) to
// 6 (one board), then on from 7 (one NVLink).
const sameBoard = 6

// link has the type with that number. The type itself is internal to go-gpuallocator, so it is
// counted up to.
func link(peer *gpuallocator.Device, number int) gpuallocator.P2PLink {
	found := gpuallocator.P2PLink{GPU: peer}
	for range number {
		found.Type++
	}
	return found
}

// gpus are the devices as go-gpuallocator sees them, each with the links that its own end shows.
func (q *question) gpus() (gpuallocator.DeviceList, error) {
	n := len(q.UUIDs)
	if !square(q.PCIe, n) || !square(q.NVLinks, n) {
		return nil, fmt.Errorf("pcie and nvlinks must fit %d GPUs", n)
	}
	var list gpuallocator.DeviceList
	for index, uuid := range q.UUIDs {
		device := &gpuallocator.Device{Index: index, Links: map[int][]gpuallocator.P2PLink{}}
		device.UUID = uuid
		list = append(list, device)
	}
	for a, device := range list {
		for b, peer := range list {
			if a == b {
				continue
			}
			device.Links[b] = append(device.Links[b], link(peer, q.PCIe[a][b]/10))
			if count := q.NVLinks[a][b]; count > 0 {
				device.Links[b] = append(device.Links[b], link(peer, sameBoard+count))
			}
		}
	}
	return list, nil
}

func square(matrix [][]int, n int) bool {
	for _, row := range matrix {
		if len(row) != n {
			return false
		}
	}
	return len(matrix) == n
}
