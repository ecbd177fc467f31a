"""docs/spark.md names every option that queries on Spark take; those of TLS and logins are in docs/security.md."""

import re
from pathlib import Path

import pytest

from spe_adapter.datasource.options import SECURITY_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from spe_adapter.microbatch.options import STATE_OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def named_in(page: str) -> set[str]:
    """What stands in code quotes on a page."""
    return set(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")))


@pytest.mark.parametrize("options", [SOURCE_OPTIONS, SINK_OPTIONS, STATE_OPTIONS], ids=["source", "sink", "stateful"])
def test_every_option_is_in_the_guide(options: frozenset[str]) -> None:
    """By its name, as it is written in a program."""
    assert sorted(options - set(SECURITY_OPTIONS) - named_in("spark.md")) == []


def test_every_option_of_security_is_in_its_guide() -> None:
    """Behind the prefix `kafka.`, which the page's table names once."""
    assert sorted(name for name in SECURITY_OPTIONS if name.removeprefix("kafka.") not in named_in("security.md")) == []
