"""``python -m scheduler_extender`` is ``gpu-topology``."""

from scheduler_extender.cli import main

if __name__ == "__main__":
    main()
