"""The cards in `model_cards/` are what the committed records say.

`python tests/test_model_cards.py` renders them again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from loopback_hub import check_card

from hf_embinit.runs.record import read_record
from hf_embinit.runs.reference_cards import INDEX, manifest_of_record, reference_cards

ROOT = Path(__file__).parent.parent
CARDS = ROOT / "model_cards"
RESULTS = ROOT / "recipes" / "results"


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return reference_cards(RESULTS, CARDS)


def test_the_cards_are_those_of_the_records(rendered: dict[str, str]) -> None:
    assert len(rendered) > 20
    again = "run `python tests/test_model_cards.py`"
    assert {p.name for p in CARDS.iterdir()} == set(rendered), again
    for name, text in rendered.items():
        assert (CARDS / name).read_text(encoding="utf-8") == text, f"{name}: {again}"


def test_metadata_and_links(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
            assert (CARDS / target).exists() or target in rendered, f"{name} links to {target}"
        assert not re.search(r"\bNone\b|\bnan\b|Undefined|\{\{", text), name
        if name != INDEX:
            assert check_card(text) == ([], []), name
            card = ModelCard(text)
            assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
            assert card.data.eval_results and "# " in card.text and "from_pretrained(" in card.text
            assert f"]({name})" in rendered[INDEX]


def test_scores_stand_beside_the_papers(rendered: dict[str, str]) -> None:
    card = rendered["translate-multi30k-words-glove_xavier-seed42.md"]
    assert re.search(r"\| Multi30k, BLEU \| 26\.81 \| 38\.7 \(0\.3\) \| Kim et al\. 2024, Table 1 \|", card)
    assert "num_train_epochs 5 instead of 20" in card and "nrefs:1" in card and "seed 42" in card
    assert "`recipes/translate.py`" in card
    frozen = rendered["reproduce-runs-translate-multi30k-words-xavier-seed1-8f7e14a1.md"]
    assert "| 34.6 (0.5) | Kim et al. 2024, Table 3 |" in frozen and "Table 1" not in frozen
    embedded = rendered["translate-captions-words-glove-seed1.md"]
    assert "the paper" not in embedded  # no paper has these data
    expanded = rendered["expand_vocab-stories260K-mean.md"]
    assert "KL to the model before expansion" in expanded and "100 tokens were added" in expanded
    assert "hewitt2021" in expanded


def test_the_manifest_follows_from_the_record() -> None:
    record = read_record(RESULTS / "translate" / "multi30k-words-glove-seed42")
    (event,) = manifest_of_record(record)
    assert (event["event"], event["init"], event["seed"]) == ("initialize", "glove", 42)
    source, target = event["tables"]
    assert source["side"] == "source" and source["source"] == {"name": "vectors/de.300d.txt"}
    assert target["side"] == "target" and target["source"] == {"name": "vectors/en.300d.txt"}
    assert target["coverage"]["types_found"] == 5888


if __name__ == "__main__":
    for old in CARDS.glob("*.md"):
        old.unlink()
    for file, text in reference_cards(RESULTS, CARDS).items():
        (CARDS / file).write_text(text, encoding="utf-8")
