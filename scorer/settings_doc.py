"""Settings as people read them: below ``scorer serve --help``, and as ``docs/settings.md``.

``python -m scorer.settings_doc > docs/settings.md`` writes the page.
"""

from __future__ import annotations

import sys
import textwrap
from typing import Final

from scorer.settings import explained

_WIDTH: Final = 76
_HEAD: Final = """\
# Settings

Environment variables, read once at the start. A name that is not here stops the start, as does a value that is of the
wrong type or out of its range; the message says which, and what would do. What ends in `_BYTES` may be a size such as
`4GiB`. Options of `scorer serve` go before them. `SCORER_MODELS_DIR`, which commands and the service share, says where
models are looked for and fetched to.

Written by `python -m scorer.settings_doc` from the records that are checked at the start.

| setting | default | what it says |
| --- | --- | --- |
"""


def help_text() -> str:
    """For the end of ``--help``; click is told to leave the lines as they are."""
    blocks = ["\b\nEnvironment, with defaults:"]
    for setting in explained():
        text = textwrap.indent(textwrap.fill(setting.text, _WIDTH - 4), "    ")
        blocks.append(f"\b\n{setting.name}  [{setting.default}]\n{text}")
    return "\n\n".join(blocks)


def page() -> str:
    """``docs/settings.md``."""
    rows = (
        f"| `{setting.name}` | {setting.default} | {setting.text.replace('|', chr(92) + '|')} |"
        for setting in explained()
    )
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
