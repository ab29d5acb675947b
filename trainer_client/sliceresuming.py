"""Going on with a model in slices: each rank takes its own rows, from the slices of any number of ranks or from whole tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.digests import Known, state_digest
from trainer_client.partialstep import PartialStep, work_of
from trainer_client.resuming import Resumption
from trainer_client.saving import UNREADABLE
from trainer_client.slicedigests import rows_of, slice_digests
from trainer_client.slicefiles import (
    MODEL,
    OPTIMIZER,
    Rows,
    WholeRows,
    gradient_paths,
    gradient_pieces,
    with_slices,
)
from trainer_client.slices import like, local
from trainer_client.slicesaving import live_slices, without_slices
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.training_state import check_names, load_optimizer_state

if TYPE_CHECKING:
    import torch


class SliceResumption(Resumption):
    """As `Resumption`; the digests of what is there now are those of whole tensors, which no rank holds."""

    _rows: Rows
    _digests: dict[str, Known]

    def _let_go(self) -> None:
        super()._let_go()
        del self._rows

    def _attempt(self) -> str:
        """Load on this rank; all compare together, or none."""
        trouble, head, gradients = "", dict[str, Any](), dict[int, str]()
        try:
            head, gradients = self._load()
        except UNREADABLE as error:
            trouble = f"{type(error).__name__}: {error}"
        troubles = [text for text in self._trainer.agreement.gather(trouble) if text]
        return trouble or (self._compared(head, gradients) if not troubles else "")

    def _compared(self, head: dict[str, Any], gradients: dict[int, str]) -> str:
        trainer = self._trainer
        live: dict[str, torch.Tensor] = dict(live_slices(trainer.model, trainer.optimizer))
        if self.partial is not None:
            live |= gradient_paths(self.partial.pieces)
        slices = {path: (local(tensor).cpu(), tuple(tensor.shape)) for path, tensor in live.items()}
        self._digests = slice_digests(slices, trainer.agreement)
        if self.partial is not None and self.loaded.slices is not None:
            gradients = {0: state_digest({"pieces": gradient_pieces(self._digests, self._digests.__getitem__)})}
        return self._difference(head, gradients)

    def _live(self) -> tuple[dict[str, Any], dict[str, Any]]:
        trainer = self._trainer
        state = {MODEL: self._model_state(), OPTIMIZER: trainer.optimizer.state_dict()}
        whole = with_slices(without_slices(state), self._digests, self._digests.__getitem__)
        return whole[MODEL], whole[OPTIMIZER]

    def _load_tensors(self) -> None:
        loaded = self.loaded
        self._rows = loaded.slices or WholeRows(loaded.tensors, map(loaded.gradients, self._old_ranks()))
        model = self._model_state()
        saved = self._shapes(MODEL) | {name: tuple(tensor.shape) for name, tensor in loaded.tensors[MODEL].items()}
        check_names(model, saved)
        for name, tensor in model.items():
            path = f"{MODEL}/{name}"
            local(tensor).copy_(self._own(path, tensor) if path in self._rows.shapes else loaded.tensors[MODEL][name])
        self._load_moments()

    def _load_moments(self) -> None:
        optimizer, saved = self._trainer.optimizer, self.loaded.tensors[OPTIMIZER]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {place: {k: v for k, v in entry.items() if not v.dim()} for place, entry in saved["state"].items()}
        for name, shape in self._shapes(OPTIMIZER).items():
            place, _, moment = name.partition("/")
            if int(place) >= len(parameters) or tuple(parameters[int(place)].shape) != shape:
                raise SnapshotCorrupt(f"the snapshot is of another model: moment {name} has shape {list(shape)}")
            parameter = parameters[int(place)]
            rows = like(parameter, self._own(f"{OPTIMIZER}/{name}", parameter))
            state.setdefault(int(place), {})[moment] = rows
        load_optimizer_state(optimizer, saved | {"state": state})

    def _take_partial(self) -> dict[int, str]:
        """The rest of the step for this rank, and its rows of the gradient so far."""
        head, session = self.loaded.partial, self._trainer.session
        self.partial = None
        if head is None:
            return {}
        parameters = dict(self._trainer.model.named_parameters())

        def own(path: str) -> torch.Tensor:
            parameter = parameters[path.rpartition("/")[2]]
            return like(parameter, self._own(path, parameter).to(parameter.dtype))

        pieces = gradient_pieces(self._rows.shapes, own)
        work = work_of(head).for_world(session.world_size, dealt=True)
        sums, mode = self._sums(), head["mode"]
        self.partial = PartialStep(work, head["micro_batch"], head["num_supervised"], sums, pieces, mode)
        if self.loaded.slices is not None:
            return {}  # what was taken is compared, together with the rows of the others
        return {rank: self.loaded.gradient_digest(rank) for rank in self._old_ranks()}

    def _old_ranks(self) -> range:
        """Ranks of the world that saved, which may have gradients."""
        return range(len(self.loaded.head.get("gradient_digests") or ()))

    def _shapes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """Name -> shape of what the snapshot has of that kind with rows."""
        head = f"{kind}/"
        return {path.removeprefix(head): shape for path, shape in self._rows.shapes.items() if path.startswith(head)}

    def _own(self, path: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows."""
        agreement = self._trainer.agreement
        return self._rows.rows(path, rows_of(tensor.shape[0], agreement.rank, agreement.world_size))
