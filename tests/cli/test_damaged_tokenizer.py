"""A tokenizer that is damaged is not taken for none, by commands that can do without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.command_line import embinit, save_bert


@pytest.mark.parametrize("damage", ["{", '{"version": "1.0"}', None])
def test_a_damaged_tokenizer_is_said_and_an_absent_one_is_not_needed(
    damage: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_bert(tmp_path / "model")
    for path in model.glob("*token*"):
        path.unlink()
    if damage is not None:
        (model / "tokenizer.json").write_text(damage)
    for number, words in enumerate((["init", model, "--init", "xavier"], ["surgery", model, "reversed"])):
        code, _, err = embinit(capsys, *words, "--output_dir", tmp_path / str(number))
        assert code == (0 if damage is None else 1), err
        assert damage is None or "the tokenizer of" in err.splitlines()[-1]
        assert (tmp_path / str(number)).exists() == (damage is None)
