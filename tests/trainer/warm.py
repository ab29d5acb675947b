"""Imported once by the process that test ranks are forked from: what every run would otherwise do again. No backward pass
here (its threads would not survive the fork)."""

import gc
import tempfile

import peft  # noqa: F401
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import trainer_client.callback
import trainer_client.finetune  # noqa: F401
from trainer_client.models import TinySpec

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as _folder, torch.no_grad():
    LlamaForCausalLM(TinySpec.parse("tiny:60k").config(300, {}, 32)).save_pretrained(_folder)
    AutoModelForCausalLM.from_pretrained(_folder)(input_ids=torch.zeros(1, 4, dtype=torch.long))
gc.collect()
gc.freeze()
