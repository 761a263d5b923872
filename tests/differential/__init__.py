"""Our model beside Kubernetes' own managers: every real answer has to lie within the prediction.

``kubelet/`` is a Go program that drives the real device manager, Topology Manager, CPU Manager and
Memory Manager of one Kubernetes release, line by line; ``managers`` builds it and talks to it.
``nodes`` and ``histories`` describe random nodes and what happens on them, ``play`` lets a history
happen in both worlds and compares, ``shrinking`` makes a counterexample small, and ``tally`` counts
by family. ``cases/`` keeps counterexamples of the past; they are played with every run.

What is real: the managers of the release in ``kubelet/go.mod``, which is the one of ``tests/e2e``,
and NVIDIA's go-gpuallocator. What is ours: the greedy policies of NVIDIA's plugin (written after
its source), what cadvisor would say of the machine, and the plugin's end of the device manager's
calls, without a socket in between.

For shared GPUs and MIG instances ``plugin/`` calls NVIDIA's plugin itself, and ``nvidiaplugin``
talks to its programs: ``choices`` holds what the plugin chooses against what our model foresees,
``enumeration`` what it serves on a machine against our agent's record of it. ``recording`` keeps
what a release chose that no module proxy has.
"""
