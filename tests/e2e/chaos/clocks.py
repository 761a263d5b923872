"""The extender on a clock that runs fast or slow: ``python -m tests.e2e.chaos.clocks extender …``.

``GPU_TOPOLOGY_CLOCK_RATE`` is how many seconds its clock shows in one: 1.05 is 5 % fast. What the
process reads is scaled, from before the extender is imported: the Lease, the time limits and the
age of what is known. How long it waits is not, nor is the time of day: a wait is a few seconds, or
looks at the clock when it is over.
"""

import os
import time

VARIABLE = "GPU_TOPOLOGY_CLOCK_RATE"
WRAPPER = ("-m", "tests.e2e.chaos.clocks")


def run_at(rate: float) -> None:
    """From now on the monotonic clocks of this process run at a rate."""
    monotonic, gettime, began = time.monotonic, time.clock_gettime, time.monotonic()

    def scaled(clock: int) -> float:
        now = gettime(clock)
        real_time = clock == time.CLOCK_REALTIME
        return now if real_time else now + (monotonic() - began) * (rate - 1)

    time.monotonic = lambda: began + (monotonic() - began) * rate
    time.clock_gettime = scaled


if __name__ == "__main__":
    run_at(float(os.environ[VARIABLE]))
    from scheduler_extender.cli import main

    main()
