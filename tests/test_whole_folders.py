"""Folders that are written whole or not at all, where the folder is there already: it stays what it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from builders.command_line import save_bert
from safetensors import SafetensorError

from hf_embinit.__main__ import main
from hf_embinit.errors import RunFolderError
from hf_embinit.files import check_output, replaced_files, whole_folder, write_whole
from hf_embinit.interrupts import terminating


def write(folder: str | Path) -> None:
    with whole_folder(folder) as hidden:
        (hidden / "1_Pooling").mkdir()
        for name in ("config.json", "model.safetensors", "1_Pooling/config.json"):
            (hidden / name).write_text(name)


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


WRITTEN = ["1_Pooling", "1_Pooling/config.json", "config.json", "model.safetensors"]


def test_a_link_to_an_empty_folder_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    write(tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and listed(tmp_path / "disk") == WRITTEN
    (tmp_path / "later").symlink_to("absent")
    write(tmp_path / "later")
    assert listed(tmp_path / "absent") == WRITTEN
    assert listed(tmp_path)[-1] == "out" and not [name for name in os.listdir(tmp_path) if name[0] == "."]


def test_the_current_folder_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bert(tmp_path / "model")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = os.stat(".").st_ino
    assert main(["init", "../model", "--init", "xavier", "--output_dir", "."]) == 0
    assert os.stat(tmp_path / "here").st_ino == before
    assert (tmp_path / "here" / "config.json").is_file() and "model.safetensors" in os.listdir(".")


def test_an_empty_folder_keeps_its_mode(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o2777)
    write(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o2777 and listed(out) == WRITTEN


def test_a_mount_point_is_written_on_its_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "rmdir", busy)
    monkeypatch.setattr(Path, "rename", busy)
    with whole_folder(tmp_path / "out") as hidden:
        assert hidden.parent == tmp_path / "out"  # whose room is looked at
        (hidden / "config.json").write_text("{}")
    assert listed(tmp_path / "out") == ["config.json"]


def test_config_json_comes_last_or_nothing_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    moved, replace = list[str](), os.replace

    def refuse(source: Path, target: Path) -> None:
        moved.append(source.name)
        if len(moved) == 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunFolderError, match="the disk is full"):
        write(tmp_path / "out")
    assert moved[:3] == ["1_Pooling", "model.safetensors", "config.json"]
    assert listed(tmp_path) == ["out"]


def test_a_full_disk_is_told_in_whatever_words_a_library_has_for_it(tmp_path: Path) -> None:
    for error in (
        SafetensorError("I/O error: No space left on device"),
        Exception("No space left on device"),
    ):
        with (
            pytest.raises(RunFolderError, match=f"the folder {tmp_path} cannot be written: the disk is full"),
            whole_folder(tmp_path / "a") as hidden,
            whole_folder(hidden),
        ):
            raise error
    assert not listed(tmp_path)


def test_folders_on_the_way_are_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "a" / "b" / "c"):
        (tmp_path / "a" / "kept").write_text("of somebody else")
        raise KeyboardInterrupt
    assert listed(tmp_path) == ["a", "a/kept"]
    with whole_folder(tmp_path / "a" / "b" / "c"):
        pass
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_killed_run_leaves_a_hidden_folder_that_is_no_obstacle(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt), whole_folder(out) as hidden:
        left = hidden.name
        raise KeyboardInterrupt
    assert not listed(out)
    (out / left).mkdir()
    (out / left / "model.safetensors").write_text("half")
    check_output(out)
    write(out)
    assert set(listed(out)) == {*WRITTEN, left, f"{left}/model.safetensors"}
    for name in ("config.json", ".other.tmp"):
        (tmp_path / name[1:]).mkdir()
        (tmp_path / name[1:] / name).write_text("")
        with pytest.raises(RunFolderError, match=re.escape(f"{name[1:]} is not empty")):
            check_output(tmp_path / name[1:])


KILLED = """
import os, sys
from hf_embinit.files import whole_folder, write_whole
with whole_folder(sys.argv[1]) as hidden, write_whole(sys.argv[2]) as file:
    (hidden / "model.safetensors").write_text("half")
    os._exit(9)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_another_writes_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint can be many gigabytes, hidden."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "out", tmp_path / "words.txt"], check=False)
    left = sorted(path for path in tmp_path.iterdir() if path.name[0] == ".")
    assert [path.name.split(".")[1] for path in left] == ["out", "words"]

    def write_both() -> list[str]:
        (tmp_path / "out").exists() or write(tmp_path / "out")
        with write_whole(tmp_path / "words.txt") as file:
            file.write("word")
        return [path.name for path in left if path.exists()]

    assert len(write_both()) == 2  # of a process that may be about to lock them
    for path in left:
        os.utime(path, (0, 0))
    (tmp_path / "out").rename(tmp_path / "first")
    with pytest.raises(RunFolderError, match="is not empty"), whole_folder(tmp_path / "out") as hidden:
        assert not left[0].exists() and left[1].exists()  # each name removes its own
        os.utime(hidden, (0, 0))
        write(tmp_path / "out")
        assert hidden.is_dir()  # it is being written
    assert not write_both() and caplog.text.count("which an interrupted process left") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "out", "words.txt"]


def test_a_folder_that_may_be_written_and_not_listed_is_written(tmp_path: Path, monkeypatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with write_whole(tmp_path / "words.txt") as file:
        file.write("word")
    assert (tmp_path / "words.txt").read_text() == "word"


def test_a_second_interrupt_does_not_stop_what_was_moved_from_going_back(
    tmp_path: Path, monkeypatch, heeds_ctrl_c
) -> None:
    (tmp_path / "out").mkdir()
    moved, replace = list[str](), os.replace

    def interrupted(source: Path, target: Path) -> None:
        moved.append(Path(source).name)
        if len(moved) in (3, 4):  # while files are moved up, and at the first that goes back
            os.kill(os.getpid(), signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out")
    assert len(moved) > 4 and listed(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_does_not_stop_the_cleaning_up(
    tmp_path: Path, monkeypatch, heeds_ctrl_c, number: int
) -> None:
    removed, unlinked = shutil.rmtree, Path.unlink

    def remove(path, **options):
        os.kill(os.getpid(), number)
        removed(path, **options)

    def unlink(path, **options):
        os.kill(os.getpid(), number)
        unlinked(path, **options)

    for use in (whole_folder, replaced_files, write_whole):
        with monkeypatch.context() as patched, terminating(), pytest.raises(KeyboardInterrupt):
            patched.setattr(shutil, "rmtree", remove)
            patched.setattr(Path, "unlink", unlink)
            with use(tmp_path / "new" / "out"):
                os.kill(os.getpid(), number)
        assert listed(tmp_path) in ([], ["new"])


def test_who_is_second_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(RunFolderError, match="is not empty"), whole_folder(tmp_path / "out"):
        write(tmp_path / "out")
    assert listed(tmp_path / "out") == WRITTEN


def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path: Path, monkeypatch) -> None:
    check_output(tmp_path / "new" / "folder", "--fix")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(RunFolderError, match=f"^--fix {tmp_path}/new/folder cannot be used: .*no permission"):
        check_output(tmp_path / "new" / "folder", "--fix")
    assert not (tmp_path / "new").exists()
