// The real managers of one Kubernetes release, driven line by line.
//
// Every line of standard input is a command, every line of standard output the answer to it. There
// is one node at a time; the command "node" begins the next one. The device manager, the Topology
// Manager, the CPU Manager and the Memory Manager are Kubernetes' own; what they would hear from
// the API server, the runtime and the device plugin is told here.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
)

const longestLine = 16 << 20

func main() {
	klog.SetLoggerWithOptions(logr.Discard(), klog.ContextualLogger(true))
	gates := map[string]bool{"CPUManagerPolicyAlphaOptions": true}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		panic(err)
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: managers ALLOCATOR (the program beside this one)")
		os.Exit(2)
	}
	nvidia, err := startAllocator(os.Args[1])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	out := bufio.NewWriter(os.Stdout)
	var current *node
	for lines.Scan() {
		var asked command
		found := &answer{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			found.Error = err.Error()
		} else if current, err = obey(current, nvidia, &asked, found); err != nil {
			found.Error = err.Error()
		}
		if err := json.NewEncoder(out).Encode(found); err != nil {
			panic(err)
		}
		if err := out.Flush(); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
	if current != nil {
		current.stop()
	}
}

// obey carries out one command and fills in the answer; it returns the node from then on.
func obey(current *node, nvidia *allocator, asked *command, found *answer) (*node, error) {
	if asked.Do == "node" {
		if current != nil {
			current.stop()
		}
		return newNode(asked.Node, asked.Folder, nvidia)
	}
	if current == nil {
		return nil, fmt.Errorf("there is no node yet")
	}
	var err error
	switch asked.Do {
	case "admit":
		err = current.admit(asked.Pod, asked.Ends, found)
	case "end":
		current.end(asked.UID)
	case "health":
		current.setSick(asked.Sick)
	case "restart":
		err = current.restart(asked.Order, asked.Alive, found)
	case "register":
		err = current.register()
	case "look":
		current.look(found)
	default:
		err = fmt.Errorf("do: %q is unknown", asked.Do)
	}
	return current, err
}
