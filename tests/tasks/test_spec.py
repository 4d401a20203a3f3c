"""Tasks by name in one registry, and their words in one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import transformers
from builders import ROOT
from builders.records import make_record

from hf_embinit.cards.cards import hub_dataset, render_card, shown_scores
from hf_embinit.errors import UnknownNameError
from hf_embinit.records.aggregate import results_table
from hf_embinit.registry import DuplicateNameError
from hf_embinit.tasks import TASK_MODULES
from hf_embinit.tasks.spec import (
    LOSS,
    TASKS,
    DataSpec,
    Score,
    TaskSpec,
    get_task,
    list_tasks,
    register_task,
    task_of,
)


@pytest.fixture
def tagging() -> Iterator[TaskSpec]:
    """A task that the package does not know."""
    task = TaskSpec(
        "tagging",
        recipe="tag.py",
        datasets={"conll": DataSpec("conll", hub_id="eriktks/conll2003")},
        metrics={"f1": Score("span F1", digits=3, hub_name="seqeval"), "loss": LOSS},
        columns=("test_f1", "validation_loss", "switches"),
        drawn=("f1",),
        auto_class="AutoModelForTokenClassification",
        pipeline_tag="token-classification",
        also={"switches": Score("label switches a sentence", "switches", lower_is_better=True)},
    )
    yield register_task(task)
    TASKS.remove("tagging")


def test_tasks_are_found_by_name_like_initialisers_and_surgeries() -> None:
    assert [task.name for task in list_tasks()] == sorted(task.name for task in list_tasks())
    assert get_task("translation").recipe == "translate.py"
    with pytest.raises(UnknownNameError, match=r"Unknown task 'translatoin'. Did you mean: translation"):
        get_task("translatoin")
    with pytest.raises(DuplicateNameError, match="task 'translation' is registered already"):
        register_task(get_task("translation"))


def test_every_module_that_registers_a_task_is_imported_for_it() -> None:
    modules = (ROOT / "hf_embinit" / "tasks").glob("*.py")
    found = {path.stem for path in modules if "\nTASK = register_task(" in path.read_text("utf-8")}
    assert found == set(TASK_MODULES)


def test_a_record_leads_to_its_task() -> None:
    for name in ("translation", "classification", "language_modeling"):
        assert task_of(name, {}) is get_task(name)
    assert task_of("language_modeling", {"new_tokens": 5.0}) is get_task("vocabulary_expansion")
    assert get_task("vocabulary_expansion").record_name == "language_modeling"
    assert task_of("nothing", {}) is None


@pytest.mark.parametrize("task", list_tasks(), ids=lambda task: task.name)
def test_what_a_task_says_of_itself_is_there(task: TaskSpec) -> None:
    assert (ROOT / "recipes" / task.recipe).is_file()
    assert getattr(transformers, task.auto_class).__name__ == task.auto_class
    assert set(task.drawn) <= set(task.metrics)
    headers = [header for header, _ in map(task.column, task.columns)]
    assert len(set(headers)) == len(headers) == len(task.columns)


def test_the_words_of_a_new_task_reach_tables_and_cards(tagging: TaskSpec) -> None:
    metrics = {"test_f1": 0.81234, "validation_loss": 0.5, "switches": 3.0, "train_samples": 10}
    worse = make_record(task="tagging", dataset="conll", metrics={**metrics, "test_f1": 0.5}, init="glove")
    record = make_record(task="tagging", dataset="conll", metrics=metrics, signature={})
    header, _, first, second = results_table([worse, record]).splitlines()
    assert "| test span F1 | validation loss | switches |" in header
    assert "| 0.812 | 0.50 | 3.00 |" in first and "| 0.500 |" in second
    assert shown_scores(record) == [
        ("span F1, test", "0.8123", ""), ("loss (nats), validation", "0.5", ""),
        ("label switches a sentence", "3", ""),
    ]  # fmt: skip
    assert hub_dataset(record) == "eriktks/conll2003"
    card = render_card(record)
    assert card.data.pipeline_tag == "token-classification" and card.data.metrics == ["seqeval"]
    assert "AutoModelForTokenClassification.from_pretrained" in str(card) and "`recipes/tag.py`" in str(card)


def test_a_task_that_is_not_registered_still_has_a_table() -> None:
    table = results_table([make_record(task="tagging", metrics={"test_f1": 0.5})])
    assert "| test f1 | best epoch |" in table and "| 0.50 |" in table


def test_a_special_case_has_a_table_of_its_own() -> None:
    plain = make_record(task="language_modeling", metrics={"test_perplexity": 20.0})
    expanded = replace(plain, metrics={"kl_mean": 0.25, "new_tokens": 4.0})
    one, other = results_table([plain, expanded]).split("\n\n")
    assert "test perplexity" in one and "KL" not in one
    assert "KL before training" in other and "| 0.2500 |" in other
