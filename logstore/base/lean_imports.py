"""Imports packages without the modules that they only name: a sidecar starts sooner, and in less memory.

* kio uses Hypothesis where it is installed, for strategies that no command needs.
* kio names a class of asyncio in the type of a parameter.
* crc32c asks importlib.metadata for its own version, which brings the reader of mail headers with it.

Invariant: only while such a package is imported does a stand-in take the place of the module; whoever wants the module
itself, later or before, has it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final, cast

UNKNOWN_VERSION: Final = "unknown"


def leave_test_tools_out() -> None:
    """Keep kio from importing Hypothesis: a third of a second and 20 MB."""
    sys.modules.setdefault("hypothesis", cast(ModuleType, None))


def import_lean() -> None:
    """Import kio's writers without asyncio, and crc32c without importlib.metadata: 40 ms and 5 MB."""
    with _stand_in("asyncio", StreamWriter=object):
        import_module("kio.serial.writers")
    with _stand_in("importlib.metadata", version=lambda _: UNKNOWN_VERSION):
        import_module("crc32c")


@contextmanager
def _stand_in(name: str, **attributes: object) -> Iterator[None]:
    """A module with these attributes only, in the place of one that is not imported yet."""
    module = ModuleType(name)
    module.__dict__.update(attributes)
    with _replaced(name, module):
        yield


@contextmanager
def _replaced(name: str, module: ModuleType) -> Iterator[None]:
    """Another module in the place of one that is not imported yet."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
