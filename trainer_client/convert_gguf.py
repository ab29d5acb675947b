"""A GGUF file as a plain transformers model folder: `python -m trainer_client.convert_gguf MODEL.gguf FOLDER`.

The weights are dequantised once (about a minute for 135 M parameters); afterwards the folder loads in seconds and trains like any
other. The folder appears by rename, so that a run that is killed leaves none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path


def convert(source: Path, folder: Path) -> None:
    """Write `folder` from the GGUF file `source`. Raises `FileNotFoundError`, or `ValueError` for what is no GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not source.is_file():
        raise FileNotFoundError(f"There is no file {source}.")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{source} is not a GGUF file.")
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # Without the marks of quantisation that the loaded one carries: they would forbid training.
    plain_config = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    plain = type(loaded)(type(loaded.config).from_dict(plain_config))
    plain.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        plain.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        fresh.chmod(0o755)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer_client.convert_gguf", description=__doc__)
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("folder", type=Path, help="where the model folder will stand; must not exist")
    options = parser.parse_args(words)
    if options.folder.exists():
        parser.error(f"{options.folder} exists already")
    try:
        convert(options.source, options.folder)
    except (OSError, ValueError) as error:
        print(f"convert_gguf: {error}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
