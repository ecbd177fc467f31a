"""The repaired planner's inner loops, compiled: the largest number of chunks, a plan with that number, and exchanges.

**The model** of a timestep in which every chunk goes from a writer x to a in the same rack, to b in another rack and,
with three replicas, to d in b's rack. Per rack, A chunks begin and B end. For host s let S be the number of chunks that
it can send, T the number that it can take (receive and disk), w the number that it wants to write, m = min(S, T), and c
the number of replicas that it forwards (a, and b if d follows). Then x ≤ min(w, S - c), d ≤ T - c and c ≤ m, so that a
rack can do (A, B) exactly if, with C = A + B,

    A ≤ X    C ≤ M    A + C ≤ X + F    B + C ≤ T    (X = Σ min(w, S), M = Σ m, F = Σ min(m, max(0, S - w)), T = Σ T)

and A, B fit its links. (F: the replicas that are forwarded without taking a slot from a writer.) With two replicas
C = A, and b is the end. The most chunks are the largest N with ΣA = ΣB = N and A + B ≤ N in each rack, so that every
chunk can end in another rack than it began. The cost of A in units of B never falls as A grows, so units of A go where
they cost least. The model ignores links between higher switches and that the hosts of a chain differ, so N is an upper
bound.

Invariants:
* Every chain is taken unit by unit from the residual capacity; a chain that does not fit is left out.
* `exchange` never ends with fewer chunks than it began with.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.peace.tree_kernels import (
    DEPTH,
    DISK,
    DOWN_LEFT,
    FAR,
    KIDS_FROM,
    KIDS_TO,
    MEMBERS,
    MEMBERS_FROM,
    MEMBERS_TO,
    PARENT,
    RACK,
    RECEIVE,
    SEND,
    UP_LEFT,
    WRITE,
    Counts,
    Numbers,
    Rows,
    compiled,
    draw,
    hold_all,
    pass_on,
    refresh,
    touch,
    way,
    write,
    write_back,
)

# Rows of `sums`, per switch: the sums above, the links, the shares of A and B, and the part of A without a writer yet.
X, M, F, T, UP_ROOM, DOWN_ROOM, A, B, LEFT = range(9)
SUM_ROWS: Final = 9
# Rows of `parts`, per host: wanted, to start, to pass on, to end.
WANT, START, PASS, END = range(4)
PART_ROWS: Final = 4
THREE: Final = 3
HALVES_LEFT: Final = slice(9, 11)
"""The rows of `lists` with the first and second halves that have no partner after `rebuild`."""


@compiled
def add_up(tree: Numbers, pool: Counts, parts: Counts, sums: Numbers) -> None:
    """Compute the sums of every rack. Only a rack without switches below it has its links for itself."""
    sums[:] = 0
    for host in range(pool.shape[1]):
        rack, send = pool[RACK, host], pool[SEND, host]
        take, want = min(pool[RECEIVE, host], pool[DISK, host]), parts[WANT, host]
        both = min(send, take)
        sums[X, rack] += min(want, send)
        sums[M, rack] += both
        sums[F, rack] += min(both, max(0, send - want))
        sums[T, rack] += take
    for switch in range(tree.shape[1]):
        leaf = tree[KIDS_FROM, switch] == tree[KIDS_TO, switch] and tree[PARENT, switch] >= 0
        sums[UP_ROOM, switch] = tree[UP_LEFT, switch] if leaf else FAR
        sums[DOWN_ROOM, switch] = tree[DOWN_LEFT, switch] if leaf else FAR


@compiled
def ends(sums: Numbers, rack: int, begin: int, most: int, replicas: int) -> int:
    """The number of chunks that can end in a rack where `begin` begin, of `most` in all; -1: so many cannot begin."""
    if begin > sums[X, rack] or begin > sums[UP_ROOM, rack]:
        return -1
    end = min(sums[DOWN_ROOM, rack], most - begin)
    slots = sums[X, rack] + sums[F, rack]
    if replicas == THREE:
        end = min(end, sums[M, rack] - begin, slots - 2 * begin, (sums[T, rack] - begin) // 2)
    else:
        end = min(end, sums[T, rack] - begin)
        if begin > sums[M, rack] or 2 * begin > slots:
            return -1
    return end if end >= 0 else -1


@compiled
def step(sums: Numbers, rack: int, most: int, replicas: int, patience: int) -> bool:
    """Let one more chunk begin in this rack, if that costs no more ends than `patience` allows: 0, 1 of 2, 1, any."""
    begin = sums[A, rack]
    now, then = ends(sums, rack, begin, most, replicas), ends(sums, rack, begin + 1, most, replicas)
    if then < 0:
        return False
    if now - then > 0 and patience == 0:
        return False
    if now - then > 0 and patience == 1:
        later = ends(sums, rack, begin + 2, most, replicas)
        if later < 0 or now - later > 1:
            return False
    if now - then > 1 and patience < THREE:
        return False
    sums[A, rack] = begin + 1
    return True


@compiled
def share(sums: Numbers, most: int, replicas: int, evenly: bool) -> bool:
    """Distribute `most` begins and ends over the racks; False if that is impossible. `evenly`: not rack after rack."""
    sums[A] = 0
    left = most
    for patience in range(4):
        moved = True
        while moved and left > 0:
            moved = False
            for rack in range(sums.shape[1]):
                while left > 0 and step(sums, rack, most, replicas, patience):
                    moved, left = True, left - 1
                    if evenly:
                        break
    if left > 0:
        return False
    total = 0
    for rack in range(sums.shape[1]):
        sums[B, rack] = max(0, ends(sums, rack, sums[A, rack], most, replicas))
        total += sums[B, rack]
    if total < most:
        return False
    over = total - most
    for rack in range(sums.shape[1]):  # each gives its part of the excess
        part = min(sums[B, rack], over * sums[B, rack] // max(total, 1))
        sums[B, rack] -= part
        left += part
    for rack in range(sums.shape[1]):
        part = min(sums[B, rack], over - left)
        sums[B, rack] -= part
        left += part
    return True


@compiled
def bound(
    tree: Numbers,
    pool: Counts,
    parts: Counts,
    sums: Numbers,
    replicas: int,
    send: Counts,
    receive: Counts,
    disk: Counts,
    link: Counts,
) -> int:
    """The largest number of chunks that the model allows, an upper bound for every plan; `sums` gets the shares."""
    refresh(tree, pool, send, receive, disk, link)
    add_up(tree, pool, parts, sums)
    low, high = 0, 0
    for rack in range(sums.shape[1]):
        high += min(sums[X, rack], sums[UP_ROOM, rack])
    while low < high:
        middle = (low + high + 1) // 2
        if share(sums, middle, replicas, False):
            low = middle
        else:
            high = middle - 1
    if not share(sums, low, replicas, True):
        share(sums, low, replicas, False)
    return low


@compiled
def begins(sums: Numbers, rack: int, replicas: int) -> int:
    """The number of chunks that can begin in a rack in which none ends, and end in the other racks."""
    elsewhere = 0
    for other in range(sums.shape[1]):
        if other != rack:
            elsewhere += max(0, ends(sums, other, 0, int(FAR), replicas))
    most = min(sums[X, rack], sums[UP_ROOM, rack], elsewhere)
    while most > 0 and ends(sums, rack, most, int(FAR), replicas) < 0:
        most -= 1
    return most


# ---- from numbers to chains


@compiled
def spread(
    tree: Numbers, pool: Counts, parts: Counts, rack: int, what: int, count: int, pairs: int, sparing: bool
) -> int:
    """Deal `count` units of PASS or END to a rack's hosts, one each in turn; returns the units without a host.

    `pairs`: no host gets more parts than there are pairs of parts, since the hosts of a pair differ. `sparing`: forward
    only replicas that take no slot from a writer.
    """
    begin, size = tree[MEMBERS_FROM, rack], tree[MEMBERS_TO, rack] - tree[MEMBERS_FROM, rack]
    moved = True
    first = draw(tree, size) if size > 0 else 0
    while moved and count > 0:
        moved = False
        for at in range(size):
            host = pool[MEMBERS, begin + (first + at) % size]
            take = min(pool[RECEIVE, host], pool[DISK, host])
            room = take - parts[PASS, host] - parts[END, host]
            room = min(room, pairs - parts[START, host] - parts[PASS, host] - parts[END, host])
            if what == PASS:
                slots = pool[SEND, host] - (parts[WANT, host] if sparing else parts[START, host])
                room = min(room, slots - parts[PASS, host])
            if count > 0 and room > 0:
                parts[what, host] += 1
                count -= 1
                moved = True
    return count


@compiled
def pairs_of(sums: Numbers, rack: int, replicas: int) -> int:
    """The number of pairs of hosts in a rack's chains: writer and first replica, second and third replica."""
    return sums[A, rack] + (sums[B, rack] if replicas == THREE else 0)


@compiled
def begin_all(pool: Counts, parts: Counts, sums: Numbers, writes: Numbers, replicas: int) -> None:
    """Deal the remaining A (LEFT) of each rack to its writers, first come first served. `writes`: writer, chunks."""
    for place in range(len(writes)):
        writer = writes[place, 0]
        rack = pool[RACK, writer]
        room = pool[SEND, writer] - parts[PASS, writer] - parts[START, writer]
        pairs = pairs_of(sums, rack, replicas) - parts[START, writer] - parts[PASS, writer] - parts[END, writer]
        begin = min(writes[place, 1], room, sums[LEFT, rack], pairs)
        if begin > 0:
            parts[START, writer] += begin
            sums[LEFT, rack] -= begin


@compiled
def can_pass(tree: Numbers, pool: Counts, parts: Counts, rack: int) -> int:
    """The number of replicas that a rack's hosts can forward beside the chunks that they start."""
    total = 0
    for at in range(tree[MEMBERS_FROM, rack], tree[MEMBERS_TO, rack]):
        host = pool[MEMBERS, at]
        total += min(pool[RECEIVE, host], pool[DISK, host], pool[SEND, host] - parts[START, host])
    return total


@compiled
def allot(tree: Numbers, pool: Counts, parts: Counts, sums: Numbers, writes: Numbers, replicas: int) -> None:
    """Deal each rack's A and B to its hosts, the earliest writers first.

    If these leave too few slots to forward replicas, because hosts differ, the forwarded replicas are dealt first.
    """
    parts[START:] = 0
    for rack in range(sums.shape[1]):
        sums[LEFT, rack] = sums[A, rack]
    begin_all(pool, parts, sums, writes, replicas)
    for rack in range(sums.shape[1]):
        if sums[A, rack] + sums[B, rack] == 0:
            continue
        count = pairs = pairs_of(sums, rack, replicas)
        if can_pass(tree, pool, parts, rack) < count:
            for at in range(tree[MEMBERS_FROM, rack], tree[MEMBERS_TO, rack]):
                parts[START, pool[MEMBERS, at]] = 0
            sums[LEFT, rack] = sums[A, rack]
            count = spread(tree, pool, parts, rack, PASS, count, pairs, True)
        spread(tree, pool, parts, rack, PASS, count, pairs, False)
        spread(tree, pool, parts, rack, END, sums[B, rack], pairs if replicas == THREE else int(FAR), False)
    begin_all(pool, parts, sums, writes, replicas)


@compiled
def tokens(tree: Numbers, pool: Counts, parts: Counts, rack: int, what: int, out: Counts, count: int) -> int:
    """Append a rack's hosts to the first `count` of `out`, each as often as it has a part; returns the new count."""
    for at in range(tree[MEMBERS_FROM, rack], tree[MEMBERS_TO, rack]):
        host = pool[MEMBERS, at]
        for _ in range(parts[what, host]):
            out[count] = host
            count += 1
    return count


@compiled
def shuffle(tree: Numbers, values: Counts, count: int) -> None:
    """Shuffle the first `count` values."""
    for last in range(count - 1, 0, -1):
        other = draw(tree, last + 1)
        values[last], values[other] = values[other], values[last]


@compiled
def apart(left: Counts, right: Counts, lefts: int, rights: int, kind: Counts) -> None:
    """Permute `right` so that elements at equal positions differ in `kind`, as far as swaps of two can do that."""
    other = 0
    for place in range(min(lefts, rights)):
        here = kind[left[place]]
        if here != kind[right[place]]:
            continue
        for _ in range(rights):
            other = other + 1 if other + 1 < rights else 0  # go on after the last one found
            if kind[right[other]] != here and (other >= lefts or kind[left[other]] != here):
                right[place], right[other] = right[other], right[place]
                break


@compiled
def halves(tree: Numbers, pool: Counts, parts: Counts, replicas: int, lists: Rows, hosts: Counts) -> tuple[int, int]:
    """Pair the parts within each rack: rows 0 and 1 of `lists` get x and a, rows 2 and 3 get b and d (or -1)."""
    begins, finals = 0, 0
    lone, passing = lists[4], lists[5]
    for rack in range(tree.shape[1]):
        starts = tokens(tree, pool, parts, rack, START, lone, 0)
        count = starts
        if replicas == THREE:
            count = tokens(tree, pool, parts, rack, END, lone, starts)
        passes = tokens(tree, pool, parts, rack, PASS, passing, 0)
        shuffle(tree, passing, passes)
        apart(lone, passing, count, passes, hosts)
        for place in range(min(count, passes)):
            if lone[place] == passing[place]:
                continue
            if place < starts:
                lists[0, begins], lists[1, begins] = lone[place], passing[place]
                begins += 1
            else:
                lists[2, finals], lists[3, finals] = passing[place], lone[place]
                finals += 1
        if replicas != THREE:
            more = tokens(tree, pool, parts, rack, END, lists[2], finals)
            lists[3, finals:more] = -1
            finals = more
    return begins, finals


@compiled
def fits(tree: Numbers, pool: Counts, row: Counts) -> bool:
    """Whether there is capacity for a chain (no host occurs twice in it)."""
    for place in range(len(row) - 1):
        source, target = row[place], row[place + 1]
        if pool[SEND, source] < 1 or pool[RECEIVE, target] < 1 or pool[DISK, target] < 1:
            return False
        if way(tree, pool[RACK, source], pool[RACK, target]) == FAR:
            return False
    return True


@compiled
def take(tree: Numbers, pool: Counts, row: Counts, units: int) -> None:
    """Take the units of a chain, or (-1) give them back."""
    for place in range(len(row) - 1):
        pass_on(tree, pool, row[place], row[place + 1], units)
    for host in row:
        touch(tree, pool, host)


@compiled
def meet(tree: Numbers, pool: Counts, lists: Rows, mine: Counts, theirs: Counts, sizes: Numbers, rows: Rows) -> None:
    """Join halves that meet at a switch to chains; halves without a partner move to the front of their lists."""
    begins, finals, used = sizes[0], sizes[1], sizes[2]
    shuffle(tree, mine, begins)
    shuffle(tree, theirs, finals)
    racks, count = lists[6], min(begins, finals)
    for place in range(begins):
        racks[2 * mine[place]] = pool[RACK, lists[0, mine[place]]]
        mine[place] *= 2
    for place in range(finals):
        racks[2 * theirs[place] + 1] = pool[RACK, lists[2, theirs[place]]]
        theirs[place] = 2 * theirs[place] + 1
    apart(mine, theirs, begins, finals, racks)
    kept_mine, kept_theirs = 0, 0
    for place in range(max(begins, finals)):
        joined = False
        if place < count and racks[mine[place]] != racks[theirs[place]]:
            row = rows[used]
            first, second = mine[place] // 2, theirs[place] // 2
            row[0], row[1], row[2] = lists[0, first], lists[1, first], lists[2, second]
            if lists[3, second] >= 0:
                row[3] = lists[3, second]
            joined = fits(tree, pool, row)
            if joined:
                take(tree, pool, row, 1)
                used += 1
        if not joined and place < begins:
            mine[kept_mine] = mine[place] // 2
            kept_mine += 1
        if not joined and place < finals:
            theirs[kept_theirs] = theirs[place] // 2
            kept_theirs += 1
    sizes[0], sizes[1], sizes[2] = kept_mine, kept_theirs, used


@compiled
def rebuild(
    tree: Numbers,
    pool: Counts,
    parts: Counts,
    sums: Numbers,
    writes: Numbers,
    replicas: int,
    lists: Rows,
    heads: Rows,
    hosts: Counts,
    sizes: Numbers,
    rows: Rows,
) -> int:
    """Make the chains for the numbers in `sums`; returns the rows used. Low switches join first: paths are short."""
    allot(tree, pool, parts, sums, writes, replicas)
    begins, finals = halves(tree, pool, parts, replicas, lists, hosts)
    heads[:] = -1  # for each switch, a list of its first halves and a list of its second halves
    after_first, after_second, mine, theirs = lists[7], lists[8], lists[9], lists[10]
    for place in range(begins):
        rack = pool[RACK, lists[0, place]]
        after_first[place], heads[0, rack] = heads[0, rack], place
    for place in range(finals):
        rack = pool[RACK, lists[2, place]]
        after_second[place], heads[1, rack] = heads[1, rack], place
    sizes[2], deepest = 0, 0
    for switch in range(tree.shape[1]):
        deepest = max(deepest, tree[DEPTH, switch])
    for depth in range(deepest, -1, -1):
        for switch in range(tree.shape[1]):
            if tree[DEPTH, switch] != depth:
                continue
            sizes[0] = unlink(heads[0], after_first, switch, mine)
            sizes[1] = unlink(heads[1], after_second, switch, theirs)
            if tree[KIDS_FROM, switch] < tree[KIDS_TO, switch]:
                meet(tree, pool, lists, mine, theirs, sizes, rows)
            parent = tree[PARENT, switch]
            if parent >= 0:
                link_up(heads[0], after_first, parent, mine, sizes[0])
                link_up(heads[1], after_second, parent, theirs, sizes[1])
    return int(sizes[2])


@compiled
def unlink(heads: Counts, after: Counts, switch: int, out: Counts) -> int:
    """Move a switch's list into an array."""
    count, place = 0, heads[switch]
    while place >= 0:
        out[count] = place
        count += 1
        place = after[place]
    heads[switch] = -1
    return count


@compiled
def link_up(heads: Counts, after: Counts, switch: int, values: Counts, count: int) -> None:
    """Add an array to a switch's list."""
    for place in range(count):
        after[values[place]], heads[switch] = heads[switch], values[place]


# ---- the requests of the chains, and exchanges


@compiled
def assign(
    encoded: Numbers, chosen: Numbers, rows: Rows, used: int, heads: Counts, after: Counts, owner: Numbers
) -> None:
    """Give each writer's chains to its `chosen` requests, first come first served."""
    heads[:] = -1
    for row in range(used - 1, -1, -1):
        after[row], heads[rows[row, 0]] = heads[rows[row, 0]], row
    for q in chosen:
        writer = encoded[q, 1]
        for _ in range(encoded[q, 2]):
            row = heads[writer]
            if row < 0:
                break
            owner[row] = q
            heads[writer] = after[row]


@compiled
def attempt(
    tree: Numbers,
    pool: Counts,
    fields: Numbers,
    rules: npt.NDArray[np.int32],
    avoid: Counts,
    hosts: Counts,
) -> bool:
    """A chain for one chunk of a write, as by the tree planner."""
    avoided = avoid[fields[5] : fields[6]]
    hold_all(tree, pool, avoided, 1)
    done = write(tree, pool, fields[1], rules[fields[3], : fields[4]], hosts)
    hold_all(tree, pool, avoided, -1)
    return done


@compiled
def write_all(tree: Numbers, pool: Counts, send: Counts, receive: Counts, disk: Counts, link: Counts) -> None:
    """Write all tables into the capacities."""
    for host in range(len(send)):
        send[host], receive[host], disk[host] = pool[SEND, host], pool[RECEIVE, host], pool[DISK, host]
    write_back(tree, pool, pool[:0], 0, send, receive, disk, link)


@compiled
def give_back(
    tree: Numbers,
    pool: Counts,
    rows: Rows,
    send: Counts,
    receive: Counts,
    disk: Counts,
    link: Counts,
) -> None:
    """Give back the units of these chains of writes, which have the same length."""
    refresh(tree, pool, send, receive, disk, link)
    for row in range(len(rows)):
        take(tree, pool, rows[row], -1)
    write_all(tree, pool, send, receive, disk, link)


@compiled
def keep(row: Counts, copy: Counts) -> None:
    """Copy a row; the assignment of a slice would allocate memory."""
    for place in range(len(row)):
        copy[place] = row[place]


@compiled
def pick_waiting(tree: Numbers, encoded: Numbers, planned: Numbers) -> int:
    """A write with waiting chunks, or -1."""
    start = draw(tree, len(encoded))
    for turn in range(len(encoded)):
        q = (start + turn) % len(encoded)
        if encoded[q, 0] == WRITE and planned[q] < encoded[q, 2]:
            return q
    return -1


@compiled
def exchange(
    tree: Numbers,
    pool: Counts,
    encoded: Numbers,
    rules: npt.NDArray[np.int32],
    avoid: Counts,
    planned: Numbers,
    rows: Rows,
    owner: Numbers,
    used: int,
    rounds: int,
    enough: int,
    spare: Counts,
    send: Counts,
    receive: Counts,
    disk: Counts,
    link: Counts,
) -> int:
    """Try waiting chunks; one without a path takes the place of a chain, which is then planned again elsewhere.

    The exchange is kept also if the removed chain finds no other path: the number of chunks is the same, and other
    chunks may fit now. Ends after `rounds`, with `enough` chains, or when no chunk waits; returns the rows used.
    """
    refresh(tree, pool, send, receive, disk, link)
    for _ in range(rounds):
        q = pick_waiting(tree, encoded, planned)
        if q < 0 or used >= enough:
            break
        if attempt(tree, pool, encoded[q], rules, avoid, rows[used]):
            owner[used] = q
            planned[q] += 1
            used += 1
            continue
        victim = draw(tree, used) if used > 0 else 0
        if used == 0 or encoded[owner[victim], 0] != WRITE:
            continue
        loser = owner[victim]
        length = encoded[loser, 4] + 1
        keep(rows[victim], spare)
        take(tree, pool, spare[:length], -1)
        if not attempt(tree, pool, encoded[q], rules, avoid, rows[victim]):
            keep(spare, rows[victim])
            take(tree, pool, spare[:length], 1)
            continue
        owner[victim] = q
        planned[q] += 1
        planned[loser] -= 1
        if attempt(tree, pool, encoded[loser], rules, avoid, rows[used]):
            owner[used] = loser
            planned[loser] += 1
            used += 1
    write_all(tree, pool, send, receive, disk, link)
    return used
