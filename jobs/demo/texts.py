"""Instruction/response pairs from what is installed anyway: translations, documentation strings, licence texts.

Nothing is imported to be read: sources are parsed, catalogues are opened. The result depends on the installed versions alone.
"""

from __future__ import annotations

import ast
import gettext
import importlib.util
import itertools
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Pair = dict[str, str]

# Code of Django's catalogue -> name; the shard's key is `ui_` and the first two letters.
LANGUAGES = {"de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt_BR": "Portuguese"}
DOCUMENTED = ("numpy", "scipy", "pandas", "django")
LICENCE = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)
WORD = re.compile(r"[^\W\d_]{2,}")


def package_folder(name: str) -> Path:
    """Where an installed package's files lie, found without importing it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.submodule_search_locations, f"{name} is not a package"
    return Path(next(iter(spec.submodule_search_locations)))


def clean(text: str) -> str:
    """One line, single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def translations(code: str, _chance: random.Random) -> Iterator[Pair]:
    """Django's own messages in one language: every catalogue of the framework and its contributed apps."""
    language = LANGUAGES[code]
    for path in catalogues()[code]:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
        for message, translated in sorted(_entries(catalogue)):
            source, target = clean(message), clean(translated)
            if 8 <= len(source) <= 160 and target and source != target:
                yield {"prompt": f"Translate into {language}: {source}", "response": target}


def _entries(catalogue: gettext.GNUTranslations) -> Iterator[tuple[str, str]]:
    for key, value in catalogue._catalog.items():  # type: ignore[attr-defined]  # the only way to list a catalogue
        message = key[0] if isinstance(key, tuple) else key
        if message and isinstance(value, str):
            yield message.rsplit("\x04", 1)[-1], value


def docstrings(package: str, chance: random.Random) -> Iterator[Pair]:
    """Functions of an installed package with the first paragraph of their documentation, files in an order drawn by `chance`."""
    root = package_folder(package)
    paths = [p for p in sorted(root.rglob("*.py")) if "tests" not in p.parts and not p.name.startswith("test_")]
    chance.shuffle(paths)
    for path in paths:
        module = ".".join([package, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # a template of a module, not a module
        for node in functions(tree):
            if not node.name.startswith("_"):
                text = clean((ast.get_docstring(node) or "").split("\n\n")[0])
                if 25 <= len(text) <= 220:
                    names = ", ".join(a.arg for a in node.args.args if a.arg not in ("self", "cls"))
                    yield {"prompt": f"What does {node.name}({names}) of {module} do?", "response": text}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions of a module and methods of its classes; what is nested deeper is nobody's interface."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (n for n in inner if isinstance(n, ast.FunctionDef))


@cache
def catalogues() -> dict[str, list[Path]]:
    """Language code -> Django's compiled catalogues, found in one walk."""
    found: dict[str, list[Path]] = {}
    for path in sorted(package_folder("django").rglob("locale/*/LC_MESSAGES/django.mo")):
        found.setdefault(path.parts[-3], []).append(path)
    return found


@cache
def licence_texts() -> list[tuple[str, str]]:
    """(package, text) of the licence files of installed packages."""
    site = package_folder("django").parent
    found = []
    for path in sorted(p for p in site.glob("*.dist-info/**/*") if LICENCE.search(p.name)):
        try:
            found.append((path.relative_to(site).parts[0].split("-")[0], path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            continue  # a folder of that name, or not text
    return found


def licences(family: str, _chance: random.Random) -> Iterator[Pair]:
    """Sentences of the licence texts of installed packages with what follows them; `family` is apache, bsd or other."""
    for name, text in licence_texts():
        if _family(text) != family:
            continue
        sentences = [clean(s) for s in re.split(r"(?<=[.;:])\s+", text)]
        for first, second in itertools.pairwise(sentences):
            if 20 <= len(first) <= 300 and 20 <= len(second) <= 240:
                yield {"prompt": f"Continue the licence of {name}: {first}", "response": second}


def _family(text: str) -> str:
    if "Apache License" in text:
        return "apache"
    if "Redistribution and use in source and binary forms" in text:
        return "bsd"
    return "other"
