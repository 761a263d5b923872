"""The page on ``why``: it names the kinds of objects and the rights that there are."""

import re
from collections import defaultdict

import yaml

from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.owners import KINDS
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from scheduler_extender.state.cluster.cache import Cache
from tests.commands import ROOT

PAGE = (ROOT / "docs" / "tasks" / "why.md").read_text()
ROLE = ROOT / "manifests" / "samples" / "tenants" / "why-role.yaml"


def test_the_page_names_the_kinds_that_there_are() -> None:
    listed = re.search(r"\bKIND is (.*?), in upper or lower case", PAGE)
    assert listed is not None
    assert set(re.split(r", | or ", listed[1])) == {kind.name for kind in KINDS}


def test_the_role_of_the_page_lists_all_that_is_read_besides_pods() -> None:
    role = yaml.safe_load(ROLE.read_text())
    assert str(ROLE.relative_to(ROOT)) in PAGE
    listed = {
        f"/apis/{group}" if group else "/api": set(rule["resources"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        if "list" in rule["verbs"]
    }
    cluster = Cache(lambda: 0.0)
    of_dra = [*DraNodes(cluster).sinks]
    read = defaultdict[str, set[str]](set)
    for where in (NODES_PATH, RECORDS_PATH, *of_dra):
        group, _, resource = where.rpartition("/")
        read[group.rpartition("/")[0]].add(resource)
    assert listed == read
