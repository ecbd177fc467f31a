"""Options and profiles that all tests share; fixtures live beside the tests that need them.

Invariant: nothing here starts a process or touches a network. `slow` tests run only with --long; `--peer` says which
server the client tests talk to.
"""

import gc
import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, settings

from tests.support.programs import PYTHON_PATH
from tests.support.virtual_time import seed_scheduler

# The short run tries the same examples each time; new ones are looked for by the long run.
settings.register_profile(
    "short", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, derandomize=True
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, stateful_step_count=100, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long, --docker and --peer."""
    parser.addoption("--long", action="store_true", help="also run the tests marked slow, and many more examples")
    parser.addoption("--docker", action="store_true", help="clusters run in containers, from the images of compose/")
    parser.addoption(
        "--peer",
        choices=("cairn", "kafka"),
        default="cairn",
        help="the server of tests/foreign_clients: ours, or a real Kafka, which every expectation must match",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples Hypothesis tries. Let SIGINT through if a shell that runs this in the background has it
    ignored: the programs that the tests start inherit that, and tests interrupt them. They find modules as a user's do.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTHONPATH"] = os.pathsep.join([PYTHON_PATH, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings.load_profile("long" if config.getoption("--long") else "short")


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the garbage collector need not look at them, again and again. It took a sixth
    of the time of tests that make many objects.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests whose event loop pytest runs have their tasks in the same order every time, as far as time is virtual."""
    seed_scheduler(0)


@pytest.fixture(autouse=True)
def signals_end_programs() -> Iterator[None]:
    """No test leaves SIGTERM ignored: programs that later tests start would inherit that, and could not be ended."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    behind = signal.getsignal(signal.SIGTERM)
    if behind is not before:
        signal.signal(signal.SIGTERM, before)
        pytest.fail(f"this test left SIGTERM with {behind!r}, not {before!r}")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Leave slow tests out, saying so, unless asked for."""
    if config.getoption("--long"):
        return
    left_out = pytest.mark.skip(reason="slow: --long runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(left_out)
