package main

// command is one line of standard input: what to do, and with what.
type command struct {
	Do     string   `json:"do"` // node, admit, end, health, restart, register, look
	Node   *machine `json:"node,omitempty"`
	Folder string   `json:"folder,omitempty"`
	Pod    *podSpec `json:"pod,omitempty"`
	Ends   []ending `json:"ends,omitempty"`
	UID    string   `json:"uid,omitempty"`
	Sick   []string `json:"sick,omitempty"`
	Order  []string `json:"order,omitempty"`
	Alive  []string `json:"alive,omitempty"`
}

// machine describes a node: its hardware, its kubelet's managers and its device plugin.
type machine struct {
	NUMA            []numaNode      `json:"numa"`
	TopologyManager managerSettings `json:"topologyManager"`
	CPUManager      managerSettings `json:"cpuManager"`
	MemoryManager   managerSettings `json:"memoryManager"`
	Resource        string          `json:"resource"`
	Devices         []deviceSpec    `json:"devices"`
	Plugin          pluginSettings  `json:"plugin"`
}

// numaNode is a NUMA node as cadvisor shows it: cores hold the numbers of their threads.
type numaNode struct {
	ID             int      `json:"id"`
	Socket         int      `json:"socket"`
	Distances      []uint64 `json:"distances"`
	Memory         uint64   `json:"memory"`
	ReservedMemory uint64   `json:"reservedMemory"`
	Cores          [][]int  `json:"cores"`
}

// managerSettings are a manager's words in the kubelet's configuration.
type managerSettings struct {
	Policy   string            `json:"policy"`
	Scope    string            `json:"scope,omitempty"`
	Options  map[string]string `json:"options,omitempty"`
	Reserved string            `json:"reserved,omitempty"`
}

// deviceSpec is a device as the plugin lists it; NUMA holds the ids of its TopologyInfo, maybe none.
type deviceSpec struct {
	ID   string  `json:"id"`
	NUMA []int64 `json:"numa"`
}

// pluginSettings say what GetPreferredAllocation answers. Matrices are by GPU: PCIe has 10 for SYS,
// 20 NODE, 30 PHB, 40 PXB, 50 PIX and 60 for one board; NVLinks counts direct links as each end
// shows them.
type pluginSettings struct {
	Policy      string  `json:"policy"` // best-effort, distributed, packed, none
	PCIe        [][]int `json:"pcie,omitempty"`
	NVLinks     [][]int `json:"nvlinks,omitempty"`
	RefusesMany bool    `json:"refusesMany,omitempty"`
	RoundRobin  bool    `json:"roundRobin,omitempty"`
}

type podSpec struct {
	UID        string          `json:"uid"`
	Name       string          `json:"name"`
	Init       []containerSpec `json:"init,omitempty"`
	Containers []containerSpec `json:"containers"`
}

type containerSpec struct {
	Name     string            `json:"name"`
	Sidecar  bool              `json:"sidecar,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
	Requests map[string]string `json:"requests,omitempty"`
}

// ending makes a pod end while another one is admitted: "hint" before a container's hints are asked
// for, "allocate" between them and the allocation.
type ending struct {
	UID       string `json:"uid"`
	Container string `json:"container"`
	Moment    string `json:"moment"`
}

// answer is one line of standard output.
type answer struct {
	Error      string              `json:"error,omitempty"` // what was asked makes no sense
	Admitted   bool                `json:"admitted,omitempty"`
	Reason     string              `json:"reason,omitempty"`
	Message    string              `json:"message,omitempty"`
	Devices    map[string][]string `json:"devices,omitempty"` // by container, all of them
	Readmitted map[string]*answer  `json:"readmitted,omitempty"`
	Pods       []shownPod          `json:"pods,omitempty"`
	// Allocatable is what PodResources' GetAllocatableResources shows.
	Allocatable       []deviceSpec  `json:"allocatable,omitempty"`
	AllocatableCPUs   []int         `json:"allocatableCpus,omitempty"`
	AllocatableMemory []memoryBlock `json:"allocatableMemory,omitempty"`
}

// shownPod is a pod as PodResources' List shows it: no ordinary init containers.
type shownPod struct {
	UID        string           `json:"uid"`
	Containers []shownContainer `json:"containers"`
}

type shownContainer struct {
	Name    string        `json:"name"`
	Devices []string      `json:"devices"`
	CPUs    []int         `json:"cpus"`
	Memory  []memoryBlock `json:"memory"`
}

type memoryBlock struct {
	Type string `json:"type"`
	Size uint64 `json:"size"`
	NUMA []int  `json:"numa"`
}
