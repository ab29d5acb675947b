"""transformers' Trainer under Counterflow on a stream of texts, read forward only; run by tests. Alone: `python stream.py MODEL
FILE.jsonl STEPS`; with workers: `torchrun --nproc-per-node 2 stream.py …`, or as `run: python stream.py …` in a job file. Started
again, by as many workers or by others, it goes on with the sample that comes next.
"""

import os
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

from trainer_client import BidirectionalOptions, BidirectionalTrainer, run_trainer
from trainer_client.encoding import Encoder
from trainer_client.indexed import IndexedSource, Stream
from trainer_client.launch_finetune import end_process
from trainer_client.processgroup import init_process_group


def main(model_name: str, path: str, steps: int) -> int:
    init_process_group()
    on_gpu = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    texts = load_dataset("json", data_files=path, split="train", streaming=True).shuffle(seed=0, buffer_size=1000)
    with open(path) as lines:
        num_samples = sum(1 for _ in lines)
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
    trainer = BidirectionalTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        source=IndexedSource(
            {"texts": Stream(lambda first: iter(texts.skip(first)), num_samples)},
            encoder=Encoder(tokenizer, 512),
            global_batch=16,
            micro_batch=2,
        ),
        options=BidirectionalOptions(
            snapshot_dir=Path(os.environ.get("COUNTERFLOW_SNAPSHOT_DIR", "snapshots")), snapshot_every=100
        ),
    )
    return run_trainer(trainer)


if __name__ == "__main__":
    end_process(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
