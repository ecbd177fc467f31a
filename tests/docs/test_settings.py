"""docs/settings.md lists the settings that the sidecar has, with their real defaults: both come from one table."""

from itertools import groupby
from pathlib import Path

from logstore.settings_table import SETTINGS, Setting

PAGE = Path(__file__).resolve().parents[2] / "docs/settings.md"

INTRODUCTION = """# Settings of a sidecar

Each is a flag of `cairn serve`, or an entry of the TOML file that `--config` names; flags win. Unknown names and
values out of range are refused with a message that says what is allowed. Sizes are bytes; `-ms` and `-s` say
milliseconds and seconds.

Beside the tables below: `data-dir` and `insecure` at the top of the file, and `listeners` and `advertise` (lists of
`HOST:PORT`) in `[kafka]`.
"""


def page() -> str:
    """What the document should say."""
    parts = [INTRODUCTION]
    for table, settings in groupby(SETTINGS, key=lambda setting: setting.table):
        parts.append(f"\n## `[{table}]`\n\n| setting | default | what it is |\n|---|---|---|\n")
        parts += [f"| `{setting.name}` | `{default_of(setting)}` | {setting.help} |\n" for setting in settings]
    return "".join(parts)


def default_of(setting: Setting) -> str:
    """A default as it is written in TOML."""
    return str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)


def test_the_page_lists_every_setting_with_its_default() -> None:
    """The document is exactly what the table of settings says (python -m tests.docs.test_settings writes it)."""
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
