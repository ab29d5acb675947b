"""The shell between a backend and a job's own command: signals have to reach the command."""

from __future__ import annotations

import pytest

from workers.job_command import in_place_of_the_shell


@pytest.mark.parametrize(
    ("run", "replaces"),
    [
        ("python train.py --lr 1e-3", True),
        ("python -c 'a; b'", True),
        ("python train.py $STEPS", True),
        ("python a.py && python b.py", False),
        ("python train.py > log", False),
        ("python a.py\npython b.py", False),
        ("STEPS=3 python train.py", False),
        ("exit 3", False),
        ("python 'unfinished", False),
        ("exec python train.py", False),
        ("", False),
    ],
)
def test_one_plain_command_takes_the_place_of_its_shell(run, replaces):
    assert in_place_of_the_shell(run) == (f"exec {run}" if replaces else run)
