// Command cri is a container runtime that runs nothing: sandboxes and containers are records, and
// a container "runs" until it is stopped or, where its environment has FINISH_AFTER (such as 0s or
// 2.5s), until that time after its start; then it has exited with code 0. An ordinary init
// container needs FINISH_AFTER, since the kubelet does not tell a runtime which ones they are.
// What kubectl port-forward asks of a pod's port it asks of the same port of this machine's loopback.
package main

import (
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	socket := flag.String("socket", "", "unix socket to serve on")
	logs := flag.String("logs", "", "existing folder for logs of containers that come without one")
	flag.Parse()
	if *socket == "" || *logs == "" {
		log.Fatal("--socket and --logs are needed")
	}
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	forwarding, err := streams()
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	runtime := &runtimeService{store: newStore(), logs: *logs, streams: forwarding}
	cri.RegisterRuntimeServiceServer(server, runtime)
	cri.RegisterImageServiceServer(server, &imageService{folder: *logs})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		server.Stop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
