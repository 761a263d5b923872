"""What people and programs are told of nodes and pods: on the admin port, the command line and the
map.

Of nodes: ``nodes`` says how each GPU stands, ``sharing`` who shares one. Of pods, from the bottom:
``words`` has the phrases; ``answers`` asks every node; ``nearest`` says what a refusing node lacks;
``rows`` has all that one node answers, ``counts`` all nodes in a line; ``relaxing`` lists what a
pod could ask for instead; ``helps`` tries what would change that; ``placed`` says what a pod got;
``explanation`` puts these together. ``waiting`` counts waiting pods by reason, ``idle`` says whose
end would let them in, ``unblocking`` whom to evict, and ``together`` judges pods of a file.
"""
