"""``python -m tests.fuzz``: every target, with one seed after the other, until the time is up.

The first seed is printed, and with each fault its own seed and target, and the text in the folder
that ``--keep`` names. ``--seed N --inputs 1 --target NAME`` makes the same text again. The exit
code is 1 where there was a fault.
"""

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path
from random import Random, SystemRandom

import structlog

from tests.fuzz.targets import TARGETS


def main() -> int:
    """Run, print, and say whether all was well."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Change texts at random and have them read. Exit with 1 where one was neither "
        "read nor refused in a line.",
    )
    parser.add_argument("--seconds", type=float, default=600, help="when to stop")
    parser.add_argument("--inputs", type=int, help="stop after so many of each target")
    parser.add_argument("--seed", type=int, help="the first seed; without it: any")
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--keep", type=Path, help="folder for texts that were not well")
    given = parser.parse_args()
    # What cannot be read is told to operators: here it is the point, and nobody wants to see it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    first = SystemRandom().randrange(10**9) if given.seed is None else given.seed
    names = [given.target] if given.target else list(TARGETS)
    begun, seed, wrong = time.monotonic(), first, 0
    print(f"seeds from {first}", flush=True)
    while time.monotonic() - begun < given.seconds and (
        given.inputs is None or seed - first < given.inputs
    ):
        for name in names:
            text = TARGETS[name].text(Random(f"{name} {seed}"))
            try:
                TARGETS[name].check(text)
            except Exception:  # noqa: BLE001 (whatever it is, the run goes on)
                wrong += 1
                print(f"--- {name}, seed {seed}\n{traceback.format_exc()}", flush=True)
                if given.keep is not None:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    place = given.keep / f"{name.replace(' ', '-')}-{seed}.txt"
                    place.write_text(text, errors="surrogatepass")
        seed += 1
    seconds = time.monotonic() - begun
    count = (seed - first) * len(names)
    print(f"{count:,} texts of seeds {first} to {seed - 1} in {seconds:.0f} s, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
