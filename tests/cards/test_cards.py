"""Model cards: generic over tasks, nothing unmeasured, metadata that huggingface_hub reads back."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from builders.records import SIGNATURE, make_record
from huggingface_hub import ModelCard
from transformers import GPT2Config, GPT2LMHeadModel

from hf_embinit.cards.cards import (
    checkpoint_page,
    describe_manifest,
    eval_result_entries,
    eval_results,
    hub_dataset,
    render_card,
    write_card,
)
from hf_embinit.cards.text import example, limits, settings_rows
from hf_embinit.studies import other_settings, paper_rows
from hf_embinit.tasks import translation
from hf_embinit.training.loop import _base_model

TABLE = {
    "name": "model.encoder.embed_tokens.weight",
    "side": "source",
    "rows": [0, 40],
    "source": {"name": "de.300d.txt", "revision": None, "digest": "sha256:abcd"},
    "coverage": {"types": 36, "types_found": 27, "tokens": 1000, "tokens_found": 990},
}
MANIFEST = [
    {
        "event": "initialize",
        "init": "xavier",
        "seed": 3,
        "options": {},
        "tables": [TABLE],
        "version": "0.1.0",
    },
    {"event": "resize", "side": "source", "rows": [0, 10]},
]


def test_names_from_elsewhere_are_text_on_one_line():
    name = "a\n---\n<script>alert(1)<!-- *x*"
    arguments = {"source_lang": "de\nlicense: mit", "target_lang": "en"}
    card = render_card(make_record(dataset=f"/data/{name}", init="x\ny", arguments=arguments))
    assert "<script" not in card.text.replace("\\<", "") and "\n# a --- \\<script>" in str(card)
    data = card.data.to_dict()
    assert data["language"] == ["de license: mit", "en"] and data["tags"][1] == "init:x y"
    (model,) = data["model-index"]
    assert "\n" not in json.dumps(data).replace("\\n", "\n") and model["name"].startswith("a --- <script>")
    assert hub_dataset(make_record(dataset="a/b\nc: d")) is None


def test_the_card_links_the_page_of_a_tracker_and_nothing_else():
    record = make_record()
    record.runtime["wandb"] = "https://wandb.ai/me/embeddings/runs/x"
    assert ("training curves", "[wandb](<https://wandb.ai/me/embeddings/runs/x>)") in settings_rows(
        record, None
    )
    record.runtime["wandb"] = "javascript:alert(1)"
    assert not any(label == "training curves" for label, _ in settings_rows(record, None))


def test_the_model_that_a_run_began_with_is_named_where_it_came_from_the_hub():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=16))
    model.name_or_path = "owner/name"
    assert _base_model(model) == {}
    model.config._commit_hash = "a" * 40
    record = make_record()
    assert "base_model" not in render_card(record).data.to_dict()
    record.runtime.update(_base_model(model))
    assert render_card(record).data.to_dict()["base_model"] == "owner/name"
    assert record.runtime["base_model"]["revision"] == "a" * 40


@pytest.mark.parametrize(
    ("auto", "sample", "code"),
    [
        ("AutoModelForSeq2SeqLM", {"source": "a", "prediction": 'b"`\x1b['}, "model.generate(**inputs)"),
        ("AutoModelForSequenceClassification", {"premise": "a", "b": "c", "prediction": "yes"}, '"a", "c"'),
        ("AutoModelForSequenceClassification", {"text": "a", "prediction": 2.5}, None),
        ("AutoModelForCausalLM", {"prompt": "a", "prediction": "b"}, None),
        ("AutoModelForSeq2SeqLM", {}, None),
    ],
)
def test_the_example_of_a_card_is_code(auto, sample, code):
    text = example(auto, {"id2label": {"0": "no", "1": "yes"}}, [sample] if sample else [])
    assert (code in text) if code else text == ""
    assert "\x1b" not in text
    compile(text, "example", "exec")


def test_card_of_a_translation_run(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "init").mkdir()
    (tmp_path / "figures" / "learning_curve.png").write_bytes(b"")
    config = {"architectures": ["XForConditionalGeneration"], "model_type": "vanilla_transformer"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    samples = [{"source": "ein | Hund\n", "prediction": "a dog"}]
    path = write_card(tmp_path, make_record(), manifest=MANIFEST, samples=samples)
    card = ModelCard.load(path)

    metadata = card.data.to_dict()
    assert metadata["pipeline_tag"] == "translation" and metadata["language"] == ["de", "en"]
    assert metadata["datasets"] == ["bentrevett/multi30k"] and "license" not in metadata
    scores = {r.metric_name: r for r in card.data.eval_results}
    assert scores["BLEU"].metric_value == 35.1234 and scores["BLEU"].dataset_split == "test"
    assert scores["BLEU"].metric_args == {"signature": SIGNATURE}
    assert set(scores) == {"BLEU", "loss (nats)"}  # the validation BLEU gives way to the test set's

    text = card.text
    assert "27 of 36 tokens found (75.0%), 99.0% of their occurrences" in text
    assert "sha256:abcd" in text and "in the folder `init`" in text and "11.0 million parameters" in text
    assert f"| BLEU, test | 35.12 | `{SIGNATURE.replace('|', chr(92) + '|')}` |" in text
    assert "after epoch 2 of 3" in text and "seed 3" in text
    assert "![Learning curve: losses and score" in text
    assert "| ein \\| Hund | a dog |" in text
    assert "AutoModelForSeq2SeqLM.from_pretrained" in text and "import hf_embinit" in text
    assert "| train set | 29,000 rows, SHA-256 of texts and labels `f00d` |" in text
    assert "| vectors, source | 7,851 rows, SHA-256 of tokens and rows `beef` |" in text
    assert "| their text (vectors, source) | not recorded |" in text
    assert "a CPU, 2 processes" in text and "1,234 s" in text
    assert "kim2024" in text and "post2018" in text and "glorot2010" in text and "hewitt" not in text
    assert not re.search(r"\bNone\b|\bnan\b|Undefined|\{\{", text)
    assert "\n\n\n\n" not in text

    (entries,) = (tmp_path / ".eval_results").iterdir()
    (entry,) = yaml.safe_load(entries.read_text())
    assert entry["dataset"] == {"id": "bentrevett/multi30k", "task_id": "bleu"} and entry["value"] == 35.1234
    assert SIGNATURE in entry["notes"]


@pytest.mark.parametrize(
    "provenance, said",
    [
        (
            {
                "corpora": [{"corpus": "tatoeba:de"}, {"corpus": "multi30k:de"}],
                "corpus_tokens": 1_600_000,
                "method": "GloVe",
            },
            "tatoeba:de, multi30k:de (1,600,000 tokens); GloVe",
        ),
        (
            {"method": "word2vec | 2013", "text": "Google News\n100 billion tokens"},
            "Google News 100 billion tokens; word2vec \\| 2013",
        ),
        ({"corpora": "captions", "corpus_tokens": "many"}, "not recorded"),
        ({"corpora": ["captions"], "method": "fastText"}, "not recorded; fastText"),
        ("GloVe", "not recorded"),
        (None, "not recorded"),
    ],
)
def test_a_card_says_what_its_vectors_were_trained_on(provenance, said):
    data = {"vectors, shared": {"rows": 3, "sha256": "beef", "provenance": provenance}}
    rows = dict(settings_rows(make_record(data=data), None))
    assert rows["their text (vectors, shared)"] == said


@pytest.mark.parametrize(
    "task, metrics, architecture, auto",
    [
        ("classification", {"validation_accuracy": 0.81}, "BertForSequenceClassification", "SequenceClass"),
        ("language_modeling", {"test_perplexity": 48.0}, "GPT2LMHeadModel", "CausalLM"),
        ("language_modeling", {}, "Unheard", "CausalLM"),
        ("tagging", {}, "Unheard", "AutoModel.from"),
    ],
)
def test_card_of_any_task_says_only_what_was_measured(tmp_path, task, metrics, architecture, auto):
    record = make_record(
        task=task,
        dataset=str(tmp_path),
        metrics=metrics,
        best_epoch=None,
        history=[],
        arguments={},
        embedding_statistics={},
        runtime={},
        signature={},
    )
    card = render_card(record, config={"architectures": [architecture]})
    text = str(card)
    assert auto in text and "BLEU" not in text and "tokens/s" not in text and "post2018" not in text
    assert "Figures" not in text and "Samples" not in text and "mean row norm" not in text
    assert "carries no record" in text and "epoch" not in text and "in the folder" not in text
    assert not re.search(r"\bNone\b|\bnan\b|Undefined", text)
    assert len(card.data.eval_results or []) == len(metrics)
    for value in metrics.values():
        assert f"{value:.4g}" in text


def test_card_is_deterministic_and_loads_from_the_hub_name():
    arguments = {"manifest": MANIFEST, "repo_id": "user/name", "license": "apache-2.0"}
    card = render_card(make_record(), **arguments, config={"auto_map": {"AutoModel": "x"}})
    assert str(card) == str(render_card(make_record(), **arguments, config={"auto_map": {"AutoModel": "x"}}))
    assert 'from_pretrained("user/name", trust_remote_code=True)' in card.text
    assert card.data.license == "apache-2.0" and card.data.model_name == "name"
    twin = render_card(make_record(), **arguments, config={"auto_map": {}}, model_folder="twin-1").text
    assert 'from_pretrained("user/name", subfolder="twin-1"' in twin
    local = render_card(make_record(), config={"auto_map": {}}, model_folder="twin-1").text
    assert 'from_pretrained("path/to/this/folder/twin-1"' in local and "subfolder" not in local


@pytest.mark.parametrize(
    "dataset, hub_id",
    [
        ("multi30k", "bentrevett/multi30k"),
        ("captions", None),
        ("user/data", "user/data"),
        ("./data/x", None),
        ("/data/x", None),
        ("data.csv", None),
    ],
)
def test_hub_dataset(dataset, hub_id):
    assert hub_dataset(make_record(dataset=dataset)) == hub_id


def test_manifest_in_words_knows_the_registry():
    lines = describe_manifest(MANIFEST)
    assert len(lines) == 3 and "Glorot" in lines[0] and "rows 0 to 39" in lines[1]
    assert "the others drawn at random" in lines[1]
    (line,) = describe_manifest([{"event": "initialize", "init": "someone_elses", "seed": 1}])
    assert line == "- **initialize**: `someone_elses`, seed 1."


def test_the_card_of_a_diverged_run_says_so_and_claims_no_score(tmp_path):
    nan = float("nan")
    history = [{"epoch": 1.0, "step": 5, "train_loss": nan, "validation_loss": nan}]
    path = write_card(tmp_path, make_record(history=history, best_epoch=None), manifest=MANIFEST)
    card = ModelCard.load(path)
    assert "**It diverged**: a loss was no finite number." in card.text
    assert not card.data.eval_results and "35.12" not in card.text


def test_a_limit_that_was_not_reached_is_not_told():
    record = make_record(
        arguments={"max_train_samples": 100, "max_eval_samples": 50, "max_predict_samples": 5}
    )
    record.data = {"train": {"rows": 80}, "validation": {"rows": 20}, "test": {"rows": 5}}
    told = " ".join(limits(record))
    assert "the first 5 samples" in told and "100" not in told and "50" not in told
    record.data["train"]["rows"] = 100
    assert "Trained on 100 samples" in " ".join(limits(record))


def test_a_language_model_that_went_on_is_told_so():
    arguments = {"model": "models/stories260K", "language": "en"}
    record = make_record(task="language_modeling", init="kept", tokenizer="stories260K", dataset="/data/mine")
    record.arguments = arguments
    card = render_card(record)
    assert "It started from `stories260K`, its embeddings kept" in card.text
    assert "language" not in card.data.to_dict()
    record.init = "xavier"
    assert "It started from `stories260K`, its embeddings initialized by `xavier`" in render_card(record).text


def test_the_page_of_a_retokenized_checkpoint_tells_its_run():
    event = {"event": "replace_tokenizer", "init": "fvt"}
    assert "What else was done to it is not recorded." in checkpoint_page("me/x", [event], {})
    run = make_record(task="retokenization", dataset="pairs", init="fvt", arguments={"max_steps": 2}, seed=4)
    run.metrics = {"before_accuracy": 0.05, "accuracy": None, "seconds": 3.0}
    page = checkpoint_page("me/x", [event], {}, None, run)
    assert (
        "A run of `recipes/retokenize.py`, seed 4; after the change it was trained on pairs for 2 steps."
        in page
    )
    assert "Its scores on pairs: before accuracy 0.05.\n" in page and "not recorded" not in page
    run.arguments["max_steps"] = 0
    assert "after the change it was not trained." in checkpoint_page("me/x", [event], {}, None, run)


def test_settings_that_are_not_a_papers_are_told():
    preset = translation.preset("multi30k", "words") | translation.TASK.settings | {"max_steps": -1}
    record = make_record(dataset="multi30k", init="xavier", tokenizer="words", arguments=preset)
    assert paper_rows(record) and not other_settings(record)
    record.arguments |= {
        "label_smoothing_factor": 0.2,
        "norm_position": "pre",
        "d_ff": 16,
        "weight_decay": 0.5,
    }
    assert other_settings(record) == [
        "d_ff 16 instead of 512",
        "norm_position pre instead of post",
        "label_smoothing_factor 0.2 instead of 0",
        "weight_decay 0.5 instead of 0",
    ]
    record.arguments["position_scale"] = 0.2
    assert not paper_rows(record)


def test_scores_of_a_part_of_a_split_are_not_those_of_the_data_set() -> None:
    cut = {"max_predict_samples": 50, "generation_num_beams": 4}
    record = make_record(arguments={**make_record().arguments, **cut})
    assert eval_result_entries(make_record()) and not eval_result_entries(record)
    assert {result.dataset_type for result in eval_results(record)} == {"multi30k"}
    assert "Of the test set the first 50 samples were scored." in limits(record)
    some = make_record(task="language_modeling", dataset="wikitext-2-v1", metrics={"validation_loss": 2.0})
    some.metrics |= {"validation_perplexity": 7.4, "validation_word_perplexity": 30.0}
    assert {entry.dataset_id for entry in eval_result_entries(some)} == {"Salesforce/wikitext"}
    some.arguments["max_eval_blocks"] = 4
    assert not eval_result_entries(some)
    assert "Of the validation set at most 4 sequences, spread over it, were scored." in limits(some)
    assert ["beams", "4"] in [list(map(str, row)) for row in settings_rows(record, None)]
