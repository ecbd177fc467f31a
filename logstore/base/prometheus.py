"""Prometheus' text format: metrics as values to the text that a scrape gets.

Invariants: label values and help may be any text, and never break a line; a metric's samples stand together.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from logstore.base.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value. `suffix` follows the metric's name in a histogram."""

    labels: Mapping[str, object]
    value: float
    suffix: str = ""


class Metric(NamedTuple):
    """One metric with its samples. `kind` is `counter`, `gauge` or `histogram`."""

    name: str
    kind: str
    says: str
    samples: Sequence[Sample]


def histogram_samples(labels: Mapping[str, object], histogram: Histogram) -> list[Sample]:
    """The samples of a histogram."""
    samples = [Sample({**labels, "le": bound}, count, "_bucket") for bound, count in histogram.buckets()]
    return [*samples, Sample(labels, histogram.sum_s, "_sum"), Sample(labels, histogram.count, "_count")]


def text(metrics: Iterable[Metric]) -> str:
    """What a scrape gets."""
    lines: list[str] = []
    for metric in metrics:
        says = metric.says.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {metric.name} {says}\n# TYPE {metric.name} {metric.kind}")
        lines += [f"{metric.name}{suffix}{_labels(labels)} {value}" for labels, value, suffix in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
