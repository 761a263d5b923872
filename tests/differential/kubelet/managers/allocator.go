package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// allocator is NVIDIA's, in a process of its own that lives as long as this one.
type allocator struct {
	in  io.Writer
	out *bufio.Scanner
}

type allocatorQuestion struct {
	UUIDs     []string `json:"uuids,omitempty"`
	PCIe      [][]int  `json:"pcie,omitempty"`
	NVLinks   [][]int  `json:"nvlinks,omitempty"`
	Available []string `json:"available,omitempty"`
	Required  []string `json:"required,omitempty"`
	Size      int      `json:"size,omitempty"`
}

// startAllocator starts the program; it ends when its input does.
func startAllocator(program string) (*allocator, error) {
	child := exec.Command(program)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, longestLine)
	return &allocator{in, lines}, nil
}

func (a *allocator) ask(question allocatorQuestion) ([]string, error) {
	if err := json.NewEncoder(a.in).Encode(question); err != nil {
		return nil, err
	}
	if !a.out.Scan() {
		return nil, fmt.Errorf("the allocator ended: %w", a.out.Err())
	}
	var found struct {
		IDs   []string `json:"ids"`
		Error string   `json:"error"`
	}
	if err := json.Unmarshal(a.out.Bytes(), &found); err != nil {
		return nil, err
	}
	if found.Error != "" {
		return nil, fmt.Errorf("%s", found.Error)
	}
	return found.IDs, nil
}
