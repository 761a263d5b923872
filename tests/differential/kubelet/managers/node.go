package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"
	_ "unsafe" // for linkname

	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

// newDeviceManager is the device manager's constructor behind its exported one, which knows no
// other folder than that of the machine's own kubelet.
//
//go:linkname newDeviceManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newDeviceManager(logger klog.Logger, socket string, topology []cadvisorapi.Node, affinity topologymanager.Store) (*devicemanager.ManagerImpl, error)

const never = 1000 * time.Hour

// node is one kubelet's managers and what they believe of the world.
type node struct {
	machine *machine
	folder  string
	plugin  *plugin
	pods    []*v1.Pod // active ones, in order of admission
	sick    sets.Set[string]
	ready   bool // whether the kubelet has heard of all pods since its start

	devices  *devicemanager.ManagerImpl
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	hook     *hook
}

func newNode(description *machine, folder string, nvidia *allocator) (*node, error) {
	if description == nil {
		return nil, fmt.Errorf("node: there is no description")
	}
	served, err := newPlugin(description, nvidia)
	if err != nil {
		return nil, err
	}
	found := &node{machine: description, folder: folder, plugin: served, ready: true}
	if err := found.start(containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return nil, err
	}
	return found, found.register()
}

// start makes the managers anew, as a kubelet does when it starts: they read their checkpoints.
func (n *node) start(containers containermap.ContainerMap, running sets.Set[string]) error {
	ctx, logger := context.Background(), klog.Background()
	info := n.machine.info()
	settings := n.machine
	var err error
	n.topology, err = topologymanager.NewManager(info.Topology, settings.TopologyManager.Policy, settings.TopologyManager.Scope, settings.TopologyManager.Options)
	if err != nil {
		return err
	}
	n.devices, err = newDeviceManager(logger, filepath.Join(n.folder, "kubelet.sock"), info.Topology, n.topology)
	if err != nil {
		return err
	}
	reserved, memoryReserved, err := settings.reservation()
	if err != nil {
		return err
	}
	n.cpus, err = cpumanager.NewManager(logger, settings.CPUManager.Policy, settings.CPUManager.Options, never, info, cpuset.New(), reserved, n.folder, n.topology)
	if err != nil {
		return err
	}
	n.memory, err = memorymanager.NewManager(logger, settings.MemoryManager.Policy, info, reserved, memoryReserved, n.folder, n.topology)
	if err != nil {
		return err
	}
	n.hook = &hook{node: n}
	for _, provider := range []topologymanager.HintProvider{n.hook, n.devices, n.cpus, n.memory} {
		n.topology.AddHintProvider(logger, provider)
	}
	active := func() []*v1.Pod { return slices.Clone(n.pods) }
	if err := n.devices.Start(logger, active, n, containers, running); err != nil {
		return err
	}
	// The static CPU Manager looks after its containers in the background, once now and then never
	// again: it finds that none has started.
	if err := n.cpus.Start(ctx, active, n, noStatus{}, nil, containers.Clone()); err != nil {
		return err
	}
	return n.memory.Start(ctx, active, n, noStatus{}, nil, containers.Clone())
}

func (n *node) stop() {
	// A kubelet that ends closes its sockets and no more.
	_ = n.devices.Stop(klog.Background())
}

// AddSource and AllReady are config.SourcesReady.
func (n *node) AddSource(string) {}
func (n *node) AllReady() bool   { return n.ready }

// noStatus knows no pod's status.
type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }

// register connects the device plugin, which lists its devices at once.
func (n *node) register() error {
	if err := n.devices.PluginConnected(context.Background(), n.machine.Resource, n.plugin); err != nil {
		return err
	}
	n.list()
	return nil
}

func (n *node) list() {
	n.devices.PluginListAndWatchReceiver(klog.Background(), n.machine.Resource, n.plugin.listed(n.sick))
}

func (n *node) setSick(ids []string) {
	n.sick = sets.New(ids...)
	n.list()
}

func (n *node) end(uid string) {
	n.pods = slices.DeleteFunc(n.pods, func(pod *v1.Pod) bool { return string(pod.UID) == uid })
}

func (n *node) pod(uid string) *v1.Pod {
	for _, pod := range n.pods {
		if string(pod.UID) == uid {
			return pod
		}
	}
	return nil
}

// admit asks the managers as the kubelet does: the pod is active meanwhile, and no more where it is
// refused.
func (n *node) admit(spec *podSpec, ends []ending, found *answer) error {
	pod, err := spec.pod()
	if err != nil {
		return err
	}
	if n.pod(spec.UID) == nil {
		n.pods = append(n.pods, pod)
	}
	n.hook.ends = ends
	result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	n.hook.ends = nil
	found.Admitted, found.Reason, found.Message = result.Admit, result.Reason, result.Message
	if !result.Admit {
		n.end(spec.UID)
		return nil
	}
	found.Devices = map[string][]string{}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		found.Devices[container.Name] = n.held(spec.UID, container.Name)
	}
	return nil
}

func (n *node) held(uid, container string) []string {
	ids := []string{}
	for id := range n.devices.GetDevices(uid, container)[n.machine.Resource] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// restart ends the kubelet and starts it again; containers of the pods in alive run on. It admits
// the pods anew in the order given, before it has heard of all of them, and before the device plugin
// has registered again.
func (n *node) restart(order, alive []string, found *answer) error {
	n.stop()
	containers, running := containermap.NewContainerMap(), sets.New[string]()
	for _, uid := range alive {
		pod := n.pod(uid)
		if pod == nil {
			return fmt.Errorf("alive: there is no pod %q", uid)
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			id := uid + "/" + container.Name
			containers.Add(uid, container.Name, id)
			if !ordinaryInit(pod, container.Name) {
				running.Insert(id)
			}
		}
	}
	before := n.pods
	n.pods, n.ready = nil, false
	if err := n.start(containers, running); err != nil {
		return err
	}
	found.Readmitted = map[string]*answer{}
	for _, uid := range order {
		at := slices.IndexFunc(before, func(pod *v1.Pod) bool { return string(pod.UID) == uid })
		if at < 0 {
			return fmt.Errorf("order: there is no pod %q", uid)
		}
		pod := before[at]
		n.pods = append(n.pods, pod)
		result := n.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
		found.Readmitted[uid] = &answer{Admitted: result.Admit, Reason: result.Reason, Message: result.Message}
		if !result.Admit {
			n.end(uid)
		}
	}
	n.ready = true
	return nil
}

func ordinaryInit(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		return c.Name == name && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways)
	})
}

// look shows what PodResources shows.
func (n *node) look(found *answer) {
	for _, pod := range n.pods {
		shown := shownPod{UID: string(pod.UID), Containers: []shownContainer{}}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if ordinaryInit(pod, container.Name) {
				continue
			}
			one := shownContainer{Name: container.Name, Devices: n.held(shown.UID, container.Name)}
			one.CPUs = n.cpus.GetExclusiveCPUs(shown.UID, container.Name).List()
			for _, block := range n.memory.GetMemory(shown.UID, container.Name) {
				one.Memory = append(one.Memory, memoryBlock{string(block.Type), block.Size, block.NUMAAffinity})
			}
			shown.Containers = append(shown.Containers, one)
		}
		found.Pods = append(found.Pods, shown)
	}
	for id, device := range n.devices.GetAllocatableDevices()[n.machine.Resource] {
		found.Allocatable = append(found.Allocatable, deviceSpec{id, numaOf(device)})
	}
	slices.SortFunc(found.Allocatable, func(a, b deviceSpec) int { return compare(a.ID, b.ID) })
	found.AllocatableCPUs = n.cpus.GetAllocatableCPUs().List()
	for _, block := range n.memory.GetAllocatableMemory() {
		found.AllocatableMemory = append(found.AllocatableMemory, memoryBlock{string(block.Type), block.Size, block.NUMAAffinity})
	}
}

func numaOf(device *pluginapi.Device) []int64 {
	found := []int64{}
	for _, numa := range device.GetTopology().GetNodes() {
		found = append(found, numa.GetID())
	}
	return found
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// info is the machine as cadvisor shows it.
func (m *machine) info() *cadvisorapi.MachineInfo {
	found := &cadvisorapi.MachineInfo{}
	sockets := sets.New[int]()
	for _, numa := range m.NUMA {
		shown := cadvisorapi.Node{Id: numa.ID, Memory: numa.Memory, Distances: numa.Distances}
		for at, threads := range numa.Cores {
			shown.Cores = append(shown.Cores, cadvisorapi.Core{Id: numa.ID*1000 + at, Threads: threads, SocketID: numa.Socket})
			found.NumCores += len(threads)
			found.NumPhysicalCores++
		}
		sockets.Insert(numa.Socket)
		found.Topology = append(found.Topology, shown)
		found.MemoryCapacity += numa.Memory
	}
	found.NumSockets = len(sockets)
	return found
}

// reservation is what the kubelet keeps for the system.
func (m *machine) reservation() (v1.ResourceList, []kubeletconfig.MemoryReservation, error) {
	reserved := v1.ResourceList{}
	if m.CPUManager.Reserved != "" {
		amount, err := resource.ParseQuantity(m.CPUManager.Reserved)
		if err != nil {
			return nil, nil, err
		}
		reserved[v1.ResourceCPU] = amount
	}
	var memory []kubeletconfig.MemoryReservation
	total := resource.NewQuantity(0, resource.BinarySI)
	for _, numa := range m.NUMA {
		if numa.ReservedMemory == 0 {
			continue
		}
		amount := *resource.NewQuantity(int64(numa.ReservedMemory), resource.BinarySI)
		memory = append(memory, kubeletconfig.MemoryReservation{NumaNode: int32(numa.ID), Limits: v1.ResourceList{v1.ResourceMemory: amount}})
		total.Add(amount)
	}
	reserved[v1.ResourceMemory] = *total
	return reserved, memory, nil
}

// pod is the pod as the API server would send it.
func (s *podSpec) pod() (*v1.Pod, error) {
	if s == nil {
		return nil, fmt.Errorf("pod: there is none")
	}
	found := &v1.Pod{}
	found.Name, found.Namespace, found.UID = s.Name, "default", types.UID(s.UID)
	for _, spec := range s.Init {
		container, err := spec.container()
		if err != nil {
			return nil, err
		}
		if spec.Sidecar {
			always := v1.ContainerRestartPolicyAlways
			container.RestartPolicy = &always
		}
		found.Spec.InitContainers = append(found.Spec.InitContainers, *container)
	}
	for _, spec := range s.Containers {
		container, err := spec.container()
		if err != nil {
			return nil, err
		}
		found.Spec.Containers = append(found.Spec.Containers, *container)
	}
	return found, nil
}

func (s *containerSpec) container() (*v1.Container, error) {
	found := &v1.Container{Name: s.Name}
	limits, err := amounts(s.Limits)
	if err != nil {
		return nil, err
	}
	found.Resources.Limits = limits
	if found.Resources.Requests, err = amounts(s.Requests); err != nil {
		return nil, err
	}
	for name, amount := range limits { // as the API server fills them in
		if _, given := found.Resources.Requests[name]; !given {
			found.Resources.Requests[name] = amount
		}
	}
	return found, nil
}

func amounts(given map[string]string) (v1.ResourceList, error) {
	found := v1.ResourceList{}
	for name, text := range given {
		amount, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found[v1.ResourceName(name)] = amount
	}
	return found, nil
}

// hook is a hint provider without preferences. It comes first of all, so it sees every moment of an
// admission: here pods end in the middle of another one's.
type hook struct {
	node *node
	ends []ending
}

func (h *hook) now(moment, container string) {
	for _, found := range h.ends {
		if found.Moment == moment && (found.Container == container || container == "") {
			h.node.end(found.UID)
		}
	}
}

func (h *hook) GetTopologyHints(_ *v1.Pod, container *v1.Container) map[string][]topologymanager.TopologyHint {
	h.now("hint", container.Name)
	return nil
}

func (h *hook) GetPodTopologyHints(*v1.Pod) map[string][]topologymanager.TopologyHint {
	h.now("hint", "")
	return nil
}

func (h *hook) Allocate(_ *v1.Pod, container *v1.Container) error {
	h.now("allocate", container.Name)
	return nil
}

func (h *hook) AllocatePod(*v1.Pod) error { return nil }
