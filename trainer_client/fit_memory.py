"""How much memory a run needs on each GPU. Pure arithmetic, without torch.

Legend: b samples of a micro-batch, s tokens of a sample, e bytes of an element (4 or 2), and the
dimensions of `modelshape`.

What stays: weights, and of what is trained a gradient and the moments of the optimizer (AdamW two, SGD none). What comes
and goes: activations kept for the backward pass, counted tensor by tensor as in Korthikanti et al., *Reducing Activation
Recomputation in Large Transformer Models* (2022), section 4, for layers with RMSNorm, rotary positions, a fused attention
kernel (no s x s matrix is kept) and a gated feed-forward layer:

* each norm: input, normalised input, output = 3 bsh; rotated q, k, v and the output of attention = bsd(2a + 2k);
  feed-forward: gate, silu(gate), up and their product = 4 bsf;
* with recomputation (gradient checkpointing) one input bsh for each layer, and all of one layer at a time;
* logits: 12 bsV bytes: at the turn from forward to backward three arrays of V float32 numbers for each token are alive;
* with pairs (dpo, by trl) each sample is two rows, b of them 2bs tokens; without LoRA the reference's weights come on top.
  Logits are made in tiles of 4096 x 32768, whatever V is, beside float32 gradients of the output's matrix and its input.

FSDP divides what stays by the world; embeddings and two layers are whole for a while.

Fidelity `exact` holds nodes of a tree (`treesum`), each as large as the gradient: as many as a rank's share of a step needs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from trainer_client.modelshape import ModelShape
from trainer_client.treesum import most_held

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}
MOMENTS = {"adamw": 2, "sgd": 0}
FIDELITIES = ("exact", "same_world")
METHODS = ("sft", "dpo")
TILE_TOKENS, TILE_VOCAB = 4096, 32768  # of trl's logits
TILE_FOLD_BYTES = 0  # for each of them: its kernel folds a tile in place (without one, on a CPU, seven float32 arrays)
BUCKET_BYTES, NUM_BUCKETS = 16 * 1024 * 1024, 3  # in which gradients travel between ranks


@dataclass(frozen=True, slots=True)
class FitSettings:
    """What decides about memory beside the model. `lora`: rank of adapters on all linear maps, 0 trains all weights."""

    global_batch: int = 16
    micro_batch: int = 8
    seq_len: int = 256
    precision: str = "fp32"
    optimizer: str = "adamw"
    lora: int = 0
    recompute: bool = False
    fidelity: str = "exact"
    method: str = "sft"

    def __post_init__(self) -> None:
        choices = {"precision": ELEMENT_BYTES, "optimizer": MOMENTS, "fidelity": FIDELITIES, "method": METHODS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}")
        for name in ("global_batch", "micro_batch", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one GPU at the highest moment of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    exchange: int
    total: int


def memory(shape: ModelShape, settings: FitSettings, *, num_workers: int = 1, parallel: str = "ddp") -> Memory:
    """Bytes on each GPU of a world. `num_workers` matters for FSDP, and for whether gradients have to travel."""
    e = ELEMENT_BYTES[settings.precision]
    trained, trained_e = trained_parameters(shape, settings)
    weights, gradients = shape.num_parameters * e + (trained * trained_e if settings.lora else 0), trained * trained_e
    optimizer = MOMENTS[settings.optimizer] * gradients
    weights += shape.num_parameters * e if settings.method == "dpo" and not settings.lora else 0  # of its reference
    num_held = _num_held(settings, num_workers, parallel)
    exchange = _exchange(shape, settings, gradients) if num_workers > 1 else 0
    if parallel == "fsdp":
        weights, gradients, optimizer = (-(-part // num_workers) for part in (weights, gradients, optimizer))
        exchange = _gathered(shape, settings, num_workers) if num_workers > 1 else 0
    activations, logits = _activations(shape, settings), _logits(shape, settings)
    total = weights + optimizer + exchange + _peak(shape, settings, num_held, gradients, activations, logits)
    return Memory(weights, max(1, num_held) * gradients, optimizer, activations, logits, exchange, total)


def _peak(
    shape: ModelShape, settings: FitSettings, num_held: int, gradients: int, activations: int, logits: int
) -> int:
    """Gradients that are held are there all the time; a new one grows while activations go.

    The gradient of an embedding comes last: from both of its places, and with their sum, where it is the output's matrix, too.
    """
    passing, is_new = activations + logits, settings.fidelity == "exact" or not num_held
    layer = _tokens(settings) * _layer_bytes(shape, settings) if settings.recompute else 0
    passing -= min(logits, layer)  # the logits have gone when the first layer is computed again
    embedding = 0 if settings.lora else shape.embedding_parameters * ELEMENT_BYTES[settings.precision]
    beside = layer and 2 * _tokens(settings) * shape.intermediate * ELEMENT_BYTES[settings.precision]  # of its way back
    last = max(layer + beside, (2 * shape.tied + (not is_new)) * embedding)
    return num_held * gradients + max(passing, is_new * gradients + last)


def _num_held(settings: FitSettings, num_workers: int, parallel: str) -> int:
    """Gradients that a rank holds at most when a micro-batch begins."""
    num_micro = -(-settings.global_batch // settings.micro_batch)
    if settings.fidelity == "same_world":
        return int(num_micro > num_workers)
    if parallel == "fsdp":  # dealt out, so that what is done lies side by side; whole rounds
        return max(0, (num_micro // (num_workers & -num_workers)).bit_length() - 1)
    return _most_held_of_a_rank(num_micro, num_workers)


@lru_cache(maxsize=4096)
def _most_held_of_a_rank(num_micro: int, num_workers: int) -> int:
    """The same for copies, whose shares lie one after the other and are equal but for one micro-batch, the larger ones first."""
    size, more = divmod(num_micro, num_workers)
    starts = [rank * size + min(rank, more) for rank in range(min(num_workers, num_micro) + 1)]
    return max(itertools.starmap(most_held, itertools.pairwise(starts)))


def trained_parameters(shape: ModelShape, settings: FitSettings) -> tuple[int, int]:
    """Parameters that are trained and the bytes of one; adapters are kept in float32."""
    if settings.lora:
        return shape.lora_parameters(settings.lora), 4
    return shape.num_parameters, ELEMENT_BYTES[settings.precision]


def _activations(shape: ModelShape, settings: FitSettings) -> int:
    tokens = _tokens(settings)
    layer = tokens * _layer_bytes(shape, settings)
    e = ELEMENT_BYTES[settings.precision]
    last_norm = tokens * shape.hidden * ((3 * e if e == 4 else 8) if not settings.lora else 4)
    if settings.recompute:
        return shape.num_layers * tokens * shape.hidden * e + layer + last_norm
    return shape.num_layers * layer + last_norm


def _tokens(settings: FitSettings) -> int:
    return settings.micro_batch * settings.seq_len * (2 if settings.method == "dpo" else 1)


def _layer_bytes(shape: ModelShape, settings: FitSettings) -> int:
    """Kept for the backward pass by one layer for each token."""
    h, f, e = shape.hidden, shape.intermediate, ELEMENT_BYTES[settings.precision]
    heads, kv_heads = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    attention = 2 * (heads + kv_heads) * e + 4 * shape.num_heads  # q, k, v, output; the logarithm of each head's sum
    feed_forward = 4 * f * e
    norms = 2 * 3 * h * e if e == 4 else 2 * h * (4 + 2 + 2)  # float32 inside
    if shape.normed_heads:
        norms += (heads + kv_heads) * (2 * e if e == 4 else 4 + 2)
    if settings.lora:
        return attention + feed_forward + norms + _lora_bytes(shape, settings)
    return attention + feed_forward + norms


def _lora_bytes(shape: ModelShape, settings: FitSettings) -> int:
    """More (or less) than without adapters: their inner values; in bf16 a float32 copy of each one's input."""
    h, f, rank = shape.hidden, shape.intermediate, settings.lora
    inner = 7 * rank * 4
    if settings.precision == "fp32":
        return inner - 2 * h * 4  # a frozen norm weight keeps no normalised input
    heads = shape.num_heads * shape.head_size
    copies = 4 * (5 * h + heads + f)  # q, k, v, gate, up; o; down
    return inner + copies - 2 * h * (2 + 2) - f * 2


def _logits(shape: ModelShape, settings: FitSettings) -> int:
    tokens = _tokens(settings)
    if settings.method == "dpo":
        tile = TILE_VOCAB * (ELEMENT_BYTES[settings.precision] + TILE_FOLD_BYTES)
        return min(tokens, TILE_TOKENS) * tile + 4 * (
            tokens * shape.hidden + (0 if settings.lora else shape.embedding_parameters)
        )
    return 12 * tokens * shape.vocab


def _exchange(shape: ModelShape, settings: FitSettings, gradients: int) -> int:
    """Buffers in which gradients travel; a matrix larger than one has a buffer of its own."""
    e = ELEMENT_BYTES[settings.precision]
    largest = max(shape.embedding_parameters, shape.hidden * shape.intermediate) * e
    largest = settings.lora * max(shape.hidden, shape.intermediate) * 4 if settings.lora else largest
    return min(
        gradients, largest + (NUM_BUCKETS - 1) * BUCKET_BYTES if largest > BUCKET_BYTES else NUM_BUCKETS * BUCKET_BYTES
    )


def _gathered(shape: ModelShape, settings: FitSettings, num_workers: int) -> int:
    """Whole for a while under FSDP: what is in no layer, two layers, and the gradients of one of them, which are added up in
    float32; of bf16 ones the slice that comes of it is there in float32 for a moment, too."""
    e, largest = ELEMENT_BYTES[settings.precision], max(shape.layer_parameters, shape.outer_parameters)
    gradients = largest * 4 + (largest * 4 // num_workers if e < 4 else 0)
    arriving = largest * e if settings.fidelity == "exact" else 0  # each rank's rows of a whole layer
    return (shape.outer_parameters + 2 * shape.layer_parameters) * e + (0 if settings.lora else gradients + arriving)
