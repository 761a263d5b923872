"""The one way to ask whether a pod may go to a node, and how well: :func:`.evaluator.evaluate`.

kube-scheduler's framework is the model: what a rule needs is prepared once for a pod, then it is
asked node by node, and every refusal is a value that names its reason.
"""
