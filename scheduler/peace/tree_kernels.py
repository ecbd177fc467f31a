"""The tree planner's inner loops, compiled: nearest free hosts of a rack tree, kept up to date while chains are taken.

Free hosts are counted per rack, and each switch keeps the distance to the nearest free host below each of its children.
A change of one host or link is propagated up the tree only as far as it changes a distance. So a pick costs a walk up
and down the tree, and no racks beside that path are examined.

Invariants:
* FREE, LIVE, VALUE, BEST and TIGHT follow from capacities, HELD and BLOCKED; no pick depends on earlier calls in any
  other way.
* All units of a chunk are taken, or none. Between calls no host is held and no rack is blocked.
* Uniform picks are exact up to the generator's 32 bits; one seed gives one sequence.
* `scheduler.peace.tree` checks all arguments; here an index out of range is undefined behaviour.
"""

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int32]
"""Chains: one row of hosts each, filled with -1 after the last host."""

FAR: Final = 1 << 60
"""Infinite distance: larger than every sum of costs."""
WRITE, READ, COPY = 0, 1, 2
ANYWHERE, ON_WRITER, NOWHERE = 0, 1, 2
"""The first replica's rules about the writer itself: none; on the writer; a contradiction."""
TRIES = 8
"""Random probes before a pick counts the free hosts: both are exact, and probes are faster while many are free."""
BLOCK = 64
"""Hosts compared at a time: enough for wide registers, few enough to find the changed host quickly."""


# Rows of `tree`: the state of each switch (64-bit numbers).
PARENT, DEPTH = 0, 1  # of the root: -1, 0
UP, DOWN = 2, 3  # the links to and from the parent, -1 for the root
UP_COST, DOWN_COST = 4, 5
KIDS, KIDS_FROM, KIDS_TO = 6, 7, 8  # the children of s are [KIDS, KIDS_FROM[s] … KIDS_TO[s]]
MEMBERS_FROM, MEMBERS_TO = 9, 10  # its hosts, likewise, in a row of `pool`
UP_LEFT, DOWN_LEFT = 11, 12  # units left on the links
LIVE = 13  # members that are free
BLOCKED = 14  # the number of reasons not to end here
VALUE = 15  # the distance from the parent to the nearest free host at or below this switch
BEST, TIGHT = 16, 17  # the smallest VALUE of the children, and how many have it
LEVELS = 18  # six rows of scratch for `nearest`
SEED = 24  # the generator's state, in its first place
TREE_ROWS = 25
# Rows of `pool`: the state of each host (32-bit numbers).
SEND, RECEIVE, DISK = 0, 1, 2  # units left
FREE = 3  # whether it can take a chunk and is not held
HELD = 4  # the number of reasons not to pick it
RACK = 5
MEMBERS = 6
POOL_ROWS = 7


def compiled(function: Any) -> Any:
    """Compile a function. The code is cached on disk if there is a writable directory (a read-only container has none).

    The kernels allocate nothing, so reference counting is off: to count each array on each call took half the time.
    """
    try:
        return numba.njit(cache=True, _nrt=False)(function)
    except RuntimeError:
        return numba.njit(_nrt=False)(function)


_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_A: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B: Final = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@compiled
def draw(tree: Numbers, count: int) -> np.int64:
    """A random number below `count`, which is less than 2³² (splitmix64; the upper half scaled)."""
    word = np.uint64(tree[SEED, 0]) + _STEP
    tree[SEED, 0] = np.int64(word)
    word = (word ^ (word >> _30)) * _MIX_A
    word = (word ^ (word >> _27)) * _MIX_B
    word ^= word >> _31
    return np.int64(((word >> _32) * np.uint64(count)) >> _32)


# ---- free hosts and distances


@compiled
def climb(tree: Numbers, switch: int) -> None:
    """Correct the distances of `switch`, whose hosts or whose link from the parent changed, and of its ancestors."""
    while tree[PARENT, switch] >= 0:
        parent = tree[PARENT, switch]
        old, new = tree[VALUE, switch], FAR
        if tree[DOWN_LEFT, switch] > 0:
            if tree[LIVE, switch] > 0 and tree[BLOCKED, switch] == 0:
                new = tree[DOWN_COST, switch]
            elif tree[BEST, switch] < FAR:
                new = tree[BEST, switch] + tree[DOWN_COST, switch]
        if new == old:
            return
        tree[VALUE, switch] = new
        before = tree[BEST, parent]
        if new < before:
            tree[BEST, parent], tree[TIGHT, parent] = new, 1
        elif new == before:
            tree[TIGHT, parent] += 1
        elif old == before:
            tree[TIGHT, parent] -= 1
            if tree[TIGHT, parent] == 0:
                tree[BEST, parent], tree[TIGHT, parent] = nearest_child(tree, parent, -1)
        if tree[BEST, parent] == before:
            return
        switch = parent


@compiled
def nearest_child(tree: Numbers, switch: int, but: int) -> tuple[int, int]:
    """The smallest VALUE of the children other than `but`, and how many children have it."""
    best, count = FAR, 0
    for at in range(tree[KIDS_FROM, switch], tree[KIDS_TO, switch]):
        value = tree[VALUE, tree[KIDS, at]]
        if tree[KIDS, at] != but and value < FAR:
            if value < best:
                best, count = value, 1
            elif value == best:
                count += 1
    return best, count


@compiled
def touch(tree: Numbers, pool: Counts, host: int) -> None:
    """Correct the counts after a host's capacity or its HELD changed."""
    free = pool[HELD, host] == 0 and pool[RECEIVE, host] > 0 and pool[DISK, host] > 0
    if free == (pool[FREE, host] == 1):
        return
    rack = pool[RACK, host]
    pool[FREE, host] = 1 if free else 0
    tree[LIVE, rack] += 1 if free else -1
    if tree[LIVE, rack] == (1 if free else 0):
        climb(tree, rack)


@compiled
def hold(tree: Numbers, pool: Counts, host: int, reasons: int) -> None:
    """Add a reason not to pick a host, or (-1) remove one."""
    pool[HELD, host] += reasons
    touch(tree, pool, host)


@compiled
def block(tree: Numbers, rack: int, reasons: int) -> None:
    """Add a reason not to end in a rack, or (-1) remove one."""
    tree[BLOCKED, rack] += reasons
    climb(tree, rack)


@compiled
def refresh(tree: Numbers, pool: Counts, send: Counts, receive: Counts, disk: Counts, link: Counts) -> None:
    """Compare the tables with the capacities, which may have changed since the last call, and correct them.

    Three numbers per host, compared without a branch per host: 10,000 hosts take a few microseconds.
    """
    send_known, receive_known, disk_known = pool[SEND], pool[RECEIVE], pool[DISK]
    for block_number in range((len(send) + BLOCK - 1) // BLOCK):
        # Unsigned: with signed numbers each index is tested for being negative, and the loop is not vectorized.
        begin, end = np.uint64(block_number * BLOCK), np.uint64(min(block_number * BLOCK + BLOCK, len(send)))
        differs = np.int32(0)
        for host in range(begin, end):
            differs |= send_known[host] ^ send[host]
            differs |= receive_known[host] ^ receive[host]
            differs |= disk_known[host] ^ disk[host]
        if differs:
            for host in range(int(begin), int(end)):
                pool[SEND, host], pool[RECEIVE, host], pool[DISK, host] = send[host], receive[host], disk[host]
                touch(tree, pool, host)
    for switch in range(tree.shape[1]):
        if tree[PARENT, switch] >= 0:
            tree[UP_LEFT, switch], tree[DOWN_LEFT, switch] = link[tree[UP, switch]], link[tree[DOWN, switch]]
            climb(tree, switch)


@compiled
def write_back(
    tree: Numbers,
    pool: Counts,
    rows: Rows,
    used: int,
    send: Counts,
    receive: Counts,
    disk: Counts,
    link: Counts,
) -> None:
    """Write the units that the first `used` chains took into the capacities."""
    for row in range(used):
        for place in range(rows.shape[1]):
            host = rows[row, place]
            if host >= 0:
                send[host], receive[host], disk[host] = pool[SEND, host], pool[RECEIVE, host], pool[DISK, host]
    for switch in range(tree.shape[1]):
        if tree[PARENT, switch] >= 0:
            link[tree[UP, switch]], link[tree[DOWN, switch]] = tree[UP_LEFT, switch], tree[DOWN_LEFT, switch]


# ---- the randomized shortest path


@compiled
def nearest(tree: Numbers, start: int) -> tuple[int, int]:
    """The distance from a switch to the nearest free host, and the number of levels at which it may lie.

    Level i is the start's i-th ancestor: its switch, the child on the path from the start, the cost up to this level,
    the smallest VALUE of its other children, how many have it, and the distance to the nearest host found there. Higher
    levels are left out when the path up alone costs more.
    """
    best, so_far, came, switch, level = FAR, 0, -1, start, 0
    while True:
        kid, count = tree[BEST, switch], tree[TIGHT, switch]
        if came >= 0 and kid < FAR and tree[VALUE, came] == kid:
            count -= 1
            if count == 0:
                kid, count = nearest_child(tree, switch, came)
        here = FAR if kid == FAR else so_far + kid
        if tree[LIVE, switch] > 0 and tree[BLOCKED, switch] == 0:
            here = so_far
        tree[LEVELS + 0, level], tree[LEVELS + 1, level], tree[LEVELS + 2, level] = switch, came, so_far
        tree[LEVELS + 3, level], tree[LEVELS + 4, level], tree[LEVELS + 5, level] = kid, count, here
        level += 1
        best = min(best, here)
        parent = tree[PARENT, switch]
        if parent < 0 or tree[UP_LEFT, switch] < 1:
            return best, level
        so_far += tree[UP_COST, switch]
        if so_far > best:
            return best, level
        came, switch = switch, parent


@compiled
def walk(tree: Numbers, pool: Counts, distance: int, levels: int) -> int:
    """A free host at this distance: at each switch a uniform pick among the next hops of all cheapest paths."""
    last = levels - 1
    while tree[LEVELS + 5, last] != distance:
        last -= 1
    for level in range(last + 1):
        switch, came, so_far = tree[LEVELS + 0, level], tree[LEVELS + 1, level], tree[LEVELS + 2, level]
        kid, count = tree[LEVELS + 3, level], tree[LEVELS + 4, level]
        own = tree[LIVE, switch] if so_far == distance and tree[BLOCKED, switch] == 0 else 0
        if kid == FAR or so_far + kid != distance:
            count = 0
        options = own + count + (1 if level < last else 0)
        choice = draw(tree, options) if options > 1 else 0
        if choice < own:
            return member(tree, pool, switch)
        if choice < own + count:
            return descend(tree, pool, child(tree, switch, kid, count, came))
    return -1


@compiled
def descend(tree: Numbers, pool: Counts, switch: int) -> int:
    """The same below a switch."""
    while True:
        own = tree[LIVE, switch] if tree[BLOCKED, switch] == 0 else 0
        count = tree[TIGHT, switch] if own == 0 or tree[BEST, switch] == 0 else 0
        choice = draw(tree, own + count)
        if choice < own:
            return member(tree, pool, switch)
        switch = child(tree, switch, tree[BEST, switch], count, -1)


@compiled
def member(tree: Numbers, pool: Counts, rack: int) -> int:
    """A free host of the rack, picked uniformly."""
    begin, end = tree[MEMBERS_FROM, rack], tree[MEMBERS_TO, rack]
    for _ in range(TRIES):
        host = pool[MEMBERS, begin + draw(tree, end - begin)]
        if pool[FREE, host]:
            return host
    left = draw(tree, tree[LIVE, rack])
    for at in range(begin, end):
        if pool[FREE, pool[MEMBERS, at]]:
            if left == 0:
                return pool[MEMBERS, at]
            left -= 1
    return -1


@compiled
def child(tree: Numbers, switch: int, value: int, count: int, but: int) -> int:
    """One of the `count` children other than `but` with this VALUE, picked uniformly."""
    begin, end = tree[KIDS_FROM, switch], tree[KIDS_TO, switch]
    for _ in range(TRIES):
        kid = tree[KIDS, begin + draw(tree, end - begin)]
        if tree[VALUE, kid] == value and kid != but:
            return kid
    left = draw(tree, count)
    for at in range(begin, end):
        kid = tree[KIDS, at]
        if tree[VALUE, kid] == value and kid != but:
            if left == 0:
                return kid
            left -= 1
    return -1


@compiled
def way(tree: Numbers, source: int, target: int) -> int:
    """The cost from one switch to another; FAR if a link on the way has no capacity left."""
    cost = 0
    while source != target:
        if tree[DEPTH, source] >= tree[DEPTH, target]:
            if tree[UP_LEFT, source] < 1:
                return FAR
            cost += tree[UP_COST, source]
            source = tree[PARENT, source]
        else:
            if tree[DOWN_LEFT, target] < 1:
                return FAR
            cost += tree[DOWN_COST, target]
            target = tree[PARENT, target]
    return cost


@compiled
def use_way(tree: Numbers, source: int, target: int, units: int) -> None:
    """Take units of every link between two switches, or (negative) give them back."""
    while source != target:
        if tree[DEPTH, source] >= tree[DEPTH, target]:
            tree[UP_LEFT, source] -= units
            source = tree[PARENT, source]
        else:
            tree[DOWN_LEFT, target] -= units
            climb(tree, target)
            target = tree[PARENT, target]


# ---- a replica, a chunk, all requests


@compiled
def allowed_rack(pool: Counts, hosts: Counts, same: int, other: int) -> int:
    """The one rack that `same-rack` rules allow (bits of `same` are places in the chain); -1 if they exclude all."""
    rack = -1
    for place in range(len(hosts)):
        if (same >> place) & 1:
            here = pool[RACK, hosts[place]]
            if rack >= 0 and rack != here:
                return -1
            rack = here
    for place in range(len(hosts)):
        if (other >> place) & 1 and pool[RACK, hosts[place]] == rack:
            return -1
    return rack


@compiled
def block_others(tree: Numbers, pool: Counts, hosts: Counts, other: int, reasons: int) -> None:
    """Block the racks that `other-rack` rules exclude, or (-1) take that back."""
    for place in range(len(hosts)):
        if (other >> place) & 1:
            block(tree, pool[RACK, hosts[place]], reasons)


@compiled
def reach(
    tree: Numbers, pool: Counts, source: int, hosts: Counts, same: int, other: int, pick: bool
) -> tuple[int, int]:
    """The distance from `source` to the nearest candidate (FAR: none), and on request a pick among the nearest."""
    start, host = pool[RACK, source], -1
    if same:
        rack = allowed_rack(pool, hosts, same, other)
        if rack < 0 or tree[LIVE, rack] == 0:
            return FAR, -1
        cost = way(tree, start, rack)
        if pick and cost < FAR:
            host = member(tree, pool, rack)
        return cost, host
    block_others(tree, pool, hosts, other, 1)
    cost, levels = nearest(tree, start)
    if pick and cost < FAR:
        host = walk(tree, pool, cost, levels)
    block_others(tree, pool, hosts, other, -1)
    return cost, host


@compiled
def pass_on(tree: Numbers, pool: Counts, source: int, target: int, units: int) -> None:
    """Take a unit of every resource on the path of one replica, or (-1) give it back."""
    if source != target:
        pool[SEND, source] -= units
        pool[RECEIVE, target] -= units
        use_way(tree, pool[RACK, source], pool[RACK, target], units)
    pool[DISK, target] -= units


@compiled
def write(tree: Numbers, pool: Counts, writer: int, rules: Counts, hosts: Counts) -> bool:
    """A chain for one write. `rules[i]`: positions of replica i's `same-rack` and `other-rack` rules, the writer's."""
    hosts[0] = writer
    hold(tree, pool, writer, 1)
    done = 0
    for replica in range(len(rules)):
        source, target = hosts[replica], -1
        if rules[replica, 2] == ON_WRITER:
            if pool[HELD, writer] == 1 and pool[DISK, writer] > 0:
                target = writer
        elif rules[replica, 2] == ANYWHERE and pool[SEND, source] > 0:
            _, target = reach(tree, pool, source, hosts, rules[replica, 0], rules[replica, 1], True)
        if target < 0:
            break
        pass_on(tree, pool, source, target, 1)
        if target != writer:
            hold(tree, pool, target, 1)
        hosts[replica + 1] = target
        done += 1
    whole = done == len(rules)
    for place in range(done, 0, -1):
        if not whole:
            pass_on(tree, pool, hosts[place - 1], hosts[place], -1)
        if hosts[place] != writer:
            hold(tree, pool, hosts[place], -1)
    hold(tree, pool, writer, -1)
    return whole


@compiled
def read(tree: Numbers, pool: Counts, reader: int, sources: Counts, hosts: Counts) -> bool:
    """A source for one read: the reader itself, else one of the nearest sources."""
    best, count, picked = FAR, 0, -1
    for source in sources:
        if pool[HELD, source] > 0 or pool[DISK, source] < 1:
            continue
        cost = -1
        if source != reader:
            if pool[SEND, source] < 1 or pool[RECEIVE, reader] < 1:
                continue
            cost = way(tree, pool[RACK, source], pool[RACK, reader])
        if cost < best:
            best, count, picked = cost, 0, source
        if cost == best and cost < FAR:
            count += 1
            if count > 1 and draw(tree, count) == 0:
                picked = source
    if best == FAR:
        return False
    hosts[0], hosts[1] = picked, reader
    pool[DISK, picked] -= 1
    if picked != reader:
        pool[SEND, picked] -= 1
        pool[RECEIVE, reader] -= 1
        use_way(tree, pool[RACK, picked], pool[RACK, reader], 1)
    touch(tree, pool, picked)
    touch(tree, pool, reader)
    return True


@compiled
def copy(tree: Numbers, pool: Counts, sources: Counts, rules: Counts, hosts: Counts) -> bool:
    """A source and a new host for one copy; the source is one of those with the nearest candidates."""
    same, other = rules[0, 0], rules[0, 1]
    best, count, picked = FAR, 0, -1
    for source in sources:
        hold(tree, pool, source, 1)
    for source in sources:
        if pool[HELD, source] == 1 and pool[SEND, source] > 0 and pool[DISK, source] > 0 and rules[0, 2] == ANYWHERE:
            hosts[0] = source
            cost, _ = reach(tree, pool, source, hosts, same, other, False)
            if cost < best:
                best, count, picked = cost, 0, source
            if cost == best and cost < FAR:
                count += 1
                if count > 1 and draw(tree, count) == 0:
                    picked = source
    if best < FAR:
        hosts[0] = picked
        _, target = reach(tree, pool, picked, hosts, same, other, True)
        hosts[1] = target
        pool[DISK, picked] -= 1
        pass_on(tree, pool, picked, target, 1)
        touch(tree, pool, target)
    for source in sources:
        hold(tree, pool, source, -1)
    return best < FAR


@compiled
def chunk(tree: Numbers, pool: Counts, kind: int, writer: int, sources: Counts, rules: Counts, hosts: Counts) -> bool:
    """A chain for one chunk of any kind; on success it is in `hosts`, and its units are taken."""
    if kind == WRITE:
        return write(tree, pool, writer, rules, hosts)
    if kind == READ:
        return read(tree, pool, writer, sources, hosts)
    return copy(tree, pool, sources, rules, hosts)


@compiled
def hold_all(tree: Numbers, pool: Counts, hosts: Counts, reasons: int) -> None:
    """Hold these hosts, or (-1) release them."""
    for host in hosts:
        hold(tree, pool, host, reasons)


@compiled
def plan_all(
    tree: Numbers,
    pool: Counts,
    encoded: npt.NDArray[np.int64],
    rules: npt.NDArray[np.int32],
    sources: Counts,
    sources_at: Numbers,
    avoid: Counts,
    first: int,
    planned: Numbers,
    rows: Rows,
    send: Counts,
    receive: Counts,
    disk: Counts,
    link: Counts,
) -> tuple[int, int]:
    """Plan requests from number `first` on until the rows are full; returns the next request, and the rows used.

    `encoded[q]`: kind, writer, chunks, index of its rules, number of rules, begin and end of its `avoid`, position of
    its first chunk in `sources_at`. `planned[q]` is the number of its chunks that have a row; rows are in the
    requests' order.
    """
    refresh(tree, pool, send, receive, disk, link)
    rows[:] = -1
    used = 0
    for q in range(first, len(encoded)):
        kind, writer, wanted, which, replicas = (
            encoded[q, 0],
            encoded[q, 1],
            encoded[q, 2],
            encoded[q, 3],
            encoded[q, 4],
        )
        avoided = avoid[encoded[q, 5] : encoded[q, 6]]
        hold_all(tree, pool, avoided, 1)
        full = False
        while planned[q] < wanted:
            if used == len(rows):
                full = True
                break
            at = encoded[q, 7] + planned[q] if kind != WRITE else 0
            there = sources[sources_at[at] : sources_at[at + 1]]
            if not chunk(tree, pool, kind, writer, there, rules[which, :replicas], rows[used]):
                rows[used] = -1
                break
            used += 1
            planned[q] += 1
        hold_all(tree, pool, avoided, -1)
        if full:
            write_back(tree, pool, rows, used, send, receive, disk, link)
            return q, used
    write_back(tree, pool, rows, used, send, receive, disk, link)
    return len(encoded), used
