package main

import (
	"fmt"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	exitedDone    = 0
	exitedStopped = 143 // 128 + SIGTERM
)

// sandbox is what is remembered of a pod sandbox.
type sandbox struct {
	id      string
	config  *cri.PodSandboxConfig
	handler string
	created time.Time
	ready   bool
	address string
}

func (s *sandbox) state() cri.PodSandboxState {
	if s.ready {
		return cri.PodSandboxState_SANDBOX_READY
	}
	return cri.PodSandboxState_SANDBOX_NOTREADY
}

// container is what is remembered of a container. Its state follows from the times alone.
type container struct {
	id       string
	sandbox  string
	config   *cri.ContainerConfig
	logPath  string
	created  time.Time
	started  time.Time // zero: not started
	finished time.Time // zero: nothing ends it; in the future: it ends by itself then
	exitCode int32
}

func (c *container) state(now time.Time) cri.ContainerState {
	switch {
	case c.exited(now):
		return cri.ContainerState_CONTAINER_EXITED
	case c.started.IsZero():
		return cri.ContainerState_CONTAINER_CREATED
	default:
		return cri.ContainerState_CONTAINER_RUNNING
	}
}

func (c *container) exited(now time.Time) bool {
	return !c.finished.IsZero() && !c.finished.After(now)
}

// start sets the container running, to end after its FINISH_AFTER where it has one.
func (c *container) start(now time.Time) error {
	for _, variable := range c.config.GetEnvs() {
		if variable.GetKey() != "FINISH_AFTER" {
			continue
		}
		span, err := time.ParseDuration(string(variable.GetValue()))
		if err != nil {
			return fmt.Errorf("FINISH_AFTER: %w", err)
		}
		c.finished, c.exitCode = now.Add(span), exitedDone
	}
	c.started = now
	return nil
}

func (c *container) stop(now time.Time) {
	if !c.exited(now) {
		c.finished, c.exitCode = now, exitedStopped
	}
}

// store holds every record; its lock is held by whoever reads or changes one.
type store struct {
	sync.Mutex
	count      int
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

func newStore() *store {
	return &store{sandboxes: map[string]*sandbox{}, containers: map[string]*container{}}
}

// id is a fresh one, 64 hexadecimal digits like those of other runtimes.
func (s *store) id() string {
	s.count++
	return fmt.Sprintf("%064x", s.count)
}

// members are the containers of a sandbox.
func (s *store) members(sandbox string) []*container {
	var found []*container
	for _, c := range s.containers {
		if c.sandbox == sandbox {
			found = append(found, c)
		}
	}
	return found
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
