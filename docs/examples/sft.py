"""trl's SFTTrainer under Counterflow, with LoRA; run by tests. Alone: `python sft.py MODEL SHARD_CONFIG STEPS`; with workers:
`torchrun --nproc-per-node 2 sft.py …`, or as `run: python sft.py …` in a job file. Started again, it goes on where it was.
"""

import os
import sys
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from trainer_client import BidirectionalOptions, ShardedMixture, run_trainer
from trainer_client.encoding import BatchSource
from trainer_client.launch_finetune import end_process
from trainer_client.processgroup import init_process_group
from trainer_client.sampleforms import conversed
from trainer_client.sharddata import ShardSet, load_shard_config
from trainer_client.trl import CounterflowSFTTrainer, SupervisedEncoder


def main(model_name: str, shard_config: str, steps: int) -> int:
    init_process_group()
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    args = SFTConfig(
        output_dir=os.environ.get("COUNTERFLOW_RUN_DIR", "out"),
        max_steps=steps,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        max_length=512,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        save_strategy="no",  # snapshots take its place
        report_to="none",
    )
    shards = ShardSet.open(load_shard_config(Path(shard_config)), held_out_fraction=0.05, form=conversed)
    mixture = ShardedMixture(shards.counts(), global_batch=16, seed=0)
    trainer = CounterflowSFTTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        source=BatchSource(mixture, shards, SupervisedEncoder(tokenizer, args), micro_batch=2),
        options=BidirectionalOptions(
            snapshot_dir=Path(os.environ.get("COUNTERFLOW_SNAPSHOT_DIR", "snapshots")),
            snapshot_every=100,
            eval_every=100,
        ),
    )
    return run_trainer(trainer)


if __name__ == "__main__":
    end_process(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
