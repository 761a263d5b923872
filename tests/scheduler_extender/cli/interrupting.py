"""Runs a command, and a copy of it at each of many moments, in which Ctrl-C is pressed there.

``python -m tests.scheduler_extender.cli.interrupting EVERY WORDS…`` forks at each EVERYth call of a
Python function until the command ends, or the extender serves. It prints a line for each copy that
did not end with 130 and without a word, and in the end how many copies there were, and how many
moments came before the program listens to Ctrl-C.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

SERVES = ("servers.py", "run")  # file and function that is called once the extender is loaded
WENT_ON = 77


class _Presses:
    def __init__(self, every: int) -> None:
        self.every = every
        self.calls = self.copies = self.early = 0
        self.copy = False
        self.wrong: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (Path(code.co_filename).name, code.co_name) == SERVES:
            self.end()
        self.calls += 1
        if self.copy or self.calls % self.every:
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.early += 1
            return
        self.press(frame)

    def press(self, frame: FrameType) -> None:
        self.copies += 1
        with tempfile.TemporaryFile() as message:
            child = os.fork()
            if child == 0:
                self.copy = True
                os.dup2(message.fileno(), 2)
                os.kill(os.getpid(), signal.SIGINT)
                return
            _, status = os.waitpid(child, 0)
            message.seek(0)
            words = message.read().decode()
        code = os.waitstatus_to_exitcode(status)
        if (code, words) != (130, ""):
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.wrong.append(f"{where} ended with {code} and said {words[-300:]!r}")

    def end(self) -> None:
        sys.setprofile(None)
        if self.copy:
            os._exit(WENT_ON)
        sys.stdout.flush()
        lines = [*self.wrong, f"{self.copies} copies, {self.early} too early\n"]
        os.write(1, "\n".join(lines).encode())
        os._exit(0)


if __name__ == "__main__":
    presses = _Presses(int(sys.argv[1]))
    sys.argv = ["gpu-topology", *sys.argv[2:]]
    sys.setprofile(presses)
    try:
        from scheduler_extender.cli import main

        main()
    except SystemExit as end:
        sys.setprofile(None)
        if presses.copy:
            os._exit(end.code if isinstance(end.code, int) else 0)
    presses.end()
