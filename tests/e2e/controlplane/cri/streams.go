package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const loopback = "127.0.0.1"

var errNothingRuns = errors.New("nothing runs in this container")

// sockets connects a kubelet's streams with ports of sandboxes. Every sandbox has the loopback of
// this machine, where a test starts what stands for the programs of its containers.
type sockets struct{}

// streams serves the sockets on a port of loopback until the process ends.
func streams() (streaming.Server, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, err
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	server, err := streaming.NewServer(config, sockets{})
	if err != nil {
		return nil, err
	}
	go func() { log.Fatal(http.Serve(listener, server)) }()
	return server, nil
}

func (sockets) PortForward(ctx context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	dialled, err := net.Dial("tcp", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	connection := dialled.(*net.TCPConn)
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

func (sockets) Exec(context.Context, string, []string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errNothingRuns
}

func (sockets) Attach(context.Context, string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errNothingRuns
}

// PortForward tells the kubelet where it reaches the ports of a sandbox.
func (r *runtimeService) PortForward(_ context.Context, request *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	r.store.Lock()
	defer r.store.Unlock()
	found, ok := r.store.sandboxes[request.GetPodSandboxId()]
	if !ok || !found.ready {
		return nil, status.Errorf(codes.NotFound, "no running sandbox %q", request.GetPodSandboxId())
	}
	return r.streams.GetPortForward(request)
}
