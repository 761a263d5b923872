"""Read workloads from the API server: which workload has made a pod, and which pods it has made.

A workload is any object with a pod template: Deployments and Jobs, and kinds of other projects,
such as JobSets and PyTorchJobs. Its pods name it as their owner, or they name an object between,
such as a ReplicaSet.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler_extender.kube.reading import TIMEOUT, listed
from scheduler_extender.kube.sinks import PAGE
from topology.kubeapi.apiserver import ApiError, ApiServer, path


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of workload, with its names and its collection at the API server.

    ``between`` are the collections whose objects stand between it and its pods.
    """

    name: str
    collection: str
    plural: str
    short: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.collection.removeprefix("/apis/").partition("/")[0]


_APPS, _BATCH, _KUBEFLOW = "/apis/apps/v1", "/apis/batch/v1", "/apis/kubeflow.org/v1"
_REPLICA_SETS = f"{_APPS}:replicasets"
_STATEFUL_SETS = f"{_APPS}:statefulsets"
_JOBS = f"{_BATCH}:jobs"
_RAY = "/apis/ray.io/v1"
_KNATIVE = "/apis/serving.knative.dev/v1"
_ARGO = "/apis/argoproj.io/v1alpha1"

KINDS = (
    Kind("Deployment", _APPS, "deployments", ("deploy",), (_REPLICA_SETS,)),
    Kind("ReplicaSet", _APPS, "replicasets", ("rs",)),
    Kind("StatefulSet", _APPS, "statefulsets", ("sts",)),
    Kind("DaemonSet", _APPS, "daemonsets", ("ds",)),
    Kind("ReplicationController", "/api/v1", "replicationcontrollers", ("rc",)),
    Kind("Job", _BATCH, "jobs"),
    Kind("CronJob", _BATCH, "cronjobs", ("cj",), (_JOBS,)),
    Kind("JobSet", "/apis/jobset.x-k8s.io/v1alpha2", "jobsets", (), (_JOBS,)),
    Kind(
        "LeaderWorkerSet",
        "/apis/leaderworkerset.x-k8s.io/v1",
        "leaderworkersets",
        ("lws",),
        (_STATEFUL_SETS,),
    ),
    Kind("PyTorchJob", _KUBEFLOW, "pytorchjobs"),
    Kind("TFJob", _KUBEFLOW, "tfjobs"),
    Kind("MPIJob", _KUBEFLOW, "mpijobs"),
    Kind("XGBoostJob", _KUBEFLOW, "xgboostjobs"),
    Kind("PaddleJob", _KUBEFLOW, "paddlejobs"),
    Kind("JAXJob", _KUBEFLOW, "jaxjobs"),
    Kind(
        "TrainJob",
        "/apis/trainer.kubeflow.org/v1alpha1",
        "trainjobs",
        (),
        ("/apis/jobset.x-k8s.io/v1alpha2:jobsets", _JOBS),
    ),
    Kind("RayCluster", _RAY, "rayclusters"),
    Kind("RayJob", _RAY, "rayjobs", (), (f"{_RAY}:rayclusters", _JOBS)),
    Kind(
        "InferenceService",
        "/apis/serving.kserve.io/v1beta1",
        "inferenceservices",
        ("isvc",),
        (
            *(f"{_KNATIVE}:{plural}" for plural in ("services", "configurations", "revisions")),
            f"{_APPS}:deployments",
            _REPLICA_SETS,
            _STATEFUL_SETS,
        ),
    ),
    Kind("Workflow", _ARGO, "workflows", ("wf",)),
    Kind("CronWorkflow", _ARGO, "cronworkflows", ("cwf",), (f"{_ARGO}:workflows",)),
)
MOST_OWNERS = 4  # the most owners above a pod that are read


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    uid: str = ""
    owner_references: list[_Owner] | None = None


class _Owned(msgspec.Struct):
    metadata: _Meta = _Meta()


def kind_named(word: str) -> Kind | None:
    """Return the kind with this name, plural or short form, in any case; None if there is none.

    A group may follow the name, as in ``job.batch`` and ``job.v1.batch``.
    """
    word, _, group = word.lower().partition(".")
    groups = {group, *group.split(".", 1)[1:]}
    for kind in KINDS:
        known = word in (kind.name.lower(), kind.plural, *kind.short)
        if known and (not group or kind.group in groups):
            return kind
    return None


def workload(api: ApiServer, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
    """Read one object of a kind. Raises :class:`~topology.kubeapi.apiserver.ApiFailure`."""
    where = path(f"{kind.collection}/namespaces", namespace, kind.plural, name)
    made: dict[str, Any] = msgspec.json.decode(api.get(where, timeout=TIMEOUT), type=dict[str, Any])
    return {"kind": kind.name, **made}


def pods_of(
    api: ApiServer, kind: Kind, namespace: str, made: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the pods that a workload has made, itself or through objects between, by name."""
    owners = {str((made.get("metadata") or {}).get("uid", ""))}
    for between in kind.between:
        root, _, plural = between.partition(":")
        with suppress(ApiError):  # it may be forbidden, or not installed
            objects = listed(api, path(f"{root}/namespaces", namespace, plural), PAGE)[0]
            owners |= {owned.metadata.uid for _, owned in _owned_by(objects, owners)}
    pods = listed(api, path("/api/v1/namespaces", namespace, "pods"), PAGE)[0]
    ours = sorted(_owned_by(pods, owners), key=lambda pod: pod[1].metadata.name)
    return [msgspec.json.decode(raw, type=dict[str, Any]) for raw, _ in ours]


def _owned_by(
    objects: Iterable[msgspec.Raw], owners: set[str]
) -> Iterator[tuple[msgspec.Raw, _Owned]]:
    for raw in objects:
        owned = msgspec.json.decode(raw, type=_Owned)
        if any(owner.uid in owners for owner in owned.metadata.owner_references or ()):
            yield raw, owned


def owners_of(api: ApiServer, namespace: str, pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects above a pod, its controller first.

    The list ends at the first owner that is not of :data:`KINDS`, is gone, or may not be read.
    """
    above: list[dict[str, Any]] = []
    below = pod
    while len(above) < MOST_OWNERS:
        meta = msgspec.convert(below.get("metadata") or {}, _Meta)
        owner = next((o for o in meta.owner_references or () if o.controller), _Owner())
        named = owner.kind, owner.api_version.rpartition("/")[0]
        kind = next((each for each in KINDS if (each.name, each.group) == named), None)
        if kind is None:
            break
        try:
            below = workload(api, kind, namespace, owner.name)
        except ApiError:
            break
        if (below.get("metadata") or {}).get("uid") != owner.uid:
            break  # another object has the owner's name now
        above.append(below)
    return above
