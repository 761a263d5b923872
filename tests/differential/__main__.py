"""``python -m tests.differential --admissions 100000``: the long run.

Every counterexample is printed with its seed, made small, and written into the folder that
``--keep`` names. The exit code is 1 where reality was outside the prediction.
"""

import argparse
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.differential import claims, enumeration
from tests.differential.choices import lines, run
from tests.differential.histories import random_history
from tests.differential.managers import Managers, allocators, programs
from tests.differential.nvidiaplugin import (
    VERSION,
    NvidiaPlugin,
    plugin_program,
    program_of,
    version_of,
)
from tests.differential.ownclaims import run_own
from tests.differential.play import play
from tests.differential.recording import record
from tests.differential.selectors import run_selectors
from tests.differential.shrinking import shrunk
from tests.differential.tally import Table
from tests.e2e.privatemounts import why_not


def main() -> int:
    """Run, print, and return 0 if everything was predicted."""
    options = argparse.ArgumentParser(
        prog="python -m tests.differential",
        description="Let Kubernetes' own managers and NVIDIA's allocator admit random pods, ask "
        "NVIDIA's plugin about shared GPUs and MIG instances, and compare what they do with what "
        "the extender foresees. Exit with 1 where something was not foreseen. It needs Go and "
        "builds the managers once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_argument("--seed", type=int, default=0, help="seed of the first history")
    options.add_argument("--admissions", type=int, default=100_000, help="how many pods to admit")
    options.add_argument(
        "--questions",
        type=int,
        default=20_000,
        help="how many questions about shared GPUs and MIG instances to ask NVIDIA's plugin",
    )
    options.add_argument(
        "--claims",
        type=int,
        default=100_000,
        help="how many claims of nodes with DRA to have kube-scheduler's allocator decide",
    )
    options.add_argument(
        "--machines",
        type=int,
        default=2_000,
        help="how many machines with MIG devices to let the plugin look at (needs root)",
    )
    options.add_argument(
        "--plugin-source",
        type=Path,
        help="a checkout of NVIDIA's k8s-device-plugin to ask in place of the module",
    )
    options.add_argument(
        "--record",
        type=Path,
        help="where to write what the plugin of --plugin-source chose, and do nothing else",
    )
    options.add_argument("--keep", type=Path, help="folder for counterexamples")
    options.add_argument("--shrink", type=int, default=10, help="how many of them to make small")
    options.add_argument("--show", type=int, default=10, help="how many of them to print")
    given = options.parse_args()
    with TemporaryDirectory() as folder:
        if given.plugin_source is None:
            program, version = plugin_program(), VERSION
        else:
            version = version_of(given.plugin_source)
            program = program_of(given.plugin_source, Path(folder))
        with NvidiaPlugin(program) as plugin:
            if given.record is not None:
                given.record.write_text("".join(record(given.questions, given.seed, plugin)))
                return 0
            wrong = _admit(given) if given.admissions else 0
            mispredicted = _choose(given, plugin, version)
    return 1 if wrong + mispredicted + _enumerate(given) + _claim(given) else 0


def _choose(given: Namespace, plugin: NvidiaPlugin, version: str) -> int:
    """Ask the plugin about shared GPUs and MIG instances; return the number of mispredictions."""
    choices = run(given.questions, given.seed, plugin, version)
    print("\n".join(["", f"NVIDIA's plugin {version}:", *lines(choices)]))
    mispredicted = [words for tally in choices.values() for words in tally.found]
    print("\n".join(mispredicted[: given.show]))
    return len(mispredicted)


def _claim(given: Namespace) -> int:
    """Ask kube-scheduler's allocators about claims; return how many answers were not predicted."""
    wrong = 0
    for release, allocator in allocators().items():
        print(f"\nkube-scheduler {release}:")
        for found in (
            claims.run(given.claims, given.seed, allocator),
            run_own(given.claims, given.seed, allocator),
            run_selectors(given.claims // 5, given.seed, allocator),
            claims.run_compiled(given.claims // 10, given.seed, allocator, pairs=False),
            claims.run_compiled(given.claims // 10, given.seed, allocator, pairs=True),
        ):
            print("\n".join([found.line, *found.found[: given.show]]))
            wrong += len(found.found)
    return wrong


def _enumerate(given: Namespace) -> int:
    """Let the plugin find MIG devices; how often our record said something else."""
    if reason := why_not():
        print(f"no machines with MIG devices: {reason}")
        return 0
    with TemporaryDirectory() as folder:
        bench = enumeration.Bench(Path(folder))
        with bench.plugin(plugin_program("enumeration")) as plugin:
            found = enumeration.run(given.machines, given.seed, bench, plugin)
    print("\n".join(["", *enumeration.lines(found)]))
    differing = [words for tally in found.values() for words in tally.found]
    print("\n".join(differing[: given.show]))
    return len(differing)


def _admit(given: Namespace) -> int:
    """Let the managers admit pods; return how many histories had an unpredicted answer."""
    table, seed, wrong, begun = Table(), given.seed, 0, time.monotonic()
    with Managers(programs()) as managers:
        while table.whole["admissions"] < given.admissions:
            history = random_history(seed)
            played = play(history, managers)
            table.add(played)
            outside = [c for c in played.found if not c.unacknowledged]
            if outside:
                wrong += 1
                if wrong <= given.show:
                    print(f"seed {seed} [{played.family}]: {outside[0]}", flush=True)
                if given.keep is not None and wrong <= given.shrink:
                    small = shrunk(history, outside[0].kind, managers)
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"seed-{seed}.json").write_text(json.dumps(small) + "\n")
            seed += 1
    print("\n".join(table.lines()))
    seconds = time.monotonic() - begun
    print(
        f"histories of seeds {given.seed} to {seed - 1}, {wrong} with a counterexample; "
        f"{seconds:.0f} s"
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
