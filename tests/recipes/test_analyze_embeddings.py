"""`recipes/analyze_embeddings.py` as a user starts it, on small files of vectors and a small saved model."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.recipes import Done, run_recipe
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from hf_embinit.__main__ import main
from hf_embinit.errors import DataNotFoundError, FileWriteError, InvalidArgumentError, RunFolderError
from hf_embinit.measures.statistics import embedding_statistics
from hf_embinit.moments import xavier_bound, xavier_std
from hf_embinit.report import analysis, spaces
from hf_embinit.report import text as wording
from hf_embinit.report.run import AnalysisArguments, analyze_embeddings
from hf_embinit.tasks.texts import load_texts
from hf_embinit.vectors import PretrainedVectors, read_embedding_table, write_vectors


def analyze(*arguments: str, folder: Path) -> Done:
    """Started in `folder`, with its data folder."""
    with contextlib.chdir(folder):
        return run_recipe("analyze_embeddings", *arguments, HF_EMBINIT_DATA=str(folder / "data"))


def caption_words(count: int) -> list[str]:
    """Words of the embedded captions, most frequent first."""
    counts = spaces.count_words(load_texts("captions:en")[:2000], "en")
    return [word for word, _ in counts.most_common(count)]


def test_a_language_that_spacy_lacks_is_split_by_the_rules_for_any(caplog) -> None:
    assert spaces.count_words(["Mba'éichapa nde", "nde"], "gn")["nde"] == 2
    assert "spaCy has no rules for language 'gn'" in caplog.text


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wide and a narrow file of vectors (the first, turned) and a saved model."""
    folder = tmp_path_factory.mktemp("sources")
    words = caption_words(160)
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(160, 20, generator=generator)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=generator)).Q
    write_vectors(folder / "data" / "wide.txt", PretrainedVectors(words, wide * 8, "wide"))
    narrow = torch.cat([(wide @ turn)[:120] * 0.2, torch.zeros(1, 20)])
    write_vectors(folder / "narrow.txt", PretrainedVectors([*words[:120], "nothing"], narrow, "narrow"))

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "##ing", *words[:60]]
    backend = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(BertConfig(
            vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=40,
        ))  # fmt: skip
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")

    a, b, c, d = words[:4]
    wrong = "nowhere nowhere nowhere nowhere"
    (folder / "questions.txt").write_text(f": all\n{a} {b} {c} {d}\n{a.upper()} {b} {d} {c}\n{wrong}\n")
    return folder


@pytest.fixture(scope="module")
def report(sources: Path) -> tuple[Path, str]:
    """The report on all three, and what the command printed."""
    done = analyze(
        "--sources", "wide.txt", "narrow.txt", "model", "--names", "wide", "narrow", "bert",
        "--output_dir", "out", "--lengths", "4", "8", "--k", "5", "--sample", "60",
        "--corpus", "captions:en", "--analogies", "questions.txt", "--html",
        folder=sources,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return sources / "out", done.stdout


def test_the_report_says_what_to_do(report) -> None:
    folder, printed = report
    text = (folder / "report.md").read_text()
    results = json.loads((folder / "results.json").read_text())
    assert f"page:   {Path('out') / 'report.html'}" in printed and (folder / "report.html").is_file()
    for name, init in (("wide", "pretrained_xavier"), ("narrow", "pretrained")):
        values = results["spaces"][name]["statistics_in_corpus"]
        ratio = wording.times(values["sd_over_xavier"])
        sentence = f"**{name}: sd is {ratio} times Xavier's at this vocabulary ("
        line = next(line for line in text.splitlines() if sentence in line)
        use = "no harm as it is (`pretrained`)" if init == "pretrained" else f"use `{init}`"
        assert f"; {use}.**" in line and line.removeprefix("- ") in printed
        assert text.index(line) < text.index("## The tables")  # at the top
    assert str(folder.parent) not in text + json.dumps(results)  # relative paths alone
    for heading in (
        "Values against",
        "Norms against",
        "left of words",
        "Neighbors",
        "agree",
        "analogies",
        "made",
    ):
        assert any(line.startswith("## ") and heading in line for line in text.splitlines()), heading
    assert "--names wide narrow bert --output_dir out" in text  # the command


def test_figures_are_there_and_linked(report) -> None:
    folder, _ = report
    text = (folder / "report.md").read_text()
    pictures = sorted(p.relative_to(folder).as_posix() for p in (folder / "figures").iterdir())
    assert pictures == [f"figures/{n}.png" for n in (
        "absorption", "distribution_1", "distribution_2", "distribution_3", "match", "norms")]  # fmt: skip
    for picture in pictures:
        assert f"]({picture})" in text
        with Image.open(folder / picture) as image:
            assert image.mode == "P" and len(image.getcolors(256)) > 20, picture
    assert not list(folder.rglob("*.tmp"))


def test_results_are_the_measures(report, sources: Path) -> None:
    folder, _ = report
    measured = json.loads((folder / "results.json").read_text())["spaces"]
    bert = measured["bert"]
    table = read_embedding_table(sources / "model")
    assert bert["left_out"] == {"special": 5, "reserved": 1} and bert["num_embeddings"] == 61
    expected = embedding_statistics(table.matrix[6:])
    assert bert["statistics"]["table"] == pytest.approx(expected.to_dict())
    assert bert["statistics"]["sd_over_xavier"] == pytest.approx(expected.std / xavier_std(61, 16))
    assert bert["own_positions_std"] == pytest.approx(0.02, rel=0.1)
    assert measured["wide"]["own_positions_std"] is None
    assert measured["narrow"]["left_out"] == {"all zero": 1}
    for space in measured.values():
        values = space["statistics"]
        root = math.sqrt(space["embedding_dim"])
        assert values["table_scaled"]["std"] == pytest.approx(root * values["table"]["std"])
        assert values["pretrained_xavier"]["std"] == pytest.approx(values["xavier"]["std"])
        assert values["xavier_pretrained"]["std"] == pytest.approx(values["table"]["std"])
        assert space["frequency"]["by"] == "counts"
        for points in space["absorption"].values():
            assert [p["num_positions"] for p in points] == [4, 8]
    wide = measured["wide"]["absorption"]
    assert wide["pretrained"][1]["knn_match_in_sum"] > wide["pretrained_xavier"][1]["knn_match_in_sum"]


def test_spaces_are_compared_over_their_shared_tokens(report) -> None:
    folder, _ = report
    results = json.loads((folder / "results.json").read_text())
    pairs = {(p["a"], p["b"]): p for p in results["knn_match"]}
    assert set(pairs) == {("wide", "narrow"), ("wide", "bert"), ("narrow", "bert")}
    turned = pairs["wide", "narrow"]
    assert turned["shared_tokens"] == 120
    assert turned["inner_product"] > 0.97 and turned["cosine"] > 0.97  # a rotation keeps all neighbors
    other = pairs["wide", "bert"]
    assert other["shared_tokens"] == 60 and other["cosine"] == pytest.approx(other["chance"], abs=0.05)
    neighbors = results["neighbors"]
    assert len(neighbors) == 8
    for by_space in neighbors.values():
        assert len(by_space["wide"]) == 6


def test_table_4(report) -> None:
    folder, _ = report
    results = json.loads((folder / "results.json").read_text())
    parts = results["spaces"]["wide"]["table_4"]
    assert (parts["all"]["applicable"], parts["all"]["total"], parts["all"]["lowercase"]) == (2, 3, True)
    rows = parts["all"]["rows"]
    assert len(rows) == 8 and list(rows)[-1].endswith("projected out")
    assert all(score["applicable"] == 2 for row in rows.values() for score in row.values())
    assert 1 < parts["all"]["span_dimensions"]["64"] < parts["all"]["span_dimensions"]["5000"] <= 20
    assert "2 of 3 questions apply, in lower case" in (folder / "report.md").read_text()


def test_sources_are_found_in_the_data_folder_and_a_report_needs_one_source(sources: Path) -> None:
    done = analyze(
        "--sources", "wide.txt", "--output_dir", "one", "--lengths", "4", "--k", "3", folder=sources
    )
    assert done.returncode == 0, done.stderr[-3000:]
    text = (sources / "one" / "report.md").read_text()
    assert "# Embedding spaces: wide\n" in text and "## How far the spaces agree" not in text
    assert "order of the rows (longer words come later: +" in text  # the file has the frequent words first


def test_bad_input_ends_with_one_sentence(sources: Path, tmp_path: Path) -> None:
    done = analyze(
        "--sources", "wide.txt", "--k", "160", "--output_dir", str(tmp_path / "out"), folder=sources
    )
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert "error: --k 160: each of the 160 rows of wide has 159 others" in done.stderr
    for names in (["a", "b"], ["a", "a"]):
        with pytest.raises(InvalidArgumentError, match=r"--names a .: give"):
            spaces.load_spaces([str(sources / "narrow.txt")] * (1 if names[1] == "b" else 2), names)
    with pytest.raises(DataNotFoundError, match=r"'absent.txt' is no file or folder here"):
        spaces.load_spaces(["absent.txt"])
    twice = spaces.load_spaces([str(sources / "narrow.txt")] * 2)
    assert [space.name for space in twice] == ["narrow", "narrow (2)"]
    for settings, message in (
        ({"sample": 0}, "--sample 0: expected a whole number of 1 or more"),
        ({"lengths": [1]}, "--lengths has 1: expected a whole number of 2 or more"),
        ({"lengths": []}, "--lengths : give lengths"),
        ({"k": 0}, "--k 0: expected a whole number of 1 or more"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            given = {"sources": [str(sources / "narrow.txt")], "output_dir": str(tmp_path / "o"), **settings}
            analyze_embeddings(AnalysisArguments(**given), "")
    named = AnalysisArguments(
        [str(sources / "narrow.txt")], names=["corpus"], corpus="captions:en", output_dir=str(tmp_path / "o")
    )
    with pytest.raises(
        InvalidArgumentError, match="keeps 'corpus' for the digest of --corpus; give the table"
    ):
        analyze_embeddings(named, "")


SMALL = {"k": 3, "sample": 20, "lengths": [4, 8]}


@pytest.mark.parametrize("name", ["report.md", "report.html", "figures"])
def test_a_page_of_somebody_else_is_not_replaced(sources: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("by hand")
    args = AnalysisArguments([str(sources / "narrow.txt")], output_dir=str(tmp_path), **SMALL)
    with pytest.raises(RunFolderError, match=f"holds {name}, and no older report: name another folder"):
        analyze_embeddings(args, "")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["by hand"]


def test_a_report_replaces_an_older_one_whole_or_not_at_all(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def refuse(*_: object) -> str:
        raise KeyboardInterrupt

    both = [str(sources / name) for name in ("narrow.txt", "data/wide.txt")]
    older = AnalysisArguments(both, output_dir=str(tmp_path / "out"), html=True, **SMALL)
    newer = replace(older, sources=both[1:], html=False)
    monkeypatch.setattr("hf_embinit.report.text.render_report", refuse)
    with pytest.raises(KeyboardInterrupt):
        analyze_embeddings(older, "")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    analyze_embeddings(older, "")
    (tmp_path / "out" / "figures" / "mine.png").write_text("by hand")
    before = content()
    monkeypatch.setattr("hf_embinit.report.text.render_report", refuse)
    with pytest.raises(KeyboardInterrupt):
        analyze_embeddings(newer, "")
    assert content() == before
    monkeypatch.undo()
    analyze_embeddings(newer, "")
    gone = {Path(path).name for path in before.keys() - content().keys()}
    assert gone == {"report.html", "distribution_2.png", "match.png"}
    assert not any(path.name.startswith(".") for path in tmp_path.rglob("*"))


def test_a_place_that_cannot_be_written_is_told_before_any_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    args = AnalysisArguments(["absent.txt"], output_dir=str(tmp_path / "file"))
    with pytest.raises(FileWriteError, match=r"--output_dir .*file cannot be written: .*is a file, not"):
        analyze_embeddings(args, "")


def test_a_name_that_is_no_utf8_is_told_before_any_work(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/w\xf6rter.txt")
    Path(name).write_bytes((sources / "narrow.txt").read_bytes())
    assert main(["analyze", name, "--output_dir", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "w\\udcf6rter.txt is no UTF-8, as what is written has to be: rename it, or set" in said
    assert said.startswith("error: --sources ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "rows, message",
    [
        (torch.zeros(4, 3), "bad has 0 rows that are neither special nor zero"),
        (torch.ones(4, 3), "which are all the same"),
        (1e30 * torch.eye(4), "bad has values up to 1e\\+30: rows so long cannot be measured in float32"),
        (torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [1.0, 3.0]]), "bad has NaN or infinite values"),
    ],
)
def test_tables_that_cannot_be_judged(monkeypatch, rows, message) -> None:
    vectors = PretrainedVectors([f"word{i}" for i in range(len(rows))], rows, "bad")
    monkeypatch.setattr(spaces, "load_vectors", lambda *a, **k: vectors)
    with pytest.raises(InvalidArgumentError, match=message):
        spaces.load_space("bad")


def test_pairs_that_share_too_little_are_left_open() -> None:
    def space(name: str, tokens: list[str]) -> spaces.Space:
        matrix = torch.randn(len(tokens), 6, generator=torch.Generator().manual_seed(len(name)))
        return spaces.Space(name, name, name, "words", tokens, matrix, len(tokens))

    a, b = space("a", ["x", "y", "z", "w"]), space("bb", ["y", "v", "u", "t"])
    (pair,) = analysis.match_matrix([a, b], 2, 10, torch.Generator().manual_seed(0))
    assert pair["shared_tokens"] == 1 and pair["cosine"] is None and pair["chance"] is None


def test_the_thresholds_are_those_of_table_2() -> None:
    """Kim et al. 2024, Table 2: sd and vocabulary (Table 5) of tables that did no harm, and that did."""
    bert = [(0.04, 11_000), (0.04, 26_000), (0.05, 6_300), (0.05, 15_000)]
    glove = [(0.37, 13_000), (0.37, 79_000), (0.37, 7_800), (0.33, 27_000)]
    positions = 0.695  # sd of the position encodings, at either width
    assert f"{max(sd * math.sqrt(768) / positions for sd, _ in bert):.1f}" == str(analysis.HARMLESS)
    assert f"{min(sd * math.sqrt(300) / positions for sd, _ in glove):.1f}" == str(analysis.HARMFUL)
    assert [f"{sd / xavier_std(n, 768):.1f}" for sd, n in bert] == ["3.1", "4.6", "3.0", "4.4"]
    assert int(min(sd / xavier_std(n, 300) for sd, n in glove)) == 23
    for width in ((23.6, 9.2), (3.0, 8.0), (3.0, 2.5), (0.9, 0.1)):
        assert analysis.advice(*width) == "pretrained_xavier"
    fresh = xavier_bound(500, 32) * (2 * torch.rand(500, 32, generator=torch.Generator().manual_seed(0)) - 1)
    ratio = float(fresh.std()) / xavier_std(500, 32)
    assert ratio == pytest.approx(1, abs=0.01) and analysis.advice(0.99 * ratio, 0.4) == "pretrained"
    assert analysis.advice(3.0, 1.6) == analysis.advice(6.9, 1.6) == "pretrained"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.0, "0"), (1e-6, "1.00e-06"), (-4.7e-5, "-4.70e-05"), (0.0123, "0.0123"), (4.82, "4.82")),
        *((792.4, "792"), (-123456.0, "-123456"), (1e19, "1.00e+19")),
    ],
)
def test_numbers_have_three_digits_or_an_exponent(value: float, shown: str) -> None:
    assert wording.number(value) == shown


def test_a_mean_is_0_beside_its_sd() -> None:
    assert wording.mean_and_sd({"mean": 2e-9, "std": 0.04}) == "0 (0.0400)"
    assert wording.mean_and_sd({"mean": 2e-6, "std": 1e-6}) == "2.00e-06 (1.00e-06)"
    assert wording.times(0.9993) == "1.0" and wording.times(3e7) == "3.0e+07"


def test_words_that_are_there_twice_are_counted(tmp_path: Path) -> None:
    lines = [f"w{i} {i} {i * i}" for i in range(1, 11)]
    (tmp_path / "v.txt").write_text("\n".join([*lines, *lines[:3]]) + "\n")
    space = spaces.load_space(str(tmp_path / "v.txt"))
    assert (space.rows_read, len(space.tokens), space.left_out["repeated"]) == (13, 10, 3)


def test_chance() -> None:
    sets = [set(c) for c in itertools.combinations(range(6), 2)]
    mean = sum(len(a & b) / len(a | b) for a in sets for b in sets) / len(sets) ** 2
    assert analysis.chance_match(2, 6) == pytest.approx(mean)


def test_the_order_of_the_rows_is_told_from_the_length_of_words() -> None:
    words = caption_words(400)
    matrix = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    ordered = spaces.Space("a", "a", "a", "words", words, matrix, 400)
    assert analysis.frequency(ordered)["by"] == "rows"
    by_alphabet = spaces.Space("a", "a", "a", "words", sorted(words), matrix, 400)
    assert analysis.frequency(by_alphabet)["by"] is None


@pytest.mark.parametrize(("sd", "as_it_is", "moved", "told"), [
    (0.4, 1.0, 0.9, "narrower than random rows"),
    (0.4, 1.0, 1.0, ""),
    (9.0, 0.3, 1.0, ""),
    (9.0, 1.0, 0.9, ""),
    (1.0, 0.8, 1.0, "the order of words decides"),
    (1.0, 1.0, 1.0, ""),
])  # fmt: skip
def test_the_advice_is_weighed_against_its_own_numbers(sd, as_it_is, moved, told) -> None:
    shape = {"num_embeddings": 50, "embedding_dim": 16}
    values = {"table": shape, "sd_over_xavier": sd, "scaled_sd_over_positions": sd}
    curves = {
        init: [{"num_positions": 64, "position_accuracy_in_sum": accuracy}]
        for init, accuracy in (("pretrained", as_it_is), ("pretrained_xavier", moved))
    }
    space = {"statistics_in_corpus": None, "statistics": values, "absorption": curves}
    line = wording.headline("a", space, None)
    more = line.split("after `pretrained_xavier`.")[1]
    assert told in more and bool(told) == bool(more)
