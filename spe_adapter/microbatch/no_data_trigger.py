"""The no-data trigger of a stateful query: a thread that closes due windows when input pauses, and at the end of a
query with the trigger `availableNow`.

Invariants:
* The trigger acts only when Spark has looked for input and found none, and no epoch has run for the delay, so that a
  busy query never waits for the trigger. The driver's lock keeps the trigger's epochs and Spark's batches apart.
* The trigger ends with the query. An error of its epoch stops the query and is the query's failure.

Source: Spark's batches without data (spark.sql.streaming.noDataMicroBatches.enabled).
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from spe_adapter.microbatch.driver import Execute, QueryDriver

_MIN_POLL_S: Final = 0.02
_POLLS_PER_DELAY: Final = 4
_WAITING: Final = "Waiting for"
_log = logging.getLogger(__name__)


class NoDataTrigger:
    """Watches one query. `delay_s` is the shortest pause, in seconds, that triggers an epoch. `at_end`: the query ends
    by itself, and its due windows are closed at its end.
    """

    def __init__(
        self, query: StreamingQuery, driver: QueryDriver, execute: Execute, *, delay_s: float, at_end: bool
    ) -> None:
        self._query = query
        self._driver = driver
        self._execute = execute
        self._delay_s = delay_s
        self._at_end = at_end
        self._stopped = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"cairn-no-data-{query.id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further epoch."""
        self._stopped.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended, by itself or because of `stop`; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close_now(self) -> None:
        """Close due windows without waiting for a pause. Raises the errors of an epoch."""
        self._guarded(lambda: None)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        poll_s = max(self._delay_s / _POLLS_PER_DELAY, _MIN_POLL_S)
        while not self._stopped.wait(poll_s) and self.failure is None:
            if not self._query.isActive:
                if self._at_end and self._query.exception() is None:
                    self._guarded(lambda: None)
                return
            if self._driver.idle_s() >= self._delay_s and self._is_waiting():
                self._guarded(self._query.stop)

    def _is_waiting(self) -> bool:
        """Whether Spark waits for input, having found none when it last looked: not while a batch is prepared."""
        status = self._query.status
        return not status["isDataAvailable"] and str(status["message"]).startswith(_WAITING)

    def _guarded(self, otherwise: Callable[[], None]) -> None:
        try:
            self._driver.close_due(self._execute)
        except Exception as error:  # noqa: BLE001 - the query fails with any error, so that its user sees it
            if self._stopped.is_set():
                _log.debug("an epoch without input ended with its query: %s", error)
                return
            self.failure = error
            otherwise()
