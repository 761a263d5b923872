package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
)

// machine is the description of a node's GPUs, all lists by index.
type machine struct {
	UUIDs   []string `json:"uuids"`
	PCIe    [][]int  `json:"pcie"`    // per pair 10 SYS, 20 NODE, 30 PHB, 40 PXB, 50 PIX, 60 one board
	NVLinks [][]int  `json:"nvlinks"` // per pair the direct links
	NUMA    []int64  `json:"numa"`    // -1 where unknown
}

func readMachine(path string) (*machine, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := &machine{}
	if err := json.Unmarshal(data, found); err != nil {
		return nil, err
	}
	n := len(found.UUIDs)
	if len(found.NUMA) != n || !square(found.PCIe, n) || !square(found.NVLinks, n) {
		return nil, fmt.Errorf("%s: pcie, nvlinks and numa must fit %d uuids", path, n)
	}
	return found, nil
}

func square(matrix [][]int, n int) bool {
	for _, row := range matrix {
		if len(row) != n {
			return false
		}
	}
	return len(matrix) == n
}

// sameBoard is the last of go-gpuallocator's PCIe link types: they count up from 1 (across CPUs) to
// 6 (one board), then on from 7 (one NVLink).
const sameBoard = 6

// link has the type with that number. The type itself is internal to go-gpuallocator and cannot be
// named here, so it is counted up to.
func link(peer *gpuallocator.Device, number int) gpuallocator.P2PLink {
	found := gpuallocator.P2PLink{GPU: peer}
	for range number {
		found.Type++
	}
	return found
}

// devices are the GPUs as go-gpuallocator sees them: per pair one link for the PCIe class, and one
// that stands for all the direct NVLinks.
func (m *machine) devices() gpuallocator.DeviceList {
	var list gpuallocator.DeviceList
	for index, uuid := range m.UUIDs {
		device := &gpuallocator.Device{Index: index, Links: map[int][]gpuallocator.P2PLink{}}
		device.UUID = uuid
		list = append(list, device)
	}
	for a, device := range list {
		for b, peer := range list {
			if a == b {
				continue
			}
			device.Links[b] = append(device.Links[b], link(peer, m.PCIe[a][b]/10))
			if count := m.NVLinks[a][b]; count > 0 {
				device.Links[b] = append(device.Links[b], link(peer, sameBoard+count))
			}
		}
	}
	return list
}
