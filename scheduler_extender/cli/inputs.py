"""Reads and checks the input of commands: files, flags and words. An error is one clear line."""

from __future__ import annotations

import codecs
import ipaddress
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.untrustedtext import one_line

if TYPE_CHECKING:
    from scheduler_extender.files.clusterfile import ClusterFile
    from scheduler_extender.state.cluster.snapshot import Snapshot
    from scheduler_extender.terminal import HarmlessConsole
    from topology.core.placement import Verdict

MAX_TEXT = 16 * 1024 * 1024  # bytes of a file with pods, or of a program's output about a machine
VERDICTS = ("expected", "guaranteed")  # the words of --require
POD_WORDS = ("pod", "pods", "po")  # kubectl's words for the kind; it also takes capital letters
PIPE = 1_000_000  # columns if the width is unknown, so that no line is wrapped


def columns() -> int:
    """Return the width of a line: $COLUMNS, also for a pipe, else the terminal's current width."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and 0 < int(said) < 10_000:
        return int(said)
    if sys.stdout is None or not sys.stdout.isatty():
        return PIPE
    return os.get_terminal_size(sys.stdout.fileno()).columns or PIPE


def standard_output() -> HarmlessConsole:
    """Return the console for output that people read."""
    from scheduler_extender.terminal import HarmlessConsole

    return HarmlessConsole(width=columns())


def check_ports(port: int, admin_port: int, metrics_port: int = 0) -> None:
    """Refuse invalid port numbers, and equal ones. Raises :class:`BadInputError`."""
    flags = {"--port": port, "--admin-port": admin_port, "--metrics-port": metrics_port}
    taken: dict[int, str] = {}
    for flag, number in flags.items():
        if not 0 <= number <= 65535:
            raise BadInputError(f"{flag}: allowed are 0 to 65535, not {number}")
        if number in taken:
            said = f"{taken[number]} and {flag} are both {number}: each needs its own port"
            raise BadInputError(said)
        if number:
            taken[number] = flag


def folder(flag: str, path: Path, mode: int = 0o777) -> None:
    """Make a folder with this mode, unless it already exists. Raises :class:`BadInputError`."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInputError(f"{flag}: {path}: a folder is needed, not a file") from error
    except OSError as error:
        raise BadInputError(f"{flag}: {path}: {error.strerror}") from error


def check_node_name(flag: str, name: str) -> None:
    """Refuse a name that Kubernetes does not accept for a node. Raises :class:`BadInputError`."""
    if len(name) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        said = "allowed are names of a-z, 0-9, - and ., at most 253 characters"
        raise BadInputError(f"{flag}: {said}, not {name[:60]!r}")


def is_ip(text: str) -> bool:
    """Check whether a text is an IP address without a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def is_dns(text: str) -> bool:
    """Check whether a certificate may have a text as a DNS name.

    A text whose last label is a number is no DNS name.

    >>> [is_dns(name) for name in ("gpus.example", "*.gpus.example", "256.1.1.1", "a b")]
    [True, True, False, False]
    """
    label = r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
    is_name = re.fullmatch(rf"(\*\.)?{label}(\.{label})*", text) is not None
    return is_name and len(text) <= 253 and not text.rpartition(".")[2].isdecimal()


def check_namespace(flag: str, name: str) -> None:
    """Refuse a name that Kubernetes does not accept for a namespace.

    Raises :class:`BadInputError`.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise BadInputError(f"{flag}: {name[:60]!r} is not a valid name of a namespace")


def one_of(flag: str, word: str, words: Mapping[str, Any]) -> Any:
    """Return the value that a flag's word stands for. Raises :class:`BadInputError`."""
    if word not in words:
        raise BadInputError(f"{flag}: allowed are {', '.join(words)}, not {word!r}")
    return words[word]


def same(*words: str) -> dict[str, str]:
    """Return a mapping for :func:`one_of` in which each word stands for itself."""
    return {word: word for word in words}


def weakest(require: str) -> Verdict:
    """Return the verdict that --require names. Raises :class:`BadInputError`."""
    word = one_of("--require", require, same(*VERDICTS))
    from topology.core.placement import Verdict

    return Verdict(word)


def cluster_file(path: Path, *, bare: bool = False) -> ClusterFile:
    """Read a cluster file, which may lack records if ``bare``. Raises :class:`BadInputError`."""
    # Imported here, because the agent does not read such files, and its image lacks the packages
    # that this import needs.
    from scheduler_extender.files.clusterfile import ClusterFileError, load
    from scheduler_extender.terminal import progress

    try:
        with progress(f"reading {name_of(path)}") as tell_part:
            return load(path, lambda part: tell_part(part, ""), bare=bare)
    except ClusterFileError as error:
        raise BadInputError(str(error)) from error


def name_of(path: Path) -> str:
    """Return the name of the file in an error.

    >>> name_of(Path("-")), name_of(Path("a/pod.yaml"))
    ('standard input', 'a/pod.yaml')
    """
    return "standard input" if str(path) == "-" else str(path)


def text_of(path: Path, most: int = MAX_TEXT, *, utf16: bool = False) -> str:
    """Return the text of a file, or of standard input for ``-``.

    The text is UTF-8; with ``utf16`` it may also be UTF-16 with a byte order mark. Raises
    :class:`BadInputError`.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
        if len(data) > most:
            raise BadInputError(f"{name_of(path)}: larger than {most:,} bytes")
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return data.decode("utf-16" if utf16 and marked else "utf-8")
    except OSError as error:
        raise BadInputError(f"{name_of(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{name_of(path)}: not UTF-8 text: {error.reason}") from error


def tell(text: str) -> None:
    """Print a line on standard error, beside the answer; nowhere if its reader has gone."""
    with suppress(OSError):
        typer.echo(one_line(text), err=True)


def log_json(*, quiet: bool = False) -> None:
    """Configure logging to stderr in lines of JSON; with ``quiet`` only errors."""
    import structlog  # loads slowly

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error" if quiet else "notset"),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error with the known names that are similar; empty if there are none.

    >>> did_you_mean("train-1", ["train-01", "serve-1", "web"])
    ': did you mean train-01?'
    >>> did_you_mean("other", ["web"])
    ''
    """
    from scheduler_extender.explain.wording import near_names  # loads the model

    close = near_names(name, known)
    return f": did you mean {', '.join(close)}?" if close else ""


def namespace_and_name(meant: str, namespace: str) -> tuple[str, str]:
    """Return the namespace and name of NAME, pod/NAME or NAMESPACE/NAME.

    >>> namespace_and_name("pod/train", "team-a"), namespace_and_name("team-b/train", "team-a")
    (('team-a', 'train'), ('team-b', 'train'))
    """
    where, _, name = meant.rpartition("/")
    return namespace if where.lower() in ("", *POD_WORDS) else where, name


def no_such_pod(source: str, namespace: str, name: str, snapshot: Snapshot) -> BadInputError:
    """Return the error that the source of a snapshot has no such pod with GPUs."""
    for info in snapshot.nodes:
        for held in info.report.allocations if info.report else ():
            if (held.namespace, held.pod) == (namespace, name):
                said = f"only the record of {info.name} names pod {namespace}/{name}"
                return BadInputError(f"{source}{said}, so its request is unknown")
    meant = pod_meant(namespace, name, ((pod.namespace, pod.name) for pod in snapshot.pods))
    return BadInputError(f"{source}no pod {name} with GPUs in the namespace {namespace}{meant}")


def pod_meant(namespace: str, name: str, known: Iterable[tuple[str, str]]) -> str:
    """Return the end of an error about an unknown pod, with the known pods that may be meant.

    ``known`` are pairs of namespace and name. Pods of the same name in another namespace come
    before pods of a similar name in this namespace.
    """
    pods = list(known)
    elsewhere = sorted(f"{where}/{name}" for where, called in pods if called == name)
    if elsewhere:
        return f": did you mean {', '.join(elsewhere[:3])}?"
    whole = (f"{where}/{called}" for where, called in pods)
    here = did_you_mean(name, (called for where, called in pods if where == namespace))
    return here or did_you_mean(f"{namespace}/{name}", whole)
