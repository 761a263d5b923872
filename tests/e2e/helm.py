"""The real Helm, with its own files in a folder of the tests."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster import ROOT
from tests.waiting import FOREVER

IMAGE = "gpu-topology"  # as the base names the extender's
CHART = ROOT / "manifests" / "chart"
RELEASE = "gpu-topology"


class Helm:
    """Runs Helm. It asks no cluster but the one that ``words`` name."""

    def __init__(self, program: Path, home: Path) -> None:
        self._program = program
        self._home = home
        kept = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **kept, "KUBECONFIG": os.devnull}

    def __call__(
        self, *words: str, values: Mapping[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What Helm says to these words; ``values`` are those of the chart."""
        path = self._home / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        given = () if values is None else ("--values", str(path))
        return subprocess.run(
            [str(self._program), *words, *given],
            capture_output=True,
            text=True,
            check=False,
            timeout=FOREVER,
            env=self._environment,
        )

    def package(self, folder: Path) -> Path:
        """The chart as one file, made by ``make chart-package``."""
        make = ("make", "-s", "chart-package", f"HELM={self._program}", f"OUT={folder}")
        subprocess.run(make, check=True, cwd=ROOT, timeout=FOREVER, env=self._environment)
        (found,) = folder.glob("*.tgz")
        return found

    def install(
        self,
        kubeconfig: Path,
        namespace: str,
        *words: str,
        values: Mapping[str, Any] | None = None,
        chart: Path = CHART,
        hooks: bool = False,
    ) -> str:
        """Install or change the release, and return the notes that Helm shows.

        The image is the base's. With ``hooks``, the caller runs their Jobs (:mod:`.hookjobs`).
        """
        where = ("--kubeconfig", str(kubeconfig), "--namespace", namespace, "--create-namespace")
        install = (
            "upgrade",
            RELEASE,
            str(chart),
            "--install",
            *where,
            *words,
            *(() if hooks else ("--no-hooks",)),
        )
        done = self(*install, values={"image": {"repository": IMAGE}, **(values or {})})
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]
