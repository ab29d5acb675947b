"""How hard each shard of a job is for the model now: 0 easy, 1 hard, 0.5 like the typical shard of the job.

In each bin of steps a shard's loss is compared with the median of the shards seen in it, in robust standard deviations (1.4826
times the median absolute deviation; Rousseeuw and Croux, "Alternatives to the median absolute deviation", JASA 1993), so that a
shard which was not drawn for a while is not compared with what the others have learned since. These distances are smoothed over
bins and put through a logistic function. A shard begins with the score of its config, which counts as much as `PRIOR_BINS` bins.

S shards, B step bins, as in `jobs/scheduler/situation.py`.
"""

from __future__ import annotations

import warnings

import numpy as np

from jobs.scheduler.situation import Floats, Situation

HALF_LIFE_BINS = 8.0  # a bin so far back counts half
PRIOR_BINS = 8.0
MIN_SHARDS = 2  # with fewer there is nothing to be harder than
LEAST_SPREAD = 0.05  # of the median: shards closer than that are equally hard
MAX_Z = 6.0


def hardness_scores(situation: Situation, prior: Floats, now: Floats) -> Floats:
    """Scores [S] from 0 to 1. `prior` [S] are those of the config, `now` [S] those in force, kept where nothing was measured."""
    distance, num_bins = smoothed_distance(situation)
    known = np.isfinite(distance)
    trust = num_bins[known] / (num_bins[known] + PRIOR_BINS)
    scores = now.copy()
    scores[known] = trust / (1.0 + np.exp(-distance[known])) + (1.0 - trust) * prior[known]
    return scores


def smoothed_distance(situation: Situation) -> tuple[Floats, Floats]:
    """Distance from the other shards [S] in robust deviations, NaN without a bin to compare in; the number of those bins [S]."""
    distance = distance_in_bins(situation.losses())
    seen = np.isfinite(distance)
    age = np.arange(distance.shape[1])[::-1]
    weight = np.where(seen, situation.tokens, 0) * 0.5 ** (age / HALF_LIFE_BINS)
    with np.errstate(invalid="ignore"):
        smoothed: Floats = (np.where(seen, distance, 0.0) * weight).sum(axis=1) / weight.sum(axis=1)
    return smoothed, seen.sum(axis=1).astype(float)


def distance_in_bins(loss: Floats) -> Floats:
    """[S, B] distance of each loss from the median of its bin; NaN where the shard was not seen, or hardly another."""
    loss = np.where(np.isfinite(loss), loss, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a bin in which nothing was seen has no median
        middle = np.nanmedian(loss, axis=0)
        spread = 1.4826 * np.nanmedian(np.abs(loss - middle), axis=0)
    spread = np.maximum(np.maximum(spread, LEAST_SPREAD * np.abs(middle)), 1e-9)
    distance: Floats = np.clip((loss - middle) / spread, -MAX_Z, MAX_Z)
    distance[:, np.isfinite(loss).sum(axis=0) < MIN_SHARDS] = np.nan
    return distance
