"""Operators as users write them: the documentation's examples, whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spe_adapter.operators.base import Emitted, Operator, Results, Rows, State, ceiling_ms, times_of

PAYMENTS = pa.schema([("customer", pa.string()), ("cents", pa.int64())])
CLICKS = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])


class Alarm(Operator):
    """An alarm when a customer pays more than ten times the mean of what they paid before."""

    state = {"payments": pa.int64(), "paid_cents": pa.int64()}  # noqa: RUF012  as users write it

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The payment, and the mean before it."""
        return pa.schema([("cents", pa.int64()), ("mean_cents", pa.float64())])

    def process(self, rows: Rows, state: State) -> Emitted:
        """Compare each payment with those before it, in this batch and in earlier ones."""
        cents = rows.batch.column("cents").to_pandas()
        customer = cents.groupby(rows.window)
        payments, paid = state.get("payments"), state.get("paid_cents")
        payments_before = payments[rows.window] + customer.cumcount()
        mean_before = (paid[rows.window] + customer.cumsum() - cents) / payments_before.clip(lower=1)
        odd = np.flatnonzero((payments_before > 0) & (cents > 10 * mean_before))
        np.add.at(payments, rows.window, 1)
        np.add.at(paid, rows.window, cents)
        state.set("payments", payments)
        state.set("paid_cents", paid)
        alarms = {"cents": cents[odd], "mean_cents": mean_before[odd]}
        return Results(pa.RecordBatch.from_pydict(alarms), rows.window[odd])


class Sessions(Operator):
    """Clicks of a user between two pauses of a quarter of an hour: how many, from when to when."""

    state = {"clicks": pa.int64(), "start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")}  # noqa: RUF012
    event_time = "at"
    delay_ms = 60_000
    pause_us = 15 * 60 * 1_000_000

    def output(self, schema: pa.Schema) -> pa.Schema:
        """A session."""
        return pa.schema(list(self.state.items()))

    def process(self, rows: Rows, state: State) -> Emitted:
        """Add clicks to their user's session, which ends a pause behind its last click."""
        at = times_of(rows.batch, "at").us
        clicks, start, end = state.get("clicks"), state.get("start"), state.get("end")
        start[state.is_new] = np.iinfo(np.int64).max
        np.add.at(clicks, rows.window, 1)
        np.minimum.at(start, rows.window, at)
        np.maximum.at(end, rows.window, at)
        state.set("clicks", clicks)
        state.set("start", start)
        state.set("end", end)
        state.expire_at(ceiling_ms(end + self.pause_us))
        return None

    def expire(self, state: State, watermark_ms: int) -> Emitted:
        """The sessions that are over."""
        return pa.RecordBatch.from_arrays([state.column(name) for name in self.state], names=list(self.state))
