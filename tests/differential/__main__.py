"""``python -m tests.differential --admissions 100000``: the long run.

Every counterexample is printed with its seed, made small, and written into the folder that
``--keep`` names. The exit code is 1 where reality was outside the prediction.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.differential.arguments import parser
from tests.differential.choices import lines, run
from tests.differential.histories import random_history
from tests.differential.managers import Managers, programs
from tests.differential.nvidiaplugin import NvidiaPlugin, plugin_program
from tests.differential.play import play
from tests.differential.shrinking import shrunk
from tests.differential.tally import Table


def main() -> int:
    """Run, print, and say whether all was foreseen."""
    options = parser(
        "python -m tests.differential",
        "Let Kubernetes' own managers and NVIDIA's allocator admit random pods, ask NVIDIA's "
        "plugin about shared GPUs and MIG instances, and compare what they do with what the "
        "extender foresees. Exit with 1 where something was not foreseen.",
        seed="the first history",
    )
    options.add_argument("--admissions", type=int, default=100_000, help="how many pods to admit")
    options.add_argument(
        "--questions",
        type=int,
        default=20_000,
        help="how many questions about shared GPUs and MIG instances to ask NVIDIA's plugin",
    )
    options.add_argument("--keep", type=Path, help="folder for counterexamples")
    options.add_argument("--shrink", type=int, default=10, help="how many of them to make small")
    options.add_argument("--show", type=int, default=10, help="how many of them to print")
    given = options.parse_args()
    table, seed, wrong, begun = Table(), given.seed, 0, time.monotonic()
    with Managers(programs()) as managers:
        while table.whole.admissions < given.admissions:
            history = random_history(seed)
            played = play(history, managers)
            table.add(played)
            outside = [c for c in played.found if not c.unreported]
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
    with NvidiaPlugin(plugin_program()) as plugin:
        choices = run(given.questions, given.seed, plugin)
    print("\n".join(["", *lines(choices)]))
    unforeseen = [words for tally in choices.values() for words in tally.found]
    print("\n".join(unforeseen[: given.show]))
    return 1 if wrong or unforeseen else 0


if __name__ == "__main__":
    sys.exit(main())
