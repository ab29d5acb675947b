"""The window's integer program of AHAP, solved exactly by a small dynamic programme over gained work.

min sum of cost over the window minus the worth of progress up to a target. Legend: H slots of the window, S states and
J modes of the job, C cells of progress.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def plan_window(costs, gain, nxt, state, target, price_short, num_cells):  # type: ignore[no-untyped-def]
    """Modes of the cheapest plan over H slots. costs [H,J] (inf: not there), gain and nxt [S,J]; target: work wanted.

    Work short of the target at the window's end is charged at `price_short` a unit; work beyond it is worth nothing.
    Progress is counted in `num_cells` cells of the target, rounded to the nearest, so a plan is exact to a cell.
    """
    horizon, num_modes = costs.shape
    num_states = gain.shape[0]
    cell = max(target, 1e-9) / num_cells
    value = np.zeros((horizon + 1, num_cells + 1, num_states))
    choice = np.zeros((horizon, num_cells + 1, num_states), dtype=np.int64)
    for i in range(num_cells + 1):
        value[horizon, i, :] = price_short * i * cell
    for t in range(horizon - 1, -1, -1):
        for i in range(num_cells + 1):
            for s in range(num_states):
                best, arg = np.inf, 0
                for j in range(num_modes):
                    if costs[t, j] == np.inf:
                        continue
                    rest = max(0, i - int(np.round(gain[s, j] / cell)))
                    total = costs[t, j] + value[t + 1, rest, nxt[s, j]]
                    if total < best - 1e-12:
                        best, arg = total, j
                value[t, i, s], choice[t, i, s] = best, arg
    modes = np.zeros(horizon, dtype=np.int64)
    left, s = num_cells, state
    for t in range(horizon):
        j = choice[t, left, s]
        modes[t] = j
        left = max(0, left - int(np.round(gain[s, j] / cell)))
        s = nxt[s, j]
    return modes
