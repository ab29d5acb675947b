"""Buffers that change while a model is trained, such as the running statistics of BatchNorm, go on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import run_world

pytestmark = pytest.mark.timeout(300)


def part_of(kind: str) -> Any:
    """A layer [N, 8] -> [N, 8] with running statistics, or one that no resize could keep."""
    import torch
    from torch import nn

    class Talks(nn.Module):
        def forward(self, x: Any) -> Any:
            mean = x.detach().mean(dim=0)
            torch.distributed.all_reduce(mean)
            return x - mean

    class Smooths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean: torch.Tensor
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Any) -> Any:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
            return x - self.mean

    made: dict[str, Any] = {
        "norm": lambda: nn.BatchNorm1d(8),
        "sync": lambda: nn.SyncBatchNorm(8),
        "talks": Talks,
        "smooths": Smooths,
    }
    return made[kind]()


def run_loop(
    folder: Path, frozen: bool, leave_at: tuple[int, int] | None = None, kind: str = "norm"
) -> tuple[Any, dict[str, Any], list[str]]:
    """Exit code, model and what was said of a run of six steps, told to leave at a (step, micro-batch)."""
    import torch
    from torch import nn

    from trainer_client.indexed import IndexedSource
    from trainer_client.journal import Journal
    from trainer_client.loop import ElasticLoop
    from trainer_client.options import BidirectionalOptions
    from trainer_client.session import Session, SessionConfig

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), part_of(kind), nn.Linear(8, 3))
    model[0].bias.requires_grad_(not frozen)
    optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], lr=1e-2)
    made = torch.Generator().manual_seed(1)
    data = [(torch.randn(6, generator=made) * (1 + at % 3), at % 3) for at in range(40)]

    def together(samples: Any) -> Any:
        return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

    def loss(batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"), torch.ones_like(batch[1])

    source = IndexedSource({"a": data}, global_batch=16, micro_batch=4, collate=together)
    session = Session(SessionConfig(folder / "run"), journal=Journal(folder / "snapshots" / "journal"))
    said: list[str] = []
    session.say = lambda text, level="info": said.append(text)  # type: ignore[method-assign]
    session.install_signal_handlers = lambda: None  # type: ignore[method-assign]
    options = BidirectionalOptions(folder / "snapshots", snapshot_every=0)
    loop = ElasticLoop(
        model=model, optimizer=optimizer, source=source, loss=loss, steps=6, session=session, options=options
    )
    micro_step = loop.micro_step

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        if (batch.step, micro.index) == leave_at:
            session._terminated.set()
        return micro_step(model, batch, micro)

    loop.micro_step = noted  # type: ignore[method-assign]
    return loop.run(), {name: value.tolist() for name, value in model.state_dict().items()}, said


def _whole_and_resumed(folder: Path, frozen: bool) -> list[Any]:
    whole = run_loop(folder / "whole", frozen)
    return [whole, run_loop(folder / "parts", frozen, (3, 1)), run_loop(folder / "parts", frozen)]


@pytest.mark.parametrize("frozen", [False, True])
def test_running_statistics_go_on_where_they_were_also_where_a_parameter_is_frozen(
    tmp_path: Path, frozen: bool
) -> None:
    (found,) = run_world(1, _whole_and_resumed, tmp_path, frozen, folder=tmp_path)
    (code, whole, said), (left, _, _), (resumed, parts, _) = found
    assert (code, left, resumed) == (0, 81, 0)
    assert parts == whole
    assert [text for text in said if "running statistics" in text]


def _refusal(folder: Path, kind: str) -> tuple[Any, str]:
    """Exit code and last words of a run with that layer."""
    from trainer_client.apart import ModelRefused
    from trainer_client.session import Session

    finish, words = Session.finish, list[str]()

    def noted(session: Session, **body: Any) -> int:
        words.append(body["message"])
        return finish(session, **body)

    Session.finish = noted  # type: ignore[assignment, method-assign]
    try:
        return run_loop(folder, False, kind=kind)[0], words[0]
    except ModelRefused as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sync", "1: SyncBatchNorm"),
        ("talks", "talks to the other workers"),
        ("smooths", "1.mean: each worker changes it"),
    ],
)
def test_a_model_that_depends_on_who_computes_is_refused_by_name(tmp_path: Path, kind: str, words: str) -> None:
    for code, said in run_world(2, _refusal, tmp_path, kind, folder=tmp_path):
        assert code == (None if kind == "sync" else 64)
        assert words in said


def test_one_worker_may_train_what_several_could_not(tmp_path: Path) -> None:
    ((code, _, said),) = run_world(1, run_loop, tmp_path, False, None, "smooths", folder=tmp_path)
    assert code == 0
    assert [text for text in said if text.startswith("1.mean changes with the forward passes")]
