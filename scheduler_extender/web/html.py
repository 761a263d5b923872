"""Render templates as pages. Untrusted input is escaped everywhere, without exception."""

from datetime import UTC, datetime
from functools import cache  # noqa: TID251 (of our own files)
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scheduler_extender.explain.gpustates import MEANINGS, Flag, Use
from scheduler_extender.explain.wording import duration, set_text, sets_text, verdict_text
from scheduler_extender.web.drawing import tile
from scheduler_extender.web.overview import picture_of, some, who
from topology.core.requests import at_most

HERE = Path(__file__).parent
# Milliseconds that a linked dashboard shows. map.js has the same number.
DASHBOARD_MS = 3_600_000
# The files that pages load, with their types.
STATIC = {"map.css": "text/css", "map.js": "text/javascript"}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(moment=moment, instant=instant)
    environment.globals.update(
        Use=Use,
        Flag=Flag,
        meanings=MEANINGS,
        draw=tile,
        counted=picture_of,
        some=some,
        who=who,
        at_most=at_most,
        duration=duration,
        sets=sets_text,
        set_of=set_text,
        verdict=lambda word: verdict_text(word, passes=True).plain,
    )
    return environment


def page(template: str, here: str, **values: Any) -> str:
    """Render a page of HTML; ``here`` is its path."""
    return _environment().get_template(template).render(here=here, **values)


def moment(seconds: float) -> str:
    """Return a time in UTC for readers; an empty text if no calendar has it.

    >>> moment(0), moment(1e30)
    ('1970-01-01 00:00', '')
    """
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def instant(seconds: float) -> str:
    """Return a time to the second, in UTC. map.js writes it in the same way.

    >>> instant(0)
    '1970-01-01 00:00:00Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%SZ}"


def dashboard_at(address: str, seconds: float) -> str:
    """Return the address of a Grafana dashboard with the hour before a time.

    >>> dashboard_at("https://g.example/d/gpus?var-node=a&var-node=b&kiosk", 3600)
    'https://g.example/d/gpus?var-node=a&var-node=b&kiosk=&from=0&to=3600000'
    """
    parts, to = urlsplit(address), int(seconds * 1000)
    given = parse_qsl(parts.query, keep_blank_values=True)
    kept = [(name, value) for name, value in given if name not in ("from", "to")]
    query = urlencode([*kept, ("from", to - DASHBOARD_MS), ("to", to)])
    return parts._replace(query=query).geturl()


@cache
def static_file(name: str) -> bytes:
    """Return the content of one of the :data:`STATIC` files."""
    return (HERE / "static" / name).read_bytes()
