"""``python -m tests.chaos FILE``: judge a history again. Exits with 1 where something is found."""

import sys
from pathlib import Path

from tests.chaos.checks import findings
from tests.chaos.history import HistoryError, read
from tests.chaos.report import report
from tests.chaos.story import story_of


def main(words: list[str]) -> int:
    """Print the report of one history."""
    if len(words) != 1:
        print("usage: python -m tests.chaos HISTORY.jsonl", file=sys.stderr)
        return 2
    try:
        story = story_of(read(Path(words[0])))
    except (OSError, HistoryError) as error:
        print(error, file=sys.stderr)
        return 2
    print(report(story))
    return 1 if findings(story) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
