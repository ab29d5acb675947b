"""Runs statsforecast's AutoARIMA and AutoETS on given windows; a program of its own, since it wants other versions.

`python statsforecast_peer.py IN.npz OUT.json` with `past` [N,K] and the horizon H; writes mean and 80 % band per window.
"""

import json
import sys
import time

import numpy as np


def main(source: str, target: str) -> None:
    from statsforecast.models import AutoARIMA, AutoETS

    given = np.load(source)
    past, horizon, season = given["past"], int(given["horizon"]), int(given["season"])
    found = {}
    for name, model in (("AutoARIMA", AutoARIMA(season_length=season)), ("AutoETS", AutoETS(season_length=season))):
        model.forecast(y=past[0][-60:], h=horizon, level=[80])  # compiles; not measured
        rows, began = [], time.process_time()
        for values in past:
            made = model.forecast(y=values, h=horizon, level=[80])
            rows.append([made["mean"].tolist(), made["lo-80"].tolist(), made["hi-80"].tolist()])
        found[name] = {"rows": rows, "seconds": (time.process_time() - began) / len(past)}
    with open(target, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
