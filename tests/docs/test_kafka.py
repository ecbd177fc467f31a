"""docs/kafka.md lists the requests that are served, with their real versions: a running sidecar is asked."""

from pathlib import Path

from kio.schema.index import api_key_map

from tests.kafka.wire_client import API_VERSIONS, WireClient
from tests.support.sidecar import Sidecar

PAGE = Path(__file__).resolve().parents[2] / "docs/kafka.md"
BEGIN, END = "<!-- served -->\n", "<!-- /served -->\n"


def table(port: int) -> str:
    """The requests that the sidecar at `port` offers, as Markdown."""
    with WireClient(port) as client:
        offered = client.request(API_VERSIONS, 0).api_keys
    rows = ["| request | key | versions |", "|---|---|---|"]
    for api in sorted(offered, key=lambda api: api.api_key):
        name = "".join(word.capitalize() for word in api_key_map[api.api_key].split("_"))
        rows.append(f"| {name} | {api.api_key} | {api.min_version} to {api.max_version} |")
    return "\n".join(rows) + "\n"


def test_the_page_lists_what_is_served(tmp_path: Path) -> None:
    """The table is exactly what ApiVersions says."""
    page = PAGE.read_text(encoding="utf-8")
    listed = page.split(BEGIN)[1].split(END)[0]
    with Sidecar(tmp_path / "data") as sidecar:
        assert listed == table(sidecar.port)
