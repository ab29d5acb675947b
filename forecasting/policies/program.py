"""Backward induction under a random market: the compiled core of StochasticProgram.

The market is a chain of X states; the job is the controlled machine of `dynamics`. Only plans that the deadline guard
would let through are considered, so the programme knows the guard and never plays against it.

Legend: T slots to the deadline, X market states (last, so that the inner loop runs over contiguous memory), D parts of
the day, W cells of work left, S states and J modes of the job.
"""

import numpy as np
from numba import njit

# Stands for "inadmissible but nothing else is left"; far above any cost, far below where float32 loses the cost itself.
_NEVER = np.float32(1e30)


def solve(costs, moves, part, gain, nxt, wait, speed, top_mode, cell, num_cells, short_price, keep):  # type: ignore[no-untyped-def]
    """Expected cost still to come after each of the next `keep` slots, as a table of its own: `add_solution`."""
    after = np.zeros((keep, num_cells + 1, gain.shape[0], costs.shape[1]), dtype=np.float32)
    add_solution(after, np.float32(1), costs, moves, part, gain, nxt, wait, speed, top_mode, cell, short_price)
    return after


@njit(cache=True, nogil=True, fastmath={"contract", "arcp", "nsz"})
def add_solution(after, share, costs, moves, part, gain, nxt, wait, speed, top_mode, cell, short_price):  # type: ignore[no-untyped-def]
    """Add `share` of the expected cost still to come after each of the next `keep` slots to `after` [keep, W+1, S, X].

    Tables are large: one that several markets are mixed in is written once, and only where work can be.

    costs [J,X] float32 money of a mode (inf if not there); moves [D,X,X] float32 with moves[d,y,x] the chance to go from
    x to y; part [T] the day part of each slot; gain [S,J] in work, nxt [S,J]; wait [S] slots that a change to full
    on-demand loses; cell: work per grid step; short_price: money per unit of work still missing at the deadline.
    after [t, w]: with w cells left after slot t, given the market in slot t.
    """
    horizon = part.size
    keep, num_cells, num_states, num_market = after.shape[0], after.shape[1] - 1, after.shape[2], after.shape[3]
    value = np.zeros((num_cells + 1, num_states, num_market), dtype=np.float32)
    for i in range(num_cells + 1):
        value[i] = np.float32(short_price * i * cell)
    ahead = np.zeros_like(value)
    for t in range(horizon - 1, -1, -1):
        # More than full speed from here can still do is never met while the guard holds. Nothing is cut at the other end:
        # work can vanish (a job converges early), and the table has to be right there too.
        high = min(num_cells, int((horizon - t) * speed / cell) + 2)
        b = high + 1
        rows = np.dot(value[:b].copy().reshape(b * num_states, num_market), moves[part[t]])
        ahead[:b] = rows.reshape(b, num_states, num_market)
        if t < keep:
            _add(after[t, :b].reshape(-1), ahead[:b].reshape(-1), share)
        if t == 0:
            break
        for i in range(1, high + 1):
            for s in range(num_states):
                _step(value[i, s], costs, gain, nxt, wait, speed, top_mode, cell, horizon - t - 1, ahead, i * cell, s)
        value[0] = np.float32(0.0)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp", "nsz"})
def _add(total, more, share):  # type: ignore[no-untyped-def]
    for i in range(total.size):
        total[i] += share * more[i]


@njit(cache=True, nogil=True, fastmath={"contract", "arcp", "nsz"})
def _step(best, costs, gain, nxt, wait, speed, top_mode, cell, left_after, ahead, work, s):  # type: ignore[no-untyped-def]
    """Least cost to go of one (work, state) for every market state, written to best [X]."""
    num_market = best.size
    best[:] = _NEVER
    for j in range(costs.shape[0]):
        rest = work - gain[s, j]
        if rest <= 1e-9:
            for x in range(num_market):
                best[x] = min(best[x], costs[j, x])
            continue
        state = nxt[s, j]
        if j != top_mode and np.ceil(rest / speed + wait[state] - 1e-6) > left_after:
            continue
        place = rest / cell
        low = int(place)
        high = min(low + 1, ahead.shape[0] - 1)
        share = np.float32(place - low)
        here, there = ahead[low, state], ahead[high, state]
        for x in range(num_market):
            best[x] = min(best[x], costs[j, x] + here[x] + share * (there[x] - here[x]))


@njit(cache=True, nogil=True)
def choose(after, costs, x, gain, nxt, wait, speed, top_mode, cell, left_after, work, s):  # type: ignore[no-untyped-def]
    """Best mode now for the exact work left. after [W+1, S, X] of this slot, costs [J]: (mode, expected cost to go)."""
    best, arg = np.inf, top_mode
    for j in range(costs.size):
        if costs[j] == np.inf:
            continue
        rest = work - gain[s, j]
        total = costs[j]
        if rest > 1e-9:
            state = nxt[s, j]
            if j != top_mode and np.ceil(rest / speed + wait[state] - 1e-6) > left_after:
                continue
            place = min(rest / cell, after.shape[0] - 1.0)
            low = int(place)
            high = min(low + 1, after.shape[0] - 1)
            total += after[low, state, x] + (place - low) * (after[high, state, x] - after[low, state, x])
        if total < best:
            best, arg = total, j
    return arg, best
