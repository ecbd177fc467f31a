"""The repaired planner's kernels for links between higher switches: the number of chunks that cross a tree, and the
splitting of pairs.

**The model.** Each rack begins A chunks and ends B (`scheduler.peace.repaired_kernels`); a chunk goes up from its rack
to some switch and down to another rack. From the racks upwards each switch pairs begins and ends of different children;
unpaired ones go on to its parent as far as the links carry them. Pairs at low switches use the fewest links, but the
begins and ends that are left over may belong to one child, where they cannot be paired with each other. Then a pair of
another child is *split*: its begin is paired with the left-over end, its end with the left-over begin, for one more
unit of that child's links each way.

`improve` searches for the racks' A with the most chunks by this count: it drops begins that gain no chunk, then moves
begins from rack to rack as long as no chunk is lost.

Invariants:
* On networks with up to three levels of switches `crossing` never counts more chunks than racks and links carry. On
  deeper networks it may; then the plan has fewer chunks than counted.
* Work is bounded: MOVES moves, LOOKS examined switches, SPLITS examined chains.
"""

from typing import Final

from scheduler.peace.repaired_kernels import A, B, ends, fits, take
from scheduler.peace.tree_kernels import (
    DOWN_LEFT,
    MEMBERS_FROM,
    MEMBERS_TO,
    PARENT,
    RACK,
    UP_LEFT,
    Counts,
    Numbers,
    Rows,
    compiled,
    draw,
)

# Rows of `levels`, per switch: switches from the deepest to the root, begins and ends that came up, the largest sum of
# both from one child and which child that is, pairs below, and how many of its, or of all its children's, can be split.
ORDER, BEGINS, ENDS, LARGEST, WHICH, PAIRS, ROOM, ROOMS = range(8)
LEVEL_ROWS: Final = 8
MOVES: Final = 3000
LOOKS: Final = 400_000
"""The limit of MOVES times the number of switches: a millisecond or two."""
SPLITS: Final = 100_000


@compiled
def crossing(tree: Numbers, levels: Numbers, sums: Numbers) -> int:
    """The number of chunks that the tree carries if racks begin and end the numbers in `sums`."""
    levels[BEGINS:] = 0
    levels[WHICH] = -1
    total = 0
    for switch in levels[ORDER]:
        if tree[MEMBERS_FROM, switch] < tree[MEMBERS_TO, switch]:
            come_up(levels, switch, switch, sums[A, switch], sums[B, switch])
        begins, finals = levels[BEGINS, switch], levels[ENDS, switch]
        least = min(begins, finals)
        pairs = max(0, min(least, begins + finals - levels[LARGEST, switch]))
        if pairs < least:
            which = levels[WHICH, switch]
            own = levels[ROOM, which] if which != switch else 0
            pairs += min(least - pairs, levels[ROOMS, switch] - own)
        total += pairs
        levels[PAIRS, switch] += pairs
        parent = tree[PARENT, switch]
        if parent >= 0:
            up = min(begins - pairs, tree[UP_LEFT, switch])
            down = min(finals - pairs, tree[DOWN_LEFT, switch])
            come_up(levels, parent, switch, up, down)
            levels[PAIRS, parent] += levels[PAIRS, switch]
            both = min(tree[UP_LEFT, switch] - up, tree[DOWN_LEFT, switch] - down)
            levels[ROOM, switch] = min(levels[PAIRS, switch], both)
            levels[ROOMS, parent] += levels[ROOM, switch]
    return total


@compiled
def come_up(levels: Numbers, switch: int, child: int, begins: int, finals: int) -> None:
    """Add the begins and ends of a child (or of the switch's own hosts) to a switch."""
    levels[BEGINS, switch] += begins
    levels[ENDS, switch] += finals
    if begins + finals > levels[LARGEST, switch]:
        levels[LARGEST, switch], levels[WHICH, switch] = begins + finals, child


@compiled
def move(sums: Numbers, rack: int, begins: int, most: int, replicas: int) -> bool:
    """Add begins to a rack, and the ends that they require; False: impossible, and nothing changed."""
    then = ends(sums, rack, sums[A, rack] + begins, most, replicas) if sums[A, rack] + begins >= 0 else -1
    if then < 0:
        return False
    sums[A, rack] += begins
    sums[B, rack] = then
    return True


@compiled
def trim(tree: Numbers, levels: Numbers, sums: Numbers, most: int, replicas: int, best: int, what: int) -> int:
    """Drop begins (`what` is A) or ends (B) whose removal loses no chunk; returns the number of chunks."""
    racks = sums.shape[1]
    first, largest = draw(tree, racks), 1
    for rack in range(racks):
        while largest < sums[what, rack]:
            largest *= 2
    while largest > 0:
        for turn in range(racks):
            rack = (first + turn) % racks
            while sums[what, rack] >= largest:
                begins, finals = sums[A, rack], sums[B, rack]
                if what == B:
                    sums[B, rack] -= largest
                elif not move(sums, rack, -largest, most, replicas):
                    break
                count = crossing(tree, levels, sums)
                if count < best:
                    sums[A, rack], sums[B, rack] = begins, finals
                    break
                best = count
        largest //= 2
    return best


@compiled
def improve(tree: Numbers, pool: Counts, levels: Numbers, sums: Numbers, most: int, replicas: int) -> int:
    """The largest number of chunks found that the tree carries; `sums` gets the racks' A and B."""
    best = crossing(tree, levels, sums)
    if best >= most:
        return best
    racks = sums.shape[1]
    for rack in range(racks):
        if tree[MEMBERS_FROM, rack] < tree[MEMBERS_TO, rack]:
            sums[B, rack] = max(0, ends(sums, rack, sums[A, rack], most, replicas))
    best = trim(tree, levels, sums, most, replicas, crossing(tree, levels, sums), A)
    for _ in range(min(MOVES, LOOKS // racks)):
        if best >= most:
            break
        giver, taker = pool[RACK, draw(tree, pool.shape[1])], pool[RACK, draw(tree, pool.shape[1])]
        moves = draw(tree, 3)  # add a begin; move a begin to another rack; both
        other = pool[RACK, draw(tree, pool.shape[1])]
        before = (sums[A, giver], sums[B, giver], sums[A, taker], sums[B, taker], sums[A, other], sums[B, other])
        possible = moves == 0 or move(sums, giver, -1, most, replicas)
        possible = possible and move(sums, taker, 1, most, replicas)
        possible = possible and (moves < 2 or move(sums, other, 1, most, replicas))
        count = crossing(tree, levels, sums) if possible else -1
        if count > best or (count == best and moves > 0):
            best = count
            continue
        sums[A, giver], sums[B, giver] = before[0], before[1]
        sums[A, taker], sums[B, taker] = before[2], before[3]
        sums[A, other], sums[B, other] = before[4], before[5]
    trim(tree, levels, sums, most, replicas, best, A)
    trim(tree, levels, sums, most, replicas, best, B)
    return best


@compiled
def split(tree: Numbers, pool: Counts, lists: Rows, begins: Counts, finals: Counts, sizes: Numbers, rows: Rows) -> int:
    """Insert halves without a partner into existing chains, so that one chain becomes two; returns the rows used.

    `begins` and `finals` are the remaining halves, `sizes` their numbers and the rows used (see `repaired_kernels`).
    """
    used, looks, last = int(sizes[2]), 0, int(sizes[1])
    for place in range(sizes[0]):
        done = False
        first = begins[place]
        for other in range(last):
            second = finals[other]
            start = draw(tree, used) if used > 0 else 0
            for turn in range(used):
                looks += 1
                if looks > SPLITS or used >= len(rows):
                    return used
                done = join(tree, pool, lists, first, second, rows[(start + turn) % used], rows[used])
                if done:
                    break
            if done:
                used += 1
                last -= 1
                finals[other] = finals[last]
                break
    return used


@compiled
def join(tree: Numbers, pool: Counts, lists: Rows, first: int, second: int, row: Counts, new: Counts) -> bool:
    """Join a chain's first half with a lone second half, and vice versa; False: impossible."""
    b, d = row[2], row[3] if len(row) > 3 else -1
    if pool[RACK, lists[0, first]] == pool[RACK, b] or pool[RACK, lists[2, second]] == pool[RACK, row[0]]:
        return False
    take(tree, pool, row, -1)
    new[0], new[1], new[2] = lists[0, first], lists[1, first], b
    row[2] = lists[2, second]
    if len(row) > 3:
        new[3], row[3] = d, lists[3, second]
    if fits(tree, pool, row):
        take(tree, pool, row, 1)
        if fits(tree, pool, new):
            take(tree, pool, new, 1)
            return True
        take(tree, pool, row, -1)
    row[2] = b
    if len(row) > 3:
        row[3] = d
    take(tree, pool, row, 1)
    return False
