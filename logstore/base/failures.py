"""Failures of a program's start, as single lines for people.

Invariant: a failure is one line that names the file or the setting.
"""

import errno


def cannot_listen(where: str, error: OSError) -> OSError:
    """The same error with the address in its message, and what to do if another process has the address."""
    remedy = "; stop the process that uses it (ss -ltnp shows it), or choose another port"
    more = remedy if error.errno == errno.EADDRINUSE else ""
    return OSError(f"cannot listen on {where}: {error.strerror or error}{more}")


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors of a group and of the groups within it, in order."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def sentence(failure: BaseException) -> str:
    """The line for a failure; an error of the operating system is named with its file."""
    if isinstance(failure, OSError) and failure.filename is not None:
        return f"{failure.filename}: {failure.strerror}"
    return str(failure)
