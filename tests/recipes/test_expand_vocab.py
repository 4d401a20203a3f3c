"""`recipes/expand_vocab.py` as a user starts it: a small study of the real command line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from builders.recipes import Done, run_recipe
from builders.tiny_tokenizers import model, texts, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_embinit.manifest import read_manifest
from hf_embinit.records.record import read_record
from hf_embinit.tasks.language_modeling import Packed, load_texts, pack_blocks, spread_blocks
from hf_embinit.training.expansion import comparison


def start(*arguments: str) -> Done:
    return run_recipe("expand_vocab", *arguments)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A finished study of two initialisers, its flags and what it printed."""
    folder = tmp_path_factory.mktemp("study")
    t = tokenizer("byte_level")
    model("gpt2", len(t)).save_pretrained(folder / "model")
    t.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    for split, some in (("train", texts()[:400]), ("validation", texts()[400:])):
        rows = [json.dumps({"text": text}) + "\n" for text in some]
        (folder / "data" / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    flags = ["--model", str(folder / "model"), "--dataset", str(folder / "data"), "--num_new_tokens", "6"]
    flags += ["--output_dir", str(folder / "runs"), "--block_size", "32", "--seed", "3", "--use_cpu"]
    flags += ["--max_steps", "4", "--eval_steps", "2", "--inits", "zeros", "mean", "--disable_tqdm", "true"]
    done = start(*flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "runs", flags, done.stdout


def test_each_initialiser_has_a_record_a_model_and_a_card(study) -> None:
    folder, _, _ = study
    for init in ("zeros", "mean"):
        record = read_record(folder / init)
        assert (record.task, record.init, record.seed) == ("language_modeling", init, 3)
        assert [row["step"] for row in record.history] == [0, 2, 4]
        m = record.metrics
        assert m["new_tokens"] == 6 and 0 <= m["kl_median"] <= m["kl_max"] and m["kl_mean"] <= m["kl_max"]
        assert m["kl_bound"] == pytest.approx(math.log1p(6 / 320))
        assert m["validation_loss"] == record.history[-1]["validation_loss"]
        assert m["validation_perplexity"] == pytest.approx(math.exp(m["validation_loss"]))
        assert m["validation_word_perplexity"] > m["validation_perplexity"]
        trained = AutoModelForCausalLM.from_pretrained(folder / init)
        step_0 = AutoModelForCausalLM.from_pretrained(folder / init / "init")
        t = AutoTokenizer.from_pretrained(folder / init)
        assert trained.config.vocab_size == step_0.config.vocab_size == len(t) == 326
        rows = step_0.get_input_embeddings().weight
        expected = torch.zeros(6, 16) if init == "zeros" else rows[:320].mean(0).expand(6, 16)
        torch.testing.assert_close(rows[320:], expected, atol=1e-6, rtol=1e-5)
        assert not torch.equal(trained.get_input_embeddings().weight, rows)
        (event,) = read_manifest(folder / init)
        assert event["event"] == "expand_vocabulary" and event["init"] == init
        card = (folder / init / "README.md").read_text(encoding="utf-8")
        assert f"init:{init}" in card and "Hewitt" in card
        assert (folder / init / "figures" / "kl_before_training.png").stat().st_size > 5000
    bound = read_record(folder / "mean").metrics["kl_bound"]
    assert read_record(folder / "mean").metrics["kl_max"] <= bound + 1e-9


def test_the_comparison(study) -> None:
    folder, _, printed = study
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["runs"]) == ["zeros", "mean"] and len(summary["new_tokens"]) == 6
    assert summary["runs"]["mean"]["metrics"] == read_record(folder / "mean").metrics
    assert summary["before_expansion"]["validation_bits_per_byte"] > 0
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert page in printed and "| zeros |" in page and "| mean |" in page
    for name in ("kl_before_training", "bits_per_byte"):
        assert f"figures/{name}.png" in page
        assert (folder / "figures" / f"{name}.png").stat().st_size > 5000


def test_scores_are_those_of_the_weights_that_are_kept_and_of_no_smoothed_loss(study, tmp_path) -> None:
    _, flags, _ = study
    flags = [*flags[: flags.index("mean")], *flags[flags.index("mean") + 1 :]]  # zeros alone
    text = (Path(flags[3]) / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    texts_of_validation = [json.loads(line)["text"] for line in text]

    def scored(folder: Path) -> float:
        t = AutoTokenizer.from_pretrained(folder)
        blocks = spread_blocks(pack_blocks(texts_of_validation, t, 32).blocks, 64)
        ids = torch.tensor(blocks["input_ids"][:])
        with torch.no_grad():
            return AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids, labels=ids).loss.item()

    away = ["--output_dir", str(tmp_path / "worse"), "--save_steps", "2", "--save_strategy", "steps"]
    worse = ["--load_best_model_at_end", "true", "--metric_for_best_model", "loss", "--learning_rate", "3"]
    done = start(*flags, *away, *worse, "--label_smoothing_factor", "0.4")
    assert done.returncode == 0, done.stderr[-3000:]
    record = read_record(tmp_path / "worse" / "zeros")
    start_of, *later = [row["validation_loss"] for row in record.history]
    assert start_of < min(later) and later[0] < later[1]  # the start is best, and is no checkpoint
    assert record.metrics["validation_loss"] == pytest.approx(min(later), rel=1e-5)
    assert record.metrics["validation_loss"] == pytest.approx(scored(tmp_path / "worse" / "zeros"), rel=1e-5)
    assert record.best_epoch == record.history[1]["epoch"]

    away = ["--output_dir", str(tmp_path / "unseen"), "--eval_strategy", "no"]
    done = start(*flags, *away)
    assert done.returncode == 0, done.stderr[-3000:]
    record = read_record(tmp_path / "unseen" / "zeros")
    assert [row["step"] for row in record.history] == [0]
    assert record.metrics["validation_loss"] < record.metrics["step_0_validation_loss"]
    assert record.metrics["validation_loss"] == pytest.approx(scored(tmp_path / "unseen" / "zeros"), rel=1e-5)


def test_a_score_that_is_no_number_is_said_in_the_comparison(study) -> None:
    """A record has None for it."""
    runs = {name: read_record(study[0] / name).metrics for name in ("zeros", "mean")}
    before = json.loads((study[0] / "summary.json").read_text(encoding="utf-8"))["before_expansion"]
    lost = runs["zeros"] | {"validation_bits_per_byte": None, "validation_word_perplexity": None}
    page = comparison("two", before, {**runs, "zeros": lost})
    (zeros,) = [line for line in page.splitlines() if line.startswith("| zeros")]
    (mean,) = [line for line in page.splitlines() if line.startswith("| mean")]
    assert zeros.count("diverged") == 2 and "diverged" not in mean


def test_going_on_runs_what_is_missing_with_the_same_settings_alone(study) -> None:
    folder, flags, _ = study
    times = {init: (folder / init / "results.json").stat().st_mtime_ns for init in ("zeros", "mean")}
    start_of, end = flags[: flags.index("mean") + 1], flags[flags.index("mean") + 1 :]
    done = start(*start_of, "mean_cov", *end)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {init: (folder / init / "results.json").stat().st_mtime_ns for init in times} == times
    assert "| mean_cov |" in (folder / "README.md").read_text(encoding="utf-8")
    other = start(*flags, "--max_steps", "6")
    assert other.returncode == 1
    assert "error: --max_steps is 6, but" in other.stderr
    other = start(*flags, "--weight_decay", "0.5")
    assert other.returncode == 1 and "error: --weight_decay is 0.5, but" in other.stderr


def test_an_unknown_initialiser_ends_it_before_any_work(tmp_path) -> None:
    done = start("--inits", "meen", "--output_dir", str(tmp_path / "runs"))
    assert done.returncode == 1 and "Unknown init 'meen'. Did you mean: mean" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_perplexities_that_compare_do_not_depend_on_the_tokenizer() -> None:
    """A text of 100 words and 500 bytes, 300 nats in all, in 200 or in 150 tokens."""
    scores = [Packed(None, tokens, 100, 500).scores(300 / tokens) for tokens in (200, 150)]  # type: ignore[arg-type]
    assert (
        scores[0]["word_perplexity"]
        == pytest.approx(scores[1]["word_perplexity"])
        == pytest.approx(math.e**3)
    )
    assert scores[0]["bits_per_byte"] == pytest.approx(scores[1]["bits_per_byte"])
    assert scores[0]["bits_per_byte"] == pytest.approx(300 / math.log(2) / 500)
    assert scores[0]["perplexity"] != pytest.approx(scores[1]["perplexity"])


def test_blocks_are_full_and_texts_are_told_apart() -> None:
    t = tokenizer("byte_level")
    packed = pack_blocks(["the man", "a dog"], t, 4)
    ids = t("the man")["input_ids"] + [t.eos_token_id] + t("a dog")["input_ids"] + [t.eos_token_id]
    assert packed.tokens == len(ids) and (packed.words, packed.utf8_bytes) == (4, 12)
    assert [i for block in packed.blocks["input_ids"] for i in block] == ids[: len(ids) // 4 * 4]
    data = load_texts("captions")
    assert set(data) == {"train", "validation", "test"} and len(data["train"]) == 10_000
