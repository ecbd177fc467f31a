"""`cairn hdfs-policy`: builds the placement policy for a Hadoop and prints where its jar is.

Invariant: standard output gets the path of the jar and nothing else.
"""

import argparse
import sys
from pathlib import Path

from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.jars import HADOOP_VERSION, RELEASES, default_cache, hadoop_release, policy_jar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cairn hdfs-policy`."""
    parser.add_argument(
        "--hadoop",
        default=HADOOP_VERSION,
        metavar="VERSION",
        help=f"{', '.join(RELEASES)}, or a release of one of them (default: {HADOOP_VERSION})",
    )
    parser.add_argument("--cache", type=Path, help="directory where the jar is kept (default: ~/.cache/cairn)")


def main(arguments: argparse.Namespace) -> int:
    """Build the jar unless the cache has it. Returns the exit status: 0, 1 without a jar, 2 for a bad option."""
    try:
        version = hadoop_release(arguments.hadoop)
    except HdfsError as error:
        print(f"cairn hdfs-policy: --hadoop: {error}", file=sys.stderr)
        return 2
    try:
        print(policy_jar(arguments.cache or default_cache(), version))
    except (HdfsError, OSError) as error:
        print(f"cairn hdfs-policy: {error}", file=sys.stderr)
        return 1
    return 0
