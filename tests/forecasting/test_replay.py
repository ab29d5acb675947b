"""The replay: semantics of a slot, the documented JSON, determinism, speed of thousands of windows, and its command."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forecasting.policies.registry import make_policy
from forecasting.problem import Job
from forecasting.replay import draw_starts, replay
from forecasting.replay_command import main, split_policies
from forecasting.simulate import Market, run_window
from tests.forecasting.market_cases import NAMES, elastic_job, random_market, single_job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "zone-a.json"
    ticks = np.repeat(random_market(1, 4, num_slots=200).availability, 6)
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": ticks.tolist()}))
    return path


OPTIONS = ["--n-min", "1", "--n-max", "4", "--slot-s", "1800", "--deadline-slots", "20", "--mu-grow", "0.85", "--mu-shrink", "0.95",
           "--starts", "3", "--processes", "1", "--quiet"]  # fmt: skip


@pytest.mark.parametrize("name", ["OnDemandOnly", "SpotFirst", "UniformProgress"])
@pytest.mark.parametrize("make_job", [elastic_job, single_job])
def test_compiled_windows_equal_the_decisions_taken_one_by_one(name, make_job) -> None:  # type: ignore[no-untyped-def]
    job = make_job(budget=25.0) if make_job is elastic_job else make_job()
    market = random_market(3, job.n_max, num_slots=200, slot_s=job.slot_s)
    starts = [20, 47, 90]
    fast = replay(job, market, starts, [name], optimum=False).policies[name]
    for i, start in enumerate(starts):
        slow = run_window(make_policy(name), job, market, start)
        assert fast.n_spot[i].tolist() == slow.n_spot.tolist()
        assert fast.n_on_demand[i].tolist() == slow.n_on_demand.tolist()
        assert fast.cost[i] == pytest.approx(slow.cost)
        assert fast.utility[i] == pytest.approx(slow.utility)


def test_in_the_mu_form_only_the_size_counts_and_a_loss_replaced_at_once_is_no_change() -> None:
    job = Job(work=6, deadline_slots=3, value=20, on_demand_price=1, n_max=4, gang=True, mu_grow=0.5, gamma=2.0)
    market = Market(np.array([4, 0, 0, 0, 0, 0]), np.full(6, 0.25), 300.0)
    outcome = run_window(make_policy("OnDemandOnly"), job, market, 0)
    assert outcome.finish_slot == 2  # 2 in the first slot, 4 in the second


def test_in_the_changeover_form_a_start_loses_its_seconds_over_several_slots() -> None:
    job = Job(work=1.0, deadline_slots=8, value=9, on_demand_price=1, changeover_s=720, slot_s=390, gamma=1.5)
    outcome = run_window(make_policy("OnDemandOnly"), job, Market(np.zeros(12, np.int64), np.full(12, 0.3), 390.0), 0)
    assert outcome.work_left[:3] == pytest.approx([1.0, 1.0 - 60 / 390, 0.0])
    assert outcome.finish_slot == 3
    assert outcome.cost == pytest.approx(3.0)


def test_a_swap_of_spot_for_on_demand_is_a_start_in_the_changeover_form() -> None:
    job = Job(work=3.0, deadline_slots=6, value=9, on_demand_price=1, changeover_s=300, slot_s=300, gamma=1.5)
    market = Market(np.array([1, 1, 0, 0, 0, 0, 0, 0, 0]), np.full(9, 0.3), 300.0)
    outcome = run_window(make_policy("SpotFirst"), job, market, 0)
    assert outcome.n_spot.tolist()[:3] == [1, 1, 0]
    assert outcome.finish_slot == 6  # one slot gained before the loss, then a start and two more


def test_value_falls_from_the_soft_to_the_hard_deadline() -> None:
    job = elastic_job(gamma=1.5)
    assert job.value_at(20) == 60
    assert job.value_at(25) == pytest.approx(30)
    assert job.value_at(30) == 0
    assert job.value_at(None) == 0


def test_the_document_has_the_promised_keys_and_no_bare_nan(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main([str(trace), *OPTIONS, "--json", str(out), "--html", str(tmp_path / "out.html")]) == 0
    document = json.loads(out.read_text(), parse_constant=lambda token: pytest.fail(token))
    assert document["trace"] == "zone-a.json"
    assert len(document["starts"]) == 3
    assert document["job"]["work"] == pytest.approx(0.5 * 4 * 20)
    for result in document["policies"].values():
        assert {"utility", "cost", "finish_slot", "missed", "decide_ms_p50", "decide_ms_p99"} <= set(result)
        assert len(result["utility"]) == len(result["cost"]) == len(result["finish_slot"]) == 3
        assert result["missed"] == 0
        assert all(
            u <= best + 1e-6 for u, best in zip(result["utility"], document["clairvoyant"]["utility"], strict=True)
        )
    page = (tmp_path / "out.html").read_text()
    assert "StochasticProgram" in page
    assert "Plotly" in page
    assert "NaN" not in page.split("</script>")[-2]


def test_the_same_seed_gives_the_same_document_with_one_process_and_with_two(trace: Path, tmp_path: Path) -> None:
    documents = []
    for processes in ("1", "2"):
        out = tmp_path / f"{processes}.json"
        options = [*OPTIONS, "--policies", "SpotFirst,AHANP(0.05)", "--seed", "5", "--json", str(out)]
        options[options.index("--processes") + 1] = processes
        assert main([str(trace), *options]) == 0
        document = json.loads(out.read_text())
        for result in document["policies"].values():
            del result["decide_ms_p50"], result["decide_ms_p99"]
        documents.append(document)
    assert documents[0] == documents[1]


def test_starts_lie_behind_the_history_and_their_windows_fit() -> None:
    starts = draw_starts(200, 30, 0.33, 500, 1)
    assert starts.min() >= 66
    assert starts.max() <= 170
    assert starts.tolist() == draw_starts(200, 30, 0.33, 500, 1).tolist() != draw_starts(200, 30, 0.33, 500, 2).tolist()


def test_a_thousand_windows_of_the_plain_policies_take_seconds_at_most() -> None:
    job, market = elastic_job(deadline_slots=48, work=96.0, value=144.0), random_market(2, 4, num_slots=2000)
    starts = draw_starts(2000, job.hard_slots, 0.33, 1000, 1)
    names = ["SpotFirst", "UniformProgress"]
    replay(job, market, starts[:1], names, optimum=False)
    began = time.process_time()
    replay(job, market, starts, names, optimum=False)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--deadline-slots", "500"], "would work"),
        (["--policies", "Oracle"], "unknown policy"),
        (["--gamma", "0.5"], "gamma"),
        (["--prices", "missing.json"], "missing.json"),
        (["--starts", "0"], "at least one"),
    ],
)
def test_bad_input_ends_with_what_would_work(
    trace: Path, capsys: pytest.CaptureFixture[str], extra: list[str], says: str
) -> None:
    assert main([str(trace), *OPTIONS, *extra]) == 2
    assert says in capsys.readouterr().err


def test_names_with_commas_in_brackets_are_kept_whole() -> None:
    assert split_policies("SpotFirst,AHAP(6,2,0.8);AHANP(0.1)") == ["SpotFirst", "AHAP(6,2,0.8)", "AHANP(0.1)"]
    assert set(split_policies("all")) == set(NAMES)


def test_the_module_runs_without_django(trace: Path) -> None:
    code = (
        "import sys; from forecasting.replay_command import main; status = main(sys.argv[1:]);"
        "assert not {'django', 'torch'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace), *OPTIONS, "--policies", "SpotFirst", "--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policies"]["SpotFirst"]["missed"] == 0


def test_work_hours_give_the_single_instance_form(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(
        json.dumps(
            {"metadata": {"gap_seconds": 195}, "data": random_market(1, 1, num_slots=2000).availability.tolist()}
        )
    )
    out = tmp_path / "o.json"
    form = "--n-min 1 --n-max 1 --slot-s 390 --work-hours 4.8 --work-fraction 0.7 --changeover-s 720 --on-demand 3 --spot 1"
    options = [*form.split(), "--starts", "2", "--processes", "1", "--policies", "SpotFirst"]
    assert main([str(path), *options, "--json", str(out)]) == 0
    job = json.loads(out.read_text())["job"]
    assert job["work"] == pytest.approx(4.8 * 3600 / 390)
    assert job["deadline_slots"] == round(4.8 * 3600 / 0.7 / 390)
