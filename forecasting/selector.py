"""Which policy to trust: Hedge over a pool, with full information because the market does not react to us.

After every job each member's utility on that job's market is known by replay. Weights follow w_m ~ exp(eta * sum of
utilities), utilities scaled to [0, 1]. With a horizon of K jobs, eta = sqrt(8 ln M / K) and the regret is at most
sqrt(K ln M / 2) whatever comes (Cesa-Bianchi and Lugosi, Prediction, Learning, and Games, theorem 2.2). That rate is made
for the worst case: members that differ by a few percent are hardly told apart in 200 jobs. So without a horizon eta is
AdaHedge's (de Rooij, van Erven, Grünwald and Koolen, JMLR 2014): ln M over the cumulative mixability gap, the price paid
so far for not knowing; large while a leader is clear, small where leaders change. A `share` above 0 mixes a little of the
uniform weights back in after each job (fixed share), so that the selector follows a market that changes its regime.

Legend: M members, K jobs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forecasting.guard import Guarded
from forecasting.policies.registry import make_pool
from forecasting.problem import Allocation, FloatArray, Job, Reason, Situation
from forecasting.simulate import Market, run_window

_LEAST_GAP = 1e-9  # before any price was paid the best so far is followed


@dataclass
class HedgeState:
    """All that has to be stored to go on: log weights [M] and sums over the jobs so far."""

    names: list[str]
    log_weights: FloatArray
    num_jobs: int = 0
    earned: float = 0.0  # expected scaled utility of the selector
    totals: FloatArray = field(default_factory=lambda: np.zeros(0))  # scaled utility of every member, [M]
    gap: float = 0.0  # cumulative mixability gap, which sets the rate where no horizon is known

    def to_json(self) -> dict[str, Any]:
        return {
            "names": self.names, "log_weights": self.log_weights.tolist(), "num_jobs": self.num_jobs,
            "earned": self.earned, "totals": self.totals.tolist(), "gap": self.gap,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "HedgeState":
        return cls(
            list(document["names"]), np.array(document["log_weights"], float), int(document["num_jobs"]),
            float(document["earned"]), np.array(document["totals"], float), float(document.get("gap", 0.0)),
        )  # fmt: skip


class PolicySelector:
    """Hedge over named members. `weights`, `regret` and `bound` are what the Market page shows."""

    def __init__(
        self, names: Sequence[str], *, horizon: int | None = None, share: float = 0.0, state: HedgeState | None = None
    ) -> None:
        if len(names) < 1 or len(set(names)) != len(names):
            raise ValueError("the pool needs at least one member, each with its own name")
        if not 0 <= share < 1:
            raise ValueError(f"share is {share}; it is mixed back after each job: 0 <= share < 1")
        self.horizon, self.share = horizon, share
        m = len(names)
        self.state = state or HedgeState(list(names), np.full(m, -math.log(m)), totals=np.zeros(m))
        if self.state.names != list(names):
            raise ValueError("the stored state belongs to another pool; start a new one or restore the members by name")

    @property
    def weights(self) -> FloatArray:
        """Chance with which each member is chosen, shape [M]."""
        shifted = np.exp(self.state.log_weights - self.state.log_weights.max())
        return np.asarray(shifted / shifted.sum())

    @property
    def learning_rate(self) -> float:
        """eta of the next update."""
        log_m = math.log(max(len(self.state.names), 2))
        if self.horizon is not None:
            return math.sqrt(8 * log_m / self.horizon)
        return log_m / max(self.state.gap, _LEAST_GAP)

    def choose(self, seed: int) -> str:
        """A member drawn by weight; deterministic by seed and jobs seen."""
        rng = np.random.default_rng([seed, self.state.num_jobs])
        return self.state.names[int(rng.choice(len(self.state.names), p=self.weights))]

    @property
    def leader(self) -> str:
        """The member with the largest weight (the first of equals)."""
        return self.state.names[int(np.argmax(self.state.log_weights))]

    def learn(self, utilities: FloatArray) -> None:
        """Take in one job: `utilities` [M] scaled to [0, 1], in the order of the names."""
        scaled = np.asarray(utilities, float)
        if (
            scaled.shape != (len(self.state.names),)
            or not np.isfinite(scaled).all()
            or scaled.min() < 0
            or scaled.max() > 1
        ):
            raise ValueError(
                f"need {len(self.state.names)} finite utilities in [0, 1]; scale them with scaled_utilities()"
            )
        s = self.state
        s.earned += float(self.weights @ scaled)
        rate = self.learning_rate
        s.gap += self._mixability_gap(scaled, rate)
        s.totals = s.totals + scaled
        s.num_jobs += 1
        if self.horizon is None and self.share == 0:
            s.log_weights = self.learning_rate * s.totals
        else:
            s.log_weights = s.log_weights + rate * scaled
        s.log_weights = s.log_weights - s.log_weights.max()
        if self.share > 0:
            s.log_weights = np.log((1 - self.share) * self.weights + self.share / len(s.names))

    def _mixability_gap(self, scaled: FloatArray, rate: float) -> float:
        """How much more the exponential mean of the utilities is than their mean under the weights; 0 or more."""
        top = float(scaled.max())
        mixed = top + math.log(max(float(self.weights @ np.exp(rate * (scaled - top))), 1e-300)) / rate
        return max(0.0, mixed - float(self.weights @ scaled))

    @property
    def regret(self) -> float:
        """Scaled utility of the best fixed member in hindsight minus the selector's expected one."""
        return float(self.state.totals.max() - self.state.earned) if self.state.num_jobs else 0.0

    @property
    def bound(self) -> float:
        """The guarantee for the jobs seen, without `share`: sqrt(K ln M / 2) with a horizon, else AdaHedge's."""
        k, log_m = self.state.num_jobs, math.log(max(2, len(self.state.names)))
        if self.horizon is not None:
            return math.sqrt(k * log_m / 2)
        return math.sqrt(k * log_m) + 16 / 3 * log_m + 2


def scaled_utilities(utilities: FloatArray, job: Job) -> FloatArray:
    """Utility mapped to [0, 1]: 1 is the value at no cost, 0 a loss of the whole on-demand bill. Clipped, NaN refused."""
    speed = float(job.curve[job.top_size])
    worst = job.top_size * job.on_demand_price * (job.work / speed + 2)
    return np.asarray(np.clip((np.asarray(utilities, float) + worst) / (job.value + worst), 0.0, 1.0))


def member_utilities(
    pool: Sequence[Guarded], job: Job, market: Market, start: int, progress: Callable[[], None] | None = None
) -> FloatArray:
    """What every member would have earned in a past window, shape [M]."""
    found = np.zeros(len(pool))
    for i, policy in enumerate(pool):
        found[i] = run_window(policy, job, market, start).utility
        if progress is not None:
            progress()
    return found


class Selected:
    """The selector as a policy: what the leading member says, with its weight in the reason."""

    name = "PolicySelector"

    def __init__(self, selector: PolicySelector, pool: Sequence[Guarded] | None = None) -> None:
        self.selector = selector
        members = list(pool) if pool is not None else make_pool()
        self.pool = {policy.name: policy for policy in members}
        if set(self.pool) != set(selector.state.names):
            raise ValueError("the pool and the selector name different members")

    def decide(self, situation: Situation) -> Allocation:
        name = self.selector.leader
        chosen = self.pool[name].decide(situation)
        weight = float(self.selector.weights[self.selector.state.names.index(name)])
        numbers = {**chosen.reason.numbers, "weight": 100 * weight, "jobs": float(self.selector.state.num_jobs)}
        words = name.replace("{", "(").replace("}", ")") + " ({weight:.0f} % of the weight after {jobs:.0f} jobs): "
        return Allocation(
            chosen.n_spot,
            chosen.n_on_demand,
            Reason(chosen.reason.rule, words + chosen.reason.template, numbers),
            chosen.offer,
        )
