"""Weights that a run computes with and does not train: a base model under adapters, frozen layers, DPO's reference.

A snapshot lacks them, as they come from where they came; it has their digests, taken once at the start. A resume with other ones,
from a folder whose content is another by now, is refused; where they lie does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed.tensor import DTensor

from trainer_client.digests import part_digests
from trainer_client.finetune_config import ConfigError
from trainer_client.slicedigests import slice_digests
from trainer_client.slices import local

if TYPE_CHECKING:
    import torch

    from trainer_client.trainer import BidirectionalMixin

WORDS = {"base": "the weights that are not trained", "reference": "the weights of the reference model"}


def frozen_digests(trainer: BidirectionalMixin) -> dict[str, str]:
    """A digest for each kind of `WORDS` that the run has, the same in slices as in copies (collective).

    Nothing, and a warning, where weights are of a type that has no digest.
    """
    weights = {
        f"{kind}/{name}": tensor for kind, found in _frozen(trainer).items() for name, tensor in sorted(found.items())
    }
    known = slice_digests(_slices(weights), trainer.agreement)
    found, trouble = dict[str, str](), ""
    if trainer.session.rank == 0:
        parts: dict[str, dict[str, Any]] = {}
        for path, tensor in weights.items():
            kind, _, name = path.partition("/")
            parts.setdefault(kind, {})[name] = known.get(path, tensor)
        try:
            found = part_digests(parts) if parts else {}
        except (ValueError, TypeError, RuntimeError) as error:  # quantised ones, say, which are of classes of their own
            trouble = str(error)
    found, trouble = trainer.agreement.broadcast((found, trouble))
    if trouble:
        trainer.session.say(f"whether a resume has the same frozen weights cannot be checked: {trouble}", "warning")
    return found


def check_frozen(trainer: BidirectionalMixin, given: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """`ConfigError` where the snapshot's run had other ones; what its head has no digest of is said not to be checked."""
    now, saved = trainer.saver.frozen(), head.get("frozen", {})
    wrong = [kind for kind, digest in now.items() if saved.get(kind, digest) != digest]
    if wrong:
        flag = f"--model {given['model']}: " if "model" in given else ""
        before = f" (--model {head['flags']['model']})" if "model" in head.get("flags", {}) else ""
        what = " and ".join(WORDS[kind] for kind in wrong)
        raise ConfigError(
            f"{flag}{what} are others than those that the snapshot's run began from{before}; give those, or leave out --resume"
        )
    for kind in sorted(now.keys() - saved.keys()):
        trainer.session.say(
            f"not checked: whether {WORDS[kind]} are those that the run began from, as the snapshot has no digest of them"
        )


def _frozen(trainer: BidirectionalMixin) -> dict[str, dict[str, torch.Tensor]]:
    model, reference = trainer.model, getattr(trainer, "ref_model", None)
    base = {name: part.detach() for name, part in model.named_parameters() if not part.requires_grad}
    return {"base": base, "reference": reference.state_dict() if reference is not None else {}}


def _slices(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, tuple[int, ...]]]:
    """Those of which this rank holds some rows only."""
    return {
        path: (local(tensor).cpu(), tuple(tensor.shape))
        for path, tensor in weights.items()
        if isinstance(tensor, DTensor)
    }
