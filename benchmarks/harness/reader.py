"""A reader in a process of its own: `python -m benchmarks.harness.reader PORT TOPIC MODE`.

`again` reads the whole topic again and again at full speed; `follow` stays at its end. It says "ready" on a line when
it reads, ends when its standard input says a line with an offset (`follow` reads up to there first), and answers with
one line of JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from benchmarks.harness.load import FETCH_BYTES, age_s, walk
from benchmarks.harness.raw import RawConnection

FOLLOW_WAIT_MS = 100


def main(arguments: list[str]) -> None:
    """Read until told to stop."""
    port, topic, mode = int(arguments[0]), arguments[1], arguments[2]
    again = mode == "again"
    with RawConnection(port) as connection:
        offset = 0 if again else connection.list_offset(topic, 0, -1)[1]
        print("ready", flush=True)
        size = records_read = 0
        ages_s: list[float] = []
        last_offset: int | None = None
        begin = end_at = 0.0
        while last_offset is None or (not again and offset < last_offset):
            fetched = connection.fetch(topic, 0, offset, max_bytes=FETCH_BYTES, max_wait_ms=FOLLOW_WAIT_MS)
            begin = begin or time.perf_counter()
            next_offset, end = walk(fetched.records, offset)
            if end:
                end_at = time.perf_counter()
                size += end
                records_read += next_offset - offset
                offset = next_offset
                if not again:
                    ages_s.append(age_s(fetched.records, end))
            if again and offset >= fetched.high_watermark:
                offset = 0
            if last_offset is None and select.select([sys.stdin], [], [], 0)[0]:
                last_offset = int(sys.stdin.readline() or 0)
    print(
        json.dumps({"records": records_read, "size_bytes": size, "seconds": end_at - begin, "ages_s": ages_s}),
        flush=True,
    )


class ReaderProcess:
    """Runs the reader beside a load; a context."""

    def __init__(self, port: int, topic: str, mode: str) -> None:
        """`mode` is "again" or "follow"; returns when it reads."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.reader", str(port), topic, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout is None or self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError(f"the reader of {topic} did not start")

    def finish(self, end_offset: int = 0) -> dict[str, Any]:
        """Stop it (`follow`: at `end_offset`) and give back what it counted."""
        output, _ = self._process.communicate(f"{end_offset}\n", timeout=60)
        result: dict[str, Any] = json.loads(output)
        return result

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
