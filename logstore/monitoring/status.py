"""What the status page shows, as values for JSON: the busiest streams, the groups with the most lag, and totals.

Invariants: lists are bounded, whatever there is: `limit` streams and groups, MAX_SHOWN of all else, with how many were
found. A rate is per second between two snapshots, and null at the first one.
"""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from typing import Any, Final, NamedTuple

from logstore.log.served import ServedStream
from logstore.monitoring.cluster_status import cluster_status
from logstore.monitoring.metrics import Look, request_name
from logstore.monitoring.sampler import GroupFigures, SampledFigures, StreamFigures

DEFAULT_LIMIT: Final = 25
MAX_LIMIT: Final = 200
MAX_SHOWN: Final = 100


class Wanted(NamedTuple):
    """What the page asks for: streams and groups with this text in their name, at most `limit` of each."""

    search: str = ""
    limit: int = DEFAULT_LIMIT


class StreamTraffic(NamedTuple):
    """What went through a stream, per second."""

    records: float
    in_bytes: float
    out_bytes: float


RatedStream = tuple[StreamTraffic, StreamFigures]


def status(look: Look, before: SampledFigures | None, wanted: Wanted) -> dict[str, Any]:
    """The page's figures."""
    now, watched = look.now, look.watched
    store = watched.served.engine.store
    streams = [(_stream_rates(stream, figures, now, before), figures) for stream, figures in now.streams.items()]
    return {
        "version": look.version,
        "cluster_id": watched.served.store.cluster_id,
        "cluster": None if now.cluster is None else cluster_status(now.cluster),
        "data_dir": str(watched.data_dir),
        "phase": watched.health.phase.value,
        "now_ms": now.wall_ms,
        "started_ms": round(now.process.started_s * 1000),
        "totals": _totals(look),
        "rates": _rates(now, before, streams),
        "streams": _streams(streams, wanted),
        "groups": _groups(now, wanted),
        "queries": _queries(now),
        "state": _largest(now.state_bytes),
        "requests": _requests(look, before),
        "disk": {
            "free_bytes": now.disk.free_bytes,
            "total_bytes": now.disk.total_bytes,
            "log_bytes": look.log_bytes,
            "staged_bytes": look.staged_bytes,
            "error": watched.served.engine.disk_error,
            "needed_bytes": store.space.needed_bytes,
            "refused_since_ms": store.space.low_since_ms,
        },
        "memory": {
            "resident_bytes": now.process.resident_bytes,
            "tail_bytes": store.tail.used_bytes,
            "index_bytes": now.index_bytes,
            "request_bytes": watched.served.server.request_bytes,
        },
        "loop_lag_ms": round(watched.health.worst_lag_s * 1000, 1),
        "events": [
            {
                "at_ms": seen.at_ms,
                "level": seen.event.level.label,
                "event": seen.event.name,
                "count": seen.count,
                "fields": seen.fields,
            }
            for seen in watched.events.last()
        ],
    }


def _totals(look: Look) -> dict[str, int]:
    now, watched = look.now, look.watched
    epochs = watched.served.here.epochs()
    return {
        "topics": len(now.messages),
        "partitions": len(now.streams),
        "records": sum(now.messages.values()),
        "in_bytes": sum(totals.appended_bytes for totals in look.topics.values()),
        "out_bytes": sum(totals.fetched_bytes for totals in look.topics.values()),
        "requests": sum(now.requests.values()),
        "connections": watched.served.server.connections,
        "groups": len(now.groups) + now.groups_left_out,
        "lag": sum(group.lag for group in now.groups),
        "queries": len(now.queries) + now.queries_left_out,
        "readers": look.reader_count,
        "epochs_committed": 0 if epochs is None else epochs.committed,
        "open_files": now.process.open_files,
        "threads": now.process.threads,
    }


def _rates(
    now: SampledFigures, before: SampledFigures | None, streams: Sequence[RatedStream]
) -> dict[str, float | None]:
    """Per second, and the mean time of a sync in ms; null where there is nothing to compare with."""
    names = ("records", "in_bytes", "out_bytes", "requests", "syncs", "cpu", "sync_ms")
    if before is None or now.at_s <= before.at_s:
        return dict.fromkeys(names)
    span_s = now.at_s - before.at_s
    syncs = now.syncs - before.syncs
    return {
        "records": round(sum(rates.records for rates, _ in streams), 1),
        "in_bytes": round(sum(rates.in_bytes for rates, _ in streams)),
        "out_bytes": round(sum(rates.out_bytes for rates, _ in streams)),
        "requests": round((sum(now.requests.values()) - sum(before.requests.values())) / span_s, 1),
        "syncs": round(syncs / span_s, 1),
        "cpu": round((now.process.cpu_s - before.process.cpu_s) / span_s, 3),
        "sync_ms": round(1000 * (now.sync_s - before.sync_s) / syncs, 3) if syncs else None,
    }


_NO_RATES: Final = StreamTraffic(0, 0, 0)


def _stream_rates(
    stream: ServedStream, figures: StreamFigures, now: SampledFigures, before: SampledFigures | None
) -> StreamTraffic:
    earlier = None if before is None else before.streams.get(stream)
    if before is None or earlier is None or now.at_s <= before.at_s:
        return _NO_RATES
    span_s = now.at_s - before.at_s
    return StreamTraffic(
        (figures.appended_records - earlier.appended_records) / span_s,
        (figures.appended_bytes - earlier.appended_bytes) / span_s,
        (figures.fetched_bytes - earlier.fetched_bytes) / span_s,
    )


def _streams(streams: Sequence[RatedStream], wanted: Wanted) -> dict[str, Any]:
    search = wanted.search.lower()
    found = streams
    if search:
        found = [entry for entry in streams if search in f"{entry[1].topic.name}-{entry[1].partition}".lower()]
    busiest = nlargest(wanted.limit, found, key=_busy)
    return {
        "found": len(found),
        "shown": [
            {
                "topic": figures.topic.name,
                "partition": figures.partition,
                "start": figures.log_start,
                "end": figures.high_watermark,
                "bytes": figures.size_bytes,
                "chunks": figures.chunks,
                "records_s": round(rates.records, 1),
                "in_bytes_s": round(rates.in_bytes),
                "out_bytes_s": round(rates.out_bytes),
            }
            for rates, figures in busiest
        ],
    }


def _busy(entry: RatedStream) -> tuple[float, int]:
    rates, figures = entry
    return rates.in_bytes + rates.out_bytes, figures.size_bytes


def _groups(now: SampledFigures, wanted: Wanted) -> dict[str, Any]:
    search = wanted.search.lower()
    found = [group for group in now.groups if search in group.name.lower() or _reads(group, search)]
    return {
        "found": len(found) + (0 if search else now.groups_left_out),
        "shown": [
            {
                "group": group.name,
                "state": group.state,
                "members": group.members,
                "lag": group.lag,
                "partitions": len(group.positions),
                "topics": sorted({position.topic for position in group.positions})[:5],
            }
            for group in nlargest(wanted.limit, found, key=lambda group: (group.lag, len(group.positions)))
        ],
    }


def _reads(group: GroupFigures, search: str) -> bool:
    return any(search in topic.lower() for topic in {position.topic for position in group.positions})


def _queries(now: SampledFigures) -> list[dict[str, Any]]:
    latest = nlargest(MAX_SHOWN, now.queries, key=lambda query: query.committed_ms or 0)
    return [
        {
            "query": query.name,
            "state": query.state.value,
            "epoch": query.epoch,
            "incarnation": query.incarnation_number,
            "committed_ms": query.committed_ms,
            "staged_bytes": now.staged_bytes.get(query.name, 0),
        }
        for query in latest
    ]


def _largest(sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    largest = nlargest(MAX_SHOWN, sizes.items(), key=lambda entry: entry[1])
    return [{"query": name, "bytes": size} for name, size in largest]


def _requests(look: Look, before: SampledFigures | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for key, times in look.watched.requests.used():
        count = look.now.requests.get(key, 0)
        rate = None
        if before is not None and look.now.at_s > before.at_s:
            rate = round((count - before.requests.get(key, 0)) / (look.now.at_s - before.at_s), 1)
        mean_ms = round(1000 * times.sum_s / times.count, 3) if times.count else None
        found.append({"request": request_name(key), "count": count, "per_s": rate, "mean_ms": mean_ms})
    return sorted(found, key=lambda entry: entry["count"], reverse=True)[:MAX_SHOWN]
