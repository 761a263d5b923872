// Command dra-driver is a driver for Dynamic Resource Allocation whose GPUs are described, not
// there. It publishes them as NVIDIA's driver does its own: one slice of one pool that is named
// after the node, in an order that nobody chose. The order is that of --seed, which is logged.
//
// A prepared claim is a file in the folder cdi beside the driver's socket.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const name = "gpu.nvidia.com"

func main() {
	node := flag.String("node", "", "the node's name")
	kubeconfig := flag.String("kubeconfig", "", "whom to ask as")
	description := flag.String("devices", "", "file with the devices, a JSON list as in a ResourceSlice")
	seed := flag.Uint64("seed", rand.Uint64(), "of the order in which they are published")
	flag.Parse()

	devices := read(*description)
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(devices), func(i, j int) {
		devices[i], devices[j] = devices[j], devices[i]
	})
	for _, device := range devices {
		log.Printf("--seed=%d publishes %s", *seed, device.Name)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	helper, err := start(ctx, *node, *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	pools := map[string]resourceslice.Pool{*node: pool}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		log.Fatal(err)
	}
	<-ctx.Done()
}

func read(path string) []resourceapi.Device {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var devices []resourceapi.Device
	if err := json.Unmarshal(text, &devices); err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	return devices
}

func start(ctx context.Context, node, kubeconfig string) (*kubeletplugin.Helper, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join(kubeletplugin.KubeletPluginsDir, name, "cdi")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	helper, err := kubeletplugin.Start(
		ctx,
		newClaims(folder),
		kubeletplugin.DriverName(name),
		kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", name, node, err)
	}
	return helper, nil
}
