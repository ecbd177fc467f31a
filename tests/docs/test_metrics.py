"""docs/metrics.md lists the metrics that the sidecar has, and what else shows them knows no others: both come from one
table.
"""

import json
import re
from pathlib import Path

import pytest

from logstore.monitoring.cluster_metrics import CLUSTER_METRICS, MAX_HOST_SERIES, ClusterMetricEntry
from logstore.monitoring.metrics import (
    MAX_GROUP_SERIES,
    MAX_PARTITION_SERIES,
    MAX_QUERY_SERIES,
    MAX_TOPIC_SERIES,
    METRICS,
    MetricEntry,
)
from logstore.monitoring.sampler import MAX_OFFSETS, REUSE
from logstore.monitoring.tier_metrics import TIER_METRICS, TierMetricEntry

ALL_METRICS: list[MetricEntry | ClusterMetricEntry | TierMetricEntry] = [*METRICS, *CLUSTER_METRICS, *TIER_METRICS]
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/metrics.md"
DASHBOARD = ROOT / "docs/grafana/cairn.json"
NAME = re.compile(r"\b(?:kafka|cairn|process)_[a-z_]+")

INTRODUCTION = f"""# Metrics

`cairn serve --http 127.0.0.1:9644` serves them at `/metrics` in Prometheus' text format.
[Running a sidecar](operations.md#what-to-watch) says which to watch; [grafana/cairn.json](grafana/cairn.json) is a
dashboard.

Names are those of Kafka's exporters where they have the same figure: of the JMX exporter with its usual rules, and of
kafka_exporter for groups. The process has the names that Prometheus' client libraries give. All else is `cairn_…`.
Counters begin at 0 with each start.

The number of series is bounded. Series of their own have {MAX_PARTITION_SERIES:,} streams, {MAX_TOPIC_SERIES:,} topics,
{MAX_GROUP_SERIES:,} positions of groups and {MAX_QUERY_SERIES:,} queries, the oldest first; `cairn_series_left_out`
says how many more there are, and totals such as `cairn_log_bytes` count all. Groups with {MAX_OFFSETS:,} committed
offsets in all are looked at. Figures of streams and groups are at most {REUSE} times as old as they took to collect
(`cairn_snapshot_seconds`): collecting takes a twentieth of a processor at most, however many clients ask.

`python -m tests.docs.test_metrics` writes this page.
"""


CLUSTER_INTRODUCTION = f"""
## Of a cluster

Only a [host of a cluster](cluster.md) has these, beside those above. Members and streams without an owner are as the
host sees them; all else is its own, so that a sum over hosts counts each stream, replica and link once. At most
{MAX_HOST_SERIES} other hosts have series. Of the metrics above, those of streams are of the streams that the host
leads, those of groups of the groups that it coordinates; a lag is known for streams that it leads as well.
"""


TIER_INTRODUCTION = """
## Of a tier

Only a sidecar with a [tier](tier.md) has these, beside those above.
"""


def page() -> str:
    """What the document should say."""
    rows = [
        f"| `{entry.name}` | {entry.kind} | {', '.join(f'`{label}`' for label in entry.labels)} | {entry.says} |\n"
        for entry in METRICS
    ]
    more = [
        f"| `{entry.name}` | {entry.kind} | {', '.join(f'`{label}`' for label in entry.labels)} | {entry.says} |\n"
        for entry in CLUSTER_METRICS
    ]
    tier = [f"| `{entry.name}` | {entry.kind} |  | {entry.says} |\n" for entry in TIER_METRICS]
    head = "\n| metric | kind | labels | what it says |\n|---|---|---|---|\n"
    return "".join([INTRODUCTION, head, *rows, CLUSTER_INTRODUCTION, head, *more, TIER_INTRODUCTION, head, *tier])


def known_names() -> set[str]:
    """Every name that a query may use; a histogram has three."""
    names = {entry.name for entry in ALL_METRICS}
    for entry in METRICS:
        if entry.kind == "histogram":
            names |= {f"{entry.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")}
    return names


def test_the_page_lists_every_metric() -> None:
    """The document is exactly what the table of metrics says (python -m tests.docs.test_metrics writes it)."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_names_keep_prometheus_rules() -> None:
    """A name stands once; a counter ends in `_total`, and nothing else does; times are in seconds, sizes in bytes."""
    names = [entry.name for entry in ALL_METRICS]
    assert len(names) == len(set(names))
    for entry in ALL_METRICS:
        assert (entry.kind == "counter") == entry.name.endswith("_total"), entry.name
        assert entry.kind in ("counter", "gauge", "histogram")
        assert not re.search(r"_(ms|kb|mb)(_|$)", entry.name)


def drawn_expressions() -> list[str]:
    """The queries of all panels of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_uses_metrics_that_exist() -> None:
    """Every metric in an expression of the dashboard is in the table, and so is every label that it groups by."""
    expressions = drawn_expressions()
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(used) > 15
    assert used <= known_names(), used - known_names()
    labels = {"instance", "le", *(label for entry in METRICS for label in entry.labels)}
    labels |= {label for entry in CLUSTER_METRICS for label in entry.labels}
    grouped = {
        label.strip()
        for expression in expressions
        for group in re.findall(r"by \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    assert grouped <= labels


@pytest.mark.parametrize("guide", ["docs/operations.md", "docs/cluster.md", "docs/tier.md"])
def test_the_dashboard_draws_what_the_guides_say_to_watch(guide: str) -> None:
    """Of hosts alone, of clusters and of tiers."""
    drawn = {name for expression in drawn_expressions() for name in NAME.findall(expression)}
    plain = {name.removesuffix("_bucket").removesuffix("_count") for name in drawn}
    watched = set(re.findall(r"`((?:kafka|cairn|process)_[a-z_]+)[`{]", (ROOT / guide).read_text(encoding="utf-8")))
    assert watched & known_names()
    assert watched & known_names() <= plain | drawn, sorted(watched & known_names() - plain - drawn)


def test_the_guide_names_metrics_that_exist() -> None:
    """What docs/operations.md says to watch is in the table."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    used = set(re.findall(r"`((?:kafka|cairn|process)_[a-z_]+)[`{]", text))
    assert len(used) > 8
    assert used <= known_names(), used - known_names()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
