"""A model, data and loss of one's own under Counterflow; run by tests. Alone: `python plain_torch.py`; with workers: `torchrun
--nproc-per-node 2 plain_torch.py`, or as `run: python plain_torch.py` in a job file. Started again, it goes on where it was.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from trainer_client.indexed import IndexedSource
from trainer_client.launch_finetune import end_process
from trainer_client.loop import ElasticLoop
from trainer_client.options import BidirectionalOptions
from trainer_client.processgroup import init_process_group


class Points:
    """Any map-style data set will do, equal on every worker."""

    def __init__(self, num_samples: int, shift: float) -> None:
        made = torch.Generator().manual_seed(num_samples)
        self.x = torch.randn(num_samples, 16, generator=made) + shift
        self.y = (self.x.sum(dim=1) > 16 * shift).long()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def main(steps: int) -> int:
    init_process_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def collate(samples):
        return tuple(torch.stack(part) for part in zip(*samples, strict=True))

    def loss(micro_batch):
        x, y = micro_batch
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        return losses, torch.ones_like(y)  # for each sample: its loss, and what that is a sum over

    data = {"near": Points(500, 0.0), "far": Points(300, 2.0)}
    source = IndexedSource(data, global_batch=32, micro_batch=4, collate=collate)
    options = BidirectionalOptions(Path(os.environ.get("COUNTERFLOW_SNAPSHOT_DIR", "snapshots")), snapshot_every=100)
    loop = ElasticLoop(
        model=model, optimizer=optimizer, scheduler=scheduler, source=source, loss=loss, steps=steps, options=options
    )
    return loop.run()


if __name__ == "__main__":
    end_process(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
