// Command deviceplugin is a device plugin for a machine that a file describes. Which GPUs it
// prefers is decided by NVIDIA's own allocator; every such decision is one line of JSON in a log.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	endpoint = "gpu-topology-e2e.sock"
	poll     = 100 * time.Millisecond
)

func main() {
	description := flag.String("machine", "", "JSON file that describes the GPUs")
	folder := flag.String("folder", api.DevicePluginPath, "the kubelet's folder for device plugins")
	calls := flag.String("calls", "", "file to append one line per GetPreferredAllocation to")
	resource := flag.String("resource", "nvidia.com/gpu", "resource name to register")
	delay := flag.Duration("delay", 0, "how much longer each GetPreferredAllocation takes")
	flag.Parse()

	described, err := readMachine(*description)
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.OpenFile(*calls, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	fresh := func(done <-chan struct{}) *plugin {
		return &plugin{
			machine: described,
			list:    described.devices(),
			policy:  gpuallocator.NewBestEffortPolicy(),
			delay:   *delay,
			done:    done,
			calls:   file,
		}
	}
	for {
		if err := serveOnce(*folder, *resource, fresh); err != nil {
			log.Print(err)
			time.Sleep(poll)
		}
	}
}

// serveOnce serves and registers with the kubelet that is there now, until another one comes: a
// kubelet that starts removes every socket of the folder and knows no plugin.
func serveOnce(folder, resource string, fresh func(<-chan struct{}) *plugin) error {
	registry := filepath.Join(folder, filepath.Base(api.KubeletSocket))
	kubelet, err := os.Stat(registry)
	if err != nil {
		return err
	}
	socket := filepath.Join(folder, endpoint)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, fresh(done))
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	defer close(done)
	if err := register(registry, resource); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	log.Printf("registered %s", resource)
	for {
		time.Sleep(poll)
		now, err := os.Stat(registry)
		if err != nil || !os.SameFile(kubelet, now) || !now.ModTime().Equal(kubelet.ModTime()) {
			return fmt.Errorf("the kubelet is gone or was restarted")
		}
	}
}

func register(registry, resource string) error {
	connection, err := grpc.NewClient("unix://"+registry, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(limited, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
		Options:      &api.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	return err
}
