"""transformers' Trainer under Counterflow, on all weights; run by tests. Alone: `python trainer.py MODEL SHARD_CONFIG STEPS`; with
workers: `torchrun --nproc-per-node 2 trainer.py …`, or as `run: python trainer.py …` in a job file. Started again, it goes on
where it was.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from trainer_client import BidirectionalOptions, BidirectionalTrainer, ShardedMixture, run_trainer
from trainer_client.encoding import BatchSource, Encoder
from trainer_client.launch_finetune import end_process
from trainer_client.processgroup import init_process_group
from trainer_client.sharddata import ShardSet, load_shard_config


def main(model_name: str, shard_config: str, steps: int) -> int:
    init_process_group()
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    args = TrainingArguments(
        output_dir=os.environ.get("COUNTERFLOW_RUN_DIR", "out"),
        max_steps=steps,
        learning_rate=3e-5,
        lr_scheduler_type="cosine",
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",  # snapshots take its place
        report_to="none",
    )
    shards = ShardSet.open(load_shard_config(Path(shard_config)), held_out_fraction=0.05)
    mixture = ShardedMixture(shards.counts(), global_batch=16, seed=0)
    trainer = BidirectionalTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        source=BatchSource(mixture, shards, Encoder(tokenizer, 512), micro_batch=2),
        options=BidirectionalOptions(
            snapshot_dir=Path(os.environ.get("COUNTERFLOW_SNAPSHOT_DIR", "snapshots")),
            snapshot_every=100,
            eval_every=100,
        ),
    )
    return run_trainer(trainer)


if __name__ == "__main__":
    end_process(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
