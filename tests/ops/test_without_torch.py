"""A server host that trains nothing runs without torch."""

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'transformers', 'accelerate', 'peft', 'safetensors', 'gguf', 'tokenizers'):
            raise ModuleNotFoundError(f'{name} is blocked', name=name)
sys.meta_path.insert(0, Block())
import os
os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'
"""


PROCESSES = """
import webapp.asgi
from django.core.management import call_command
call_command('check')
import workers.celery_app
workers.celery_app.app.loader.import_default_modules()
import workers.dramatiq_app
"""


def test_the_servers_processes_start_with_torch_blocked() -> None:
    argv = [sys.executable, "-c", BLOCK + PROCESSES]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_server_requirements_name_nothing_that_trains() -> None:
    lines = (REPO / "requirements-server.txt").read_text().lower().splitlines()
    names = {line.split("==")[0].split("[")[0] for line in lines if "==" in line}
    assert not names & {"torch", "transformers", "accelerate", "peft", "safetensors", "gguf"}
    assert all("==" in line for line in lines if line and not line.startswith(("#", "-c", "-r")))
