"""A runner as a program: `python -m spe_adapter.continuous MODULE:FRAGMENT --servers HOST:PORT --partition 0`.

It writes a line of JSON to standard output for the recovery and, at most once in `--report-s` seconds, for a committed
epoch. SIGTERM and SIGINT end it after the open epoch; SIGKILL ends it at once, and costs time only.

Invariant: arguments and signals are handled here alone.
"""

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from logstore.client.commands import COMMAND_CONFIG_HELP, followed_security_of
from logstore.client.told_network import ToldNetwork
from logstore.errors import CairnError
from spe_adapter.cec.policy import DEFAULT_Q, DEFAULT_U, PER_WINDOW, Targets
from spe_adapter.checkpoint.policy import PolicySettings
from spe_adapter.checkpoint.settings import ANY_HOST, CheckpointSettings
from spe_adapter.continuous.calibration import cost_benefit
from spe_adapter.continuous.errors import FragmentRefused
from spe_adapter.continuous.fragment import EpochLimits, Fragment
from spe_adapter.continuous.loop import Event, FragmentProgress
from spe_adapter.continuous.runner import Options, Runner
from spe_adapter.host import ThisHost


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; the exit code is 0, or 1 with the error on standard error."""
    given = _parse(arguments)
    try:
        fragment = _load(given.fragment)
        options = Options(
            given.servers, partial(Targets, given.q, given.u, PER_WINDOW), EpochLimits(epoch_ms=given.epoch_ms)
        )
        options = replace(options, checkpoints=_checkpoints(given), security=followed_security_of(given))
        if given.mtbf_s is not None:
            policy = cost_benefit(fragment, given.partition, options, given.mtbf_s)
            options = replace(options, policy=policy)
        host = ThisHost(ToldNetwork(options.limit_s))
        runner = Runner(fragment, given.partition, options, observe=_reporter(given.report_s), host=host)

        def stop(_number: int, _frame: FrameType | None) -> None:
            runner.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        runner.run()
    except CairnError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spe_adapter.continuous", description=__doc__)
    parser.add_argument("fragment", metavar="MODULE:FRAGMENT", help="the Fragment, in an importable module")
    parser.add_argument("--servers", required=True, help="HOST:PORT of the sidecar, or several separated by commas")
    parser.add_argument("--command-config", type=Path, metavar="FILE", help=COMMAND_CONFIG_HELP)
    parser.add_argument("--partition", type=int, default=0, help="partition that this process runs")
    parser.add_argument("--q", type=int, default=DEFAULT_Q, help="Q: results and footprints since the oldest footprint")
    parser.add_argument("--u", type=int, default=DEFAULT_U, help="U: input records a recovery may have to replay")
    parser.add_argument(
        "--mtbf-s",
        type=float,
        help="mean seconds between failures: check by cost and benefit, measured at the start, not by Q and U",
    )
    parser.add_argument(
        "--epoch-ms",
        type=int,
        default=EpochLimits().epoch_ms,
        help="milliseconds from an epoch's first record to its commit",
    )
    parser.add_argument(
        "--checkpoints",
        metavar="URL",
        help="also write checkpoints of the state: file:///DIRECTORY, hdfs://HOST:PORT/DIRECTORY",
    )
    settings = parser.add_argument_group("checkpoints", "described in docs/checkpoints.md")
    settings.add_argument("--checkpoint-every-s", type=float, help="maximum seconds between checkpoints (600)")
    settings.add_argument("--checkpoint-min-every-s", type=float, help="minimum seconds between checkpoints (10)")
    settings.add_argument("--checkpoint-user", help="HDFS's user (cairn)")
    settings.add_argument("--checkpoint-plans", metavar="URL", help="the NameNode's plan table, http://HOST:PORT")
    settings.add_argument("--checkpoint-plans-token", metavar="FILE", help="file with its token")
    settings.add_argument("--checkpoint-coordinator", metavar="URL[,URL]", help="Peace's coordinator, http://HOST:PORT")
    settings.add_argument("--checkpoint-coordinator-token", metavar="FILE", help="file with its token")
    settings.add_argument("--checkpoint-coordinator-ca", metavar="FILE", help="PEM file with its CAs")
    settings.add_argument(
        "--checkpoint-coordinator-certificate", metavar="FILE", help="PEM file with client certificate and key"
    )
    settings.add_argument("--checkpoint-host", help="this host's name in the topology (its own hostname)")
    settings.add_argument("--checkpoint-replicas", type=int, help="replicas of each chunk (3)")
    parser.add_argument("--report-s", type=float, default=1.0, help="minimum seconds between two progress lines")
    return parser.parse_args(arguments)


def _checkpoints(given: argparse.Namespace) -> CheckpointSettings | None:
    """The settings of checkpoints; None without a place. Raises FragmentRefused and CheckpointUrlRefused."""
    fields = {
        "user": given.checkpoint_user,
        "plans": given.checkpoint_plans,
        "plans_token_file": given.checkpoint_plans_token,
        "coordinator": given.checkpoint_coordinator,
        "coordinator_token_file": given.checkpoint_coordinator_token,
        "coordinator_ca_file": given.checkpoint_coordinator_ca,
        "coordinator_certificate_file": given.checkpoint_coordinator_certificate,
        "host": given.checkpoint_host,
        "replicas": given.checkpoint_replicas,
    }
    times = {"every_s": given.checkpoint_every_s, "min_every_s": given.checkpoint_min_every_s}
    fields = {name: value for name, value in fields.items() if value is not None}
    times = {name: value for name, value in times.items() if value is not None}
    if given.checkpoints is None:
        if fields or times:
            raise FragmentRefused("checkpoint options without a place for checkpoints; give --checkpoints URL")
        return None
    if "every_s" in times:
        times.setdefault("min_every_s", min(PolicySettings().min_every_s, times["every_s"]))
    return CheckpointSettings(given.checkpoints, policy=PolicySettings(**times), **{"host": ANY_HOST, **fields})


def _load(place: str) -> Fragment:
    """The fragment that `module:name` names. Raises FragmentRefused."""
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FragmentRefused(f"{place!r} names no fragment ({error}); write module:name") from error
    if not isinstance(found, Fragment):
        raise FragmentRefused(f"{place!r} is a {type(found).__name__}, not a Fragment")
    return found


def _reporter(period_s: float) -> Callable[[Event], None]:
    """A function that prints events as JSON, at most one committed epoch in `period_s` seconds."""
    host = ThisHost()
    next_s = 0.0

    def report(event: Event) -> None:
        nonlocal next_s
        if isinstance(event, FragmentProgress):
            now_s = host.network.monotonic_s()
            if now_s < next_s:
                return
            next_s = now_s + period_s
            checkpoint = {"checkpoint_epoch": event.checkpoint.epoch, "checkpoint_error": event.checkpoint.error}
            fields = {"event": "epoch", **event.figures._asdict(), "lag": event.lag, **checkpoint}
        else:
            fields = {"event": "recovered", **event._asdict()}
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()

    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
