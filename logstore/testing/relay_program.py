"""The program of a relay; see logstore.testing.relay, which this package loads before a program could start there."""

import json
import sys

import trio

from logstore.testing.relay import Relay, RelayRoute


def main() -> None:
    """Relay between the routes of the first argument (JSON) until standard input ends."""
    trio.run(Relay().serve, [RelayRoute(**fields) for fields in json.loads(sys.argv[1])])


if __name__ == "__main__":
    main()
