"""Why a pod waits, or what became of it, told to people and programs.

To read it from the bottom: ``phrases`` has the words; ``nearest`` says of a node that takes the pod
not what is missing there; ``rows`` has all that is told of one node, and ``counts`` all nodes in a
line; ``relaxing`` lists what a pod could ask for instead; ``helps`` tries what would change the
answer; ``placed`` says what a pod got; ``explanation`` puts these together. ``waiting`` counts
waiting pods by reason, and ``idle`` says whose end would let them in.
"""
