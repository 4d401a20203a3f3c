"""What the runs of a study read is told before any of them starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_embinit.studies import requirements as module
from hf_embinit.studies.requirements import list_requirements
from hf_embinit.studies.scheduling import Launch
from hf_embinit.studies.study import list_studies, load_study


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_EMBINIT_DATA", raising=False)


def found(name: str, launch: Launch, **options) -> dict[str, module.Requirement]:
    return {f"{r.kind} {r.name}": r for r in list_requirements(load_study(name, seeds=1, **options), launch)}


def test_what_is_missing_comes_first_with_its_way_out(tmp_path: Path) -> None:
    (tmp_path / "data" / "multi30k").mkdir(parents=True)
    (tmp_path / "data" / "multi30k" / "train.jsonl").write_text("{}")
    (tmp_path / "data" / "iwslt2017").mkdir()
    (tmp_path / "data" / "iwslt2017" / "test.jsonl").write_text("{}")
    launch = Launch(tmp_path, tmp_path / "out", data_dir=str(tmp_path / "data"))
    all_of = found("table1", launch)
    assert all_of["data set multi30k"].found == str(tmp_path / "data" / "multi30k")
    assert "has no training split" in all_of["data set iwslt2017"].way_out
    assert "hf download nyu-mll/glue --repo-type dataset" in all_of["data set sst2"].way_out
    assert "nlp.stanford.edu/projects/glove" in all_of["vectors glove"].way_out
    assert "multi30k/words-glove" in all_of["vectors glove"].cells
    assert "hf download google-bert/bert-base-uncased" in all_of["tokenizer bert"].way_out
    states = [r.found is None for r in all_of.values()]
    assert states == sorted(states, reverse=True)
    assert str(all_of["vectors glove"]).startswith("  MISSING  vectors glove, for sst2/words-glove, ")


def test_files_that_are_given_and_the_cache_are_looked_for(tmp_path: Path) -> None:
    vectors = tmp_path / "de.txt"
    vectors.write_text("a 1\n")
    (tmp_path / "cache" / "models--google-bert--bert-base-uncased" / "snapshots" / "abc").mkdir(parents=True)
    launch = Launch(tmp_path, tmp_path / "out")
    given = found(
        "table1", launch, only=["sst2/words-glove", "sst2/bert-bert"],
        overrides=[f"words-glove:vectors={vectors}", "bert-bert:vectors=gone/away.txt"],
    )  # fmt: skip
    assert given[f"vectors {vectors}"].found == str(vectors) and "vectors glove" not in given
    assert "there is no gone/away.txt" in given["vectors gone/away.txt"].way_out
    assert given["tokenizer bert"].found == "the Hub's cache of google-bert/bert-base-uncased"


def test_an_initialiser_that_is_none_is_missing_with_the_nearest(tmp_path: Path) -> None:
    launch = Launch(tmp_path, tmp_path / "out")
    only = {"only": ["multi30k/words-xavier", "multi30k/words-glove"]}
    given = found("table1", launch, **only, overrides=["words-xavier:init=xavir"])
    assert given["init xavir"].found is None and given["init xavir"].cells == ["multi30k/words-xavier"]
    assert "Unknown init 'xavir'. Did you mean: xavier" in given["init xavir"].way_out
    given = found("hewitt", launch, only=["gpt2"], overrides=["inits=[mean_cov:scael=auto]"])
    assert "has no option 'scael'" in given["init mean_cov:scael=auto"].way_out


@pytest.mark.parametrize("name", list_studies())
def test_every_study_can_be_checked(name: str, tmp_path: Path) -> None:
    launch = Launch(tmp_path, tmp_path / "out")
    assert found(name, launch)
    assert not any(r.name.startswith("run:") or r.kind == "init" for r in found(name, launch).values())
