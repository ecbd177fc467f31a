"""`python -m tests.support.hdfs`: brings up a real HDFS in racks on this machine, and takes it away at Ctrl-C.

Invariants:
* The ready line is printed once every DataNode is registered; until then nothing is on standard output.
* SIGINT and SIGTERM end it in order, with exit status 0; whatever else ends it, no process and no file is left.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.hdfs.errors import HdfsError
from scheduler.hdfs.jars import HADOOP_VERSION, RELEASES, hadoop_release
from scheduler.topology.description import topology_toml
from tests.support.hdfs.cluster import ClusterOptions, HdfsCluster, loopback_nodes, network
from tests.support.hdfs.runtime import hadoop

MAX_DATANODES = 200
MB_PER_DATANODE = 140


PROGRAM = "python -m tests.support.hdfs"


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="A real HDFS in racks on this machine.")
    parser.add_argument("--datanodes", type=int, default=4, metavar="N", help="how many DataNodes (default: 4)")
    parser.add_argument("--racks", type=int, default=2, metavar="N", help="racks to spread them over (default: 2)")
    parser.add_argument("--listen", metavar="ADDRESS", help="the NameNode's address (default: a loopback address)")
    parser.add_argument("--directory", type=Path, help="where data and logs lie meanwhile (default: temporary files)")
    parser.add_argument("--topology", type=Path, metavar="FILE", help="write the network for `cairn coordinate` there")
    parser.add_argument("--uplink", type=int, default=4, help="chunks that a rack's connection carries (default: 4)")
    parser.add_argument("--cache", type=Path, help="where Hadoop's jars are kept (default: ~/.cache/cairn)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of hdfs-site.xml; may be repeated"
    )
    parser.add_argument(
        "--hadoop",
        default=HADOOP_VERSION,
        metavar="VERSION",
        help=f"{', '.join(RELEASES)}, or a release of one of them (default: {HADOOP_VERSION})",
    )
    parser.add_argument("--json", action="store_true", help="print what is ready as one JSON object")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run until a signal ends it. Returns the exit status: 0, 1 if HDFS did not come up, 2 for a bad option."""
    arguments = options().parse_args(words)
    problem = _problem(arguments)
    if problem:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    settings = dict(entry.split("=", 1) for entry in arguments.set)
    nodes = loopback_nodes(arguments.datanodes, arguments.racks)
    cluster_options = ClusterOptions(namenode_address=arguments.listen, settings=settings)
    try:
        print("preparing (the first time, Maven fetches 68 MB)", file=sys.stderr, flush=True)
        runtime = hadoop(arguments.cache, hadoop_release(arguments.hadoop))
        with HdfsCluster(arguments.directory, nodes, cluster_options, runtime) as hdfs:
            if arguments.topology is not None:
                comment = f"The DataNodes of a `{PROGRAM}`."
                arguments.topology.write_text(topology_toml(network(nodes, arguments.uplink), comment=comment))
            _say_ready(hdfs, as_json=arguments.json)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0
    except (HdfsError, OSError) as error:  # OSError: --directory, --topology or --cache cannot be written
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


def _say_ready(hdfs: HdfsCluster, *, as_json: bool) -> None:
    if as_json:
        nodes = [{"name": node.name, "address": node.address, "rack": node.rack} for node in hdfs.nodes]
        ready = {"webhdfs": hdfs.webhdfs_url, "plans": hdfs.plan_url, "token": hdfs.plan_token, "datanodes": nodes}
        print(json.dumps(ready | {"directory": str(hdfs.directory)}), flush=True)
        return
    racks = len({node.rack for node in hdfs.nodes})
    print(
        f"ready after {hdfs.start_seconds:.1f} s: WebHDFS {hdfs.webhdfs_url}, plans {hdfs.plan_url} "
        f"(token in {hdfs.directory / 'plan-token'}), {len(hdfs.nodes)} DataNodes in {racks} racks; Ctrl-C ends it",
        flush=True,
    )
    for node in hdfs.nodes:
        print(f"  {node.name:<8} {node.address:<16} {node.rack}", flush=True)


def _problem(arguments: argparse.Namespace) -> str | None:
    if not 1 <= arguments.datanodes <= MAX_DATANODES:
        return f"--datanodes {arguments.datanodes}: must be from 1 to {MAX_DATANODES} ({MB_PER_DATANODE} MB each)"
    if not 1 <= arguments.racks <= arguments.datanodes:
        return f"--racks {arguments.racks}: must be from 1 to the number of DataNodes, {arguments.datanodes}"
    if arguments.uplink < 1:
        return f"--uplink {arguments.uplink}: must be 1 or more"
    try:
        hadoop_release(arguments.hadoop)
    except HdfsError as error:
        return f"--hadoop: {error}"
    bad = next((entry for entry in arguments.set if "=" not in entry), None)
    return f"--set {bad}: must be KEY=VALUE, such as dfs.replication=2" if bad else None


def _interrupt(_number: int, _frame: object) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # cleaning up is not interrupted
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
