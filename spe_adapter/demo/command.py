"""`cairn demo`: see the package. Needs the extras `spark` and `demo`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from logstore.base.system import SystemClock
from spe_adapter.demo.progress import shown_progress
from spe_adapter.demo.report import show_table, write_page
from spe_adapter.demo.story import DemoPlan, Failed, tell_story

NOT_EXACT, INTERRUPTED = 1, 130


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `cairn demo`."""
    parser.add_argument("--records", type=int, default=800_000, help="purchases to append (default %(default)s)")
    parser.add_argument("--items", type=int, default=500, help="distinct items (default %(default)s)")
    parser.add_argument("--batch", type=int, default=50_000, help="records per micro-batch (default %(default)s)")
    parser.add_argument("--kills", type=int, default=4, help="number of kills (default %(default)s)")
    parser.add_argument("--seed", type=int, default=20_26, help="seed of purchases and kills (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port of the sidecar (default: any free port)")
    parser.add_argument("--heap", default="1g", help="heap of Spark's JVM (default %(default)s)")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="file of the HTML report")


def main(options: Namespace) -> int:
    """Run the demonstration; the exit status is 0 only if the result is exact."""
    plan = DemoPlan(
        options.records, options.items, options.batch, options.kills, options.seed, options.port, options.heap
    )
    console = Console()
    console.print(f"{plan.records:,} purchases, {plan.items} items, {plan.kills} kills, seed {plan.seed}")
    try:
        with shown_progress(console, "starting a sidecar", SystemClock().monotonic_s) as tell:
            outcome = tell_story(plan, tell)
    except Failed as failure:
        console.print(f"[red]{failure}", soft_wrap=True)
        return NOT_EXACT
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped")
        return INTERRUPTED
    show_table(outcome, console)
    write_page(outcome, options.report)
    console.print(f"report, with a picture of the throughput: {options.report}", soft_wrap=True)
    return 0 if outcome.is_exact else NOT_EXACT
