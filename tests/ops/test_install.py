"""Requirements are installed again exactly when something about them changed."""

from pathlib import Path

import pytest

from scripts.install import digest_of, main


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    (tmp_path / "constraints.txt").write_text("six==1.17.0\n")
    (tmp_path / "server.txt").write_text("-c constraints.txt\nsix\n")
    (tmp_path / "all.txt").write_text("-r server.txt\n")
    return tmp_path / "all.txt"


@pytest.mark.parametrize("name", ["all.txt", "server.txt", "constraints.txt"])
def test_a_change_in_any_included_file_changes_the_digest(requirements: Path, name: str) -> None:
    before = digest_of(requirements)
    with (requirements.parent / name).open("a") as file:
        file.write("# changed\n")
    assert digest_of(requirements) != before


def test_nothing_is_installed_while_the_stamp_fits(requirements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = requirements.parent / "stamp"
    stamp.write_text(digest_of(requirements))
    monkeypatch.setattr("scripts.install.subprocess.run", lambda *_: pytest.fail("pip was called"))
    assert main(requirements, stamp) == 0


def test_a_failed_installation_leaves_no_stamp(requirements: Path) -> None:
    requirements.write_text("-r server.txt\nnot a requirement\n")
    stamp = requirements.parent / "stamp"
    assert main(requirements, stamp) == 1
    assert not stamp.exists()
