"""The generated parts of docs/reference/commands.md: each command's help, and its options.

An option that several commands share stands in a table of its own. The flags of the two services
are in docs/reference/settings.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from manifests.reference.options import Option, command, options, text
from manifests.reference.pages import Parts, table
from scheduler_extender.cli.commands import APP, OF, PLUGIN

# The commands whose flags are settings, and their sections.
SERVICES = {"extender": "flags-of-the-extender", "agent": "flags-of-the-agent"}
OTHERS = tuple(name for name in OF[APP] if name not in OF[PLUGIN])
FEW = 2  # commands that lack an option
COMMANDS = (*OF[PLUGIN], *OTHERS)


def shared() -> str:
    """Return the table of the options that several commands have."""
    rows: dict[Option, list[str]] = {}
    for name in COMMANDS:
        for option in _shared(name):
            rows.setdefault(option, []).append(name)
    return table(
        ("option", "commands", "meaning"),
        ((option.typed, _listed(names), option.help) for option, names in rows.items()),
    )


def _listed(names: Collection[str]) -> str:
    """Return the names of commands; or those that are missing of the plugin's, if they are few."""
    missing = [name for name in OF[PLUGIN] if name not in names]
    few = len(missing) <= FEW
    listed = ", ".join(f"`{name}`" for name in (missing if few else names))
    return f"all but {listed}" if few else listed


def plugin() -> str:
    """Return a section for each command of the kubectl plugin."""
    return "\n\n".join(map(_section, OF[PLUGIN]))


def others() -> str:
    """Return a section for each other command."""
    return "\n\n".join(map(_section, OTHERS))


def _section(name: str) -> str:
    arguments = [p.metavar for p in command(name).params if p.param_type_name == "argument"]
    first, *others = text(name)
    lines = [
        f"### {name}",
        "",
        " ".join([f"`{' '.join([name, *arguments])}`:", first, *others]),
        "",
    ]
    if name in SERVICES:
        lines += [f"See [its flags](settings.md#{SERVICES[name]})."]
    else:
        common = set(_shared(name))
        lines += [f"* {o.typed}: {o.help}" for o in options(name) if o not in common]
    return "\n".join(lines).rstrip()


def _shared(name: str) -> Iterable[Option]:
    return () if name in SERVICES else (o for o in options(name) if _TIMES[o] > 1)


_TIMES = Counter(o for name in COMMANDS if name not in SERVICES for o in options(name))

PARTS: Parts = (shared, plugin, others)
