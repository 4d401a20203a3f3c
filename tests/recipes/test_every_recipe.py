"""What translate.py, classify.py and language_model.py have in common: bad input, and help."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.recipes import run_recipe

SMALL = "--use_cpu --disable_tqdm true --max_train_samples 96 --d_model 16 --d_ff 32 --num_layers 1"
FLAGS = {
    "translate": "--num_beams --min_frequency --freeze_embeddings --target_vectors --max_target_length",
    "classify": "--task --model --surgery --donor --freeze_embeddings --text_columns",
    "language_model": "--model --twin_seeds --freeze_rest --reinitialize_embeddings --knn_tokens",
}
"""Flags of each."""
SHARED = "--init --init_options --tokenizer --vectors --allow_pickle --d_model --train_file --learning_rate"


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--init glove_xaver", "Unknown init 'glove_xaver'. Did you mean: glove_xavier"),
        ("--init mean", "whole tables are made by"),
        ("--init_options mode=rows", "init 'xavier' has no option 'mode'"),
        ("--num_heads 7", "num_heads"),
        ("--tokenizer /nowhere/bert", "--tokenizer '/nowhere/bert' is no folder here"),
        ("--train_file /nowhere.jsonl", "/nowhere.jsonl"),
        # said before any data are looked for
        ("--init bert --vectors /nowhere.txt --train_file /nowhere.jsonl", "--vectors '/nowhere.txt' is no"),
    ],
)
def test_bad_input_is_one_clear_error(name: str, arguments: str, sentence: str, tmp_path: Path) -> None:
    given = [*SMALL.split(), "--num_heads", "2", *arguments.split(), "--output_dir", str(tmp_path / "run")]
    done = run_recipe(name, *given, HF_EMBINIT_DATA="")
    assert done.returncode in (1, 2) and sentence in done.stderr, done.stderr[-2000:]
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("name", FLAGS)
def test_help_explains_every_flag_of_ours(name: str) -> None:
    done = run_recipe(name, "--help")
    assert done.returncode == 0
    assert f"accelerate launch recipes/{name}.py --init glove_xavier" in done.stdout
    assert all(f"  {flag} " in done.stdout for flag in f"{SHARED} {FLAGS[name]}".split())
    assert "default: None" not in done.stdout
