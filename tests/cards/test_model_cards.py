"""The cards in `model_cards/` are what the committed records say; `hf-embinit cards` renders them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from builders import ROOT
from builders.loopback_requests import check_card
from huggingface_hub import ModelCard

from hf_embinit.__main__ import main
from hf_embinit.cards.reference_cards import INDEX, manifest_of_record, reference_cards
from hf_embinit.records.record import read_record

CARDS = ROOT / "model_cards"
RESULTS = ROOT / "recipes" / "results"


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return reference_cards(RESULTS, CARDS)


def test_the_cards_are_those_of_the_records(rendered: dict[str, str]) -> None:
    assert len(rendered) > 20
    again = "run `hf-embinit cards recipes/results model_cards`"
    assert {p.name for p in CARDS.iterdir()} == set(rendered), again
    for name, text in rendered.items():
        assert (CARDS / name).read_text(encoding="utf-8") == text, f"{name}: {again}"


def test_scores_and_settings_are_the_record_s(rendered: dict[str, str]) -> None:
    """Read from the files alone: the metadata has the record's numbers, and the card its settings."""
    for path in RESULTS.rglob("results.json"):
        name = "-".join(path.parent.relative_to(RESULTS).parts) + ".md"
        if name not in rendered:
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        measured = [value for value in record["metrics"].values() if isinstance(value, (int, float))]
        shown = ModelCard(rendered[name]).data.eval_results
        assert shown and all(_is_among(result.metric_value, measured) for result in shown), name
        whence = (
            f"started from `{Path(record['arguments']['model']).name}`"
            if record["init"] == "none"
            else f"`{record['init']}`"
        )
        assert whence in rendered[name] and f"seed {record['seed']}" in rendered[name], name


def _is_among(value: float, measured: list[float]) -> bool:
    return any(value == pytest.approx(f * m, rel=5e-3, abs=5e-3) for m in measured for f in (1, 100))


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
    card = rendered["reproduce-runs-translate-multi30k-words-glove_xavier-seed2-a6a2a3b6.md"]
    assert re.search(r"\| Multi30k, BLEU \| 38\.33 \| 38\.7 \(0\.3\) \| Kim et al\. 2024, Table 1 \|", card)
    assert "nrefs:1" in card and "seed 2" in card and "`recipes/translate.py`" in card
    reduced = rendered["reproduce-runs-classify-sst2-words-glove_xavier-seed1-d243d714.md"]
    assert "learning_rate 0.0003 instead of 0.0001, d_model 100 instead of 300" in reduced
    frozen = rendered["reproduce-runs-translate-multi30k-words-xavier-seed1-04dd927a.md"]
    assert "| 34.6 (0.5) | Kim et al. 2024, Table 3 |" in frozen and "Table 1" not in frozen
    embedded = rendered["translate-captions-words-glove-seed1.md"]
    assert "the paper" not in embedded  # no paper has these data
    runs = "reproduce-runs-expand_vocab-wikitext-2-v1-stories260K"
    expanded = rendered[f"{runs}-mean-seed1-e2f06905-mean.md"]
    assert "KL to the model before expansion" in expanded and "100 tokens were added" in expanded
    assert "hewitt2021" in expanded


def test_the_manifest_follows_from_the_record() -> None:
    record = read_record(RESULTS / "reproduce/runs/translate/multi30k-words-glove-seed2-b01e045c")
    (event,) = manifest_of_record(record)
    assert (event["event"], event["init"], event["seed"]) == ("initialize", "glove", 2)
    source, target = event["tables"]
    assert source["side"] == "source" and source["source"] == {"name": "vectors/de.300d.txt"}
    assert target["side"] == "target" and target["source"] == {"name": "vectors/en.300d.txt"}
    assert target["coverage"]["types_found"] == 5888


def test_a_card_says_which_options_and_which_surgeries_its_run_had() -> None:
    rendered = reference_cards(RESULTS, ROOT / "model_cards")
    most = rendered["reproduce-runs-translate-captions-words-glove_orthogonal-seed1-19160b31.md"]
    assert "- **initialize**: `glove_orthogonal` with `turn=most`, `empty=false` (by default GloVe" in most
    assert "| `glove_orthogonal` with `turn=most`, `empty=false` | 1 |" in rendered[INDEX]
    surgeries = "reproduce-runs-classify-cola-minilm-clean+donor_embeddings-seed1-7e2508cd.md"
    assert (
        "- **surgery**: `clean`, seed 1.\n- **surgery**: `donor_embeddings`, seed 1, donor minilm.\n"
        in (rendered[surgeries])
    )
    assert "zhang2021" in rendered[surgeries] and "**initialize**" not in rendered[surgeries]
    drawn = rendered["expand_vocab-stories260K-distinct-seed1-mean_cov-scale-auto.md"]
    assert "- **expand**: `mean_cov` with `scale=auto` (by default N(mean" in drawn and "hewitt2021" in drawn


def test_cards_of_records_that_are_gone_are_removed_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "sentiment", tmp_path / "results")
    cards = tmp_path / "cards"
    first = main(["cards", str(tmp_path / "results"), str(cards)])
    (cards / "NOTES.md").write_text("by hand")
    before = {path.name for path in cards.iterdir()}
    gone = sorted((tmp_path / "results").iterdir())[0]
    shutil.rmtree(gone)
    assert first == main(["cards", str(tmp_path / "results"), str(cards)]) == 0
    assert before - {path.name for path in cards.iterdir()} == {f"{gone.name}.md"}


def test_the_card_of_a_damaged_record_stays_and_the_record_is_named(tmp_path: Path, capsys) -> None:
    shutil.copytree(RESULTS / "sentiment", tmp_path / "results")
    cards = tmp_path / "cards"
    assert main(["cards", str(tmp_path / "results"), str(cards)]) == 0
    (cards / INDEX).write_bytes((cards / INDEX).read_bytes() + b"\xe9\n")  # of somebody's editor
    before = {path.name: path.read_bytes() for path in cards.iterdir()}
    damaged = sorted((tmp_path / "results").iterdir())[0]
    (damaged / "results.json").write_text("<<<<<<< HEAD\n" + (damaged / "results.json").read_text())
    assert main(["cards", str(tmp_path / "results"), str(cards)]) == 1
    said = capsys.readouterr().err
    assert f"{damaged.name}.md is of a record that is damaged, mend or delete it: {damaged}" in said
    assert {path.name: path.read_bytes() for path in cards.iterdir()} == before


def test_records_that_are_not_there_are_told_with_the_reason(tmp_path: Path, capsys) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{")
    for command, place, reason in [
        ("cards", tmp_path, "left out 1 file of that name: "),
        ("results", tmp_path, "left out 1 file of that name: "),
        ("cards", tmp_path / "run" / "results.json", "is a file: give the folder of one or more finished"),
        ("results", tmp_path / "run" / "results.json", "is a file: give the folder of one or more finished"),
        ("cards", tmp_path / "gone", "gone', which is not there: give the folder of"),
    ]:
        assert main([command, str(place), *([str(tmp_path / "cards")] if command == "cards" else [])]) == 1
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()


def test_a_part_of_a_page_without_its_end_is_told(tmp_path: Path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- papers -->\n\nby hand\n")
    command = ["cards", str(RESULTS), str(tmp_path / "cards"), "--pages", str(page)]
    assert main(command) == 1
    assert f"--pages {page}: <!-- papers --> has no <!-- end -->" in capsys.readouterr().err
    assert page.read_text().endswith("by hand\n") and not (tmp_path / "cards").exists()


@pytest.mark.parametrize("other", ["a-b/c", "README"])
def test_two_runs_whose_cards_have_one_name_are_refused(other: str, tmp_path: Path, capsys) -> None:
    run = next(path for path in sorted((RESULTS / "sentiment").iterdir()) if path.is_dir())
    for name in ("a/b-c", other):
        shutil.copytree(run, tmp_path / "results" / name)
    assert main(["cards", str(tmp_path / "results"), str(tmp_path / "cards")]) == 1
    assert "as another one is: rename that folder" in capsys.readouterr().err
    assert not (tmp_path / "cards").exists()


@pytest.mark.parametrize("which", ["index", "card"])
def test_a_file_that_is_no_card_of_ours_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    shutil.copytree(RESULTS / "sentiment", tmp_path / "results")
    run = sorted((tmp_path / "results").iterdir())[0]
    cards = tmp_path / "cards"
    cards.mkdir()
    name = INDEX if which == "index" else f"{run.name}.md"
    (cards / name).write_text("My project. See [changes](CHANGELOG.md).")
    (cards / "CHANGELOG.md").write_text("by hand")
    before = {path.name: path.read_text() for path in cards.iterdir()}
    assert main(["cards", str(tmp_path / "results"), str(cards)]) == 1
    assert f"{cards / name} is none of the pages that this command writes" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in cards.iterdir()} == before


def test_a_page_by_hand_that_took_the_place_of_a_card_stays(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "sentiment", tmp_path / "results")
    cards = tmp_path / "cards"
    assert main(["cards", str(tmp_path / "results"), str(cards)]) == 0
    gone = sorted((tmp_path / "results").iterdir())[0]
    shutil.rmtree(gone)
    (cards / f"{gone.name}.md").write_text("by hand")
    assert main(["cards", str(tmp_path / "results"), str(cards)]) == 0
    assert (cards / f"{gone.name}.md").read_text() == "by hand"
