"""The scheduler extender: it tells kube-scheduler which nodes can keep a pod's GPU constraints.

:mod:`~scheduler_extender.annotations` turns a pod into a request,
:mod:`~scheduler_extender.ledger` and :mod:`~scheduler_extender.cluster` hold what is known of the
nodes, :mod:`~scheduler_extender.verbs` answers filter, prioritize and bind as plain functions,
:mod:`~scheduler_extender.wire` is extender/v1 on the wire, :mod:`~scheduler_extender.kube` and
:mod:`~scheduler_extender.filecluster` are where state comes from, and
:mod:`~scheduler_extender.app` puts thin routes around it all.
"""
