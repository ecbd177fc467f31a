"""What plans are measured against: the optimum of a timestep, and a verifier of every promise that a plan makes.

`exact` finds the largest number of chunks by integer programming (HiGHS); `brute` by exhaustive search, on tiny
networks; `verify` checks a plan. `compact` and `patterns` are the two programs of `exact`, built from `program`
and `flows`; `decompose` turns their counts back into chains.

Invariant: the verifier and the exhaustive search share no code with any planner.
"""
