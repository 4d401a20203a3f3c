"""Resizing the architectures that transformers ships: a representative set, or all with `-m sweep`.

A trained model is imitated: embeddings with a mean that is not zero, output biases around -5, 211 tokens.
After `patch` and a resize to 218: old logits unchanged, KL(p || p') within log(1 + 7 / 211), new ids as
input, a backward pass, `loss.backward()`, and an exact save and reload.
"""

from __future__ import annotations

import copy
import gc
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from builders import architectures
from builders.architectures import VOCAB, accepts_cache, build, inputs, logits_of, sequence_length, since
from packaging.version import Version

from hf_embinit.errors import UnsupportedModelError, VocabularyWarning
from hf_embinit.manifest import read_manifest
from hf_embinit.patching import patch, unpatch
from hf_embinit.tables import EmbeddingTables

NEW = 7
CHECKS = (
    *("resize", "as plain", "forward", "old logits", "bound"),
    *("new ids", "backward", "loss", "ties", "reload"),
)

NO_SINGLE_VOCABULARY = {
    "EncoderDecoderModel",  # two models with a vocabulary each
    "FSMTForConditionalGeneration",  # two dictionaries
    "MusicgenForCausalLM",  # a table for each audio codebook
    "MusicgenMelodyForCausalLM",
}
NOT_BUILT = {
    "Gemma3nForConditionalGeneration",  # needs timm
    "Gemma4AssistantForCausalLM",  # its config allows no number of layers but one that its own check refuses
    "Gemma4UnifiedAssistantForCausalLM",
}


@dataclass
class Outcome:
    """What happened to one class in one variant."""

    name: str
    variant: str
    passed: set[str] = field(default_factory=set)
    refused: str | None = None
    problem: str | None = None

    @property
    def good(self) -> bool:
        return self.passed == set(CHECKS)


def imitate_training(model: transformers.PreTrainedModel) -> None:
    """Embeddings with a common mean, output biases around -5."""
    tables = EmbeddingTables(model)
    generator = torch.Generator().manual_seed(1)
    for table in tables.own_tables:
        shape = tables.read(table).shape
        common = 0.2 * torch.randn(shape[1], generator=generator)
        tables.write(table, 0.3 * torch.randn(shape, generator=generator) + common)
    for table in tables.output_tables:
        biases = [torch.randn(bias.shape, generator=generator) - 5 for bias in tables.biases(table)]
        tables.write_bias(table, biases)


def ties(model: transformers.PreTrainedModel) -> set[frozenset[str]]:
    """Groups of parameter names that are one tensor."""
    groups: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def unlike_plain(
    model: transformers.PreTrainedModel, plain: transformers.PreTrainedModel
) -> list[tuple[object, ...]]:
    """Attributes of modules, and values of the config, that are not as transformers' own resize leaves them.

    A size that transformers forgets to change does not count, nor do rows beyond the vocabulary.
    """
    try:
        plain.resize_token_embeddings(VOCAB + NEW, mean_resizing=False)
    except Exception:
        return []  # no model to compare with
    unpatch(model)
    different: list[tuple[object, ...]] = []
    ours = dict(model.named_modules(remove_duplicate=False))
    extra = any(table.extra_rows for table in EmbeddingTables(model).tables)

    def compare(where: str, key: str, mine: object, theirs: object) -> None:
        forgotten = theirs == VOCAB or (key == "unpadded_vocab_size")
        beyond = extra and key in ("num_embeddings", "vocab_size")
        if mine != theirs and not forgotten and not beyond:
            different.append((where, key, mine, theirs))

    for name, module in plain.named_modules(remove_duplicate=False):
        if type(module) is not type(ours.get(name)):
            continue
        for key, value in vars(module).items():
            if isinstance(value, bool | int | float | str | None) and key != "training":
                compare(name, key, vars(ours[name]).get(key, "absent"), value)
    mine, theirs = (dict(leaves(m.config.to_dict())) for m in (model, plain))
    for path, value in theirs.items():
        compare("config", path, mine.get(path, "absent"), value)
    patch(model)
    return different


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value in nested dictionaries, with the keys that lead to it."""
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{path}.{key}" if path else str(key))


def check(name: str, variant: str) -> Outcome:
    """Builds, resizes and examines one class; `variant` is `stock`, `tied` or `untied`."""
    outcome = Outcome(name, variant)
    model = build(name, **({} if variant == "stock" else {"tie_word_embeddings": variant == "tied"}))
    try:
        imitate_training(model)
        length = sequence_length(name)
        ids = torch.randint(10, VOCAB - 15, (2, length), generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            old = logits_of(model, ids)
        tied_before = ties(model)
        plain = copy.deepcopy(model)
        patch(model).resize_token_embeddings(VOCAB + NEW)
    except UnsupportedModelError as error:
        outcome.refused = str(error)
        return outcome
    outcome.passed.add("resize")
    different = unlike_plain(model, plain)
    if not different:
        outcome.passed.add("as plain")
    del plain
    try:
        examine(model, ids, old, outcome)
    except Exception as error:
        outcome.problem = f"{type(error).__name__}: {error}"
    if different:
        outcome.problem = f"{outcome.problem or ''} not as transformers leaves it: {different[:5]}"
    if ties(model) == tied_before:
        outcome.passed.add("ties")
    return outcome


def examine(
    model: transformers.PreTrainedModel, ids: torch.Tensor, old: torch.Tensor, outcome: Outcome
) -> None:
    """Adds to `outcome.passed` what holds after the resize."""
    passed = outcome.passed
    with torch.no_grad():
        new = logits_of(model, ids)
    assert new.shape[-1] == VOCAB + NEW, f"logits for {new.shape[-1]} tokens"
    passed.add("forward")
    if (new[..., :VOCAB] - old).abs().max() <= 1e-5:
        passed.add("old logits")
    p, q = old.double().log_softmax(-1), new.double().log_softmax(-1)
    kl = (p.exp() * (p - q[..., :VOCAB])).sum(-1).max().item()
    usable = min(table["usable"] for table in read_manifest(model)[-1]["tables"])
    assert usable >= VOCAB - 1  # all but the padding row
    if kl <= math.log(1 + NEW / usable) + 1e-7:
        passed.add("bound")

    new_ids = ids.clone()
    new_ids[:, 5 : 5 + NEW] = torch.arange(VOCAB, VOCAB + NEW)
    with torch.no_grad():
        reference = logits_of(model, new_ids)
    assert torch.isfinite(reference).all()
    passed.add("new ids")

    model.train()
    logits_of(model, new_ids).log_softmax(-1)[..., VOCAB].mean().neg().backward()
    gradient = EmbeddingTables(model).input_tables[0].parameter.grad
    assert gradient is None or gradient.shape[0] >= VOCAB + NEW
    passed.add("backward")
    model.zero_grad()
    arguments = {**inputs(model, new_ids), "labels": new_ids}
    if accepts_cache(model):
        arguments["use_cache"] = False
    model(**arguments).loss.backward()
    passed.add("loss")
    model.zero_grad()
    model.eval()

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again, info = type(model).from_pretrained(folder, output_loading_info=True)
        assert read_manifest(folder)[-1]["rows"] == [VOCAB, VOCAB + NEW]
    again.eval()
    saved, loaded = model.state_dict(), again.state_dict()
    assert saved.keys() == loaded.keys() and not info["mismatched_keys"]
    different = [key for key in saved if not torch.equal(saved[key], loaded[key])]
    assert not different, f"reloaded with other values: {different}"
    for parameter in again.parameters():  # BLAS adds in another order where memory is aligned otherwise
        parameter.data = parameter.data.clone()
    with torch.no_grad():
        assert torch.equal(logits_of(again, new_ids), reference)
    passed.add("reload")


REPRESENTATIVE = [
    ("GPT2LMHeadModel", "stock"),
    ("GPT2LMHeadModel", "untied"),
    ("LlamaForCausalLM", "stock"),
    ("LlamaForCausalLM", "tied"),
    ("GPTJForCausalLM", "stock"),  # head with a bias
    since("5.6", "Gemma3ForConditionalGeneration", "stock"),  # nested text config
    ("Gemma3nForCausalLM", "stock"),  # per-layer table
    ("Gemma4ForConditionalGeneration", "stock"),
    ("MllamaForCausalLM", "stock"),  # more rows than tokens
    since("5.6", "MoshiForCausalLM", "stock"),
    since("5.16", "CpmAntForCausalLM", "stock"),
    ("DeepseekV4ForCausalLM", "stock"),  # experts by token
    ("DoryForCausalLM", "stock"),  # a factor of the logits by token
    ("Inkling2ForCausalLM", "stock"),  # a size without padding beside vocab_size
    ("BltForCausalLM", "stock"),  # three tables for one vocabulary
    ("XLNetLMHeadModel", "stock"),
    ("XLMWithLMHeadModel", "stock"),  # sizes in modules
    ("CTRLLMHeadModel", "stock"),
    ("BertForMaskedLM", "stock"),
    ("BertForMaskedLM", "untied"),
    ("RobertaForMaskedLM", "stock"),
    ("RobertaForMaskedLM", "untied"),
    ("AlbertForMaskedLM", "stock"),
    ("MobileBertForMaskedLM", "stock"),
    ("IBertForMaskedLM", "stock"),
    ("EsmForMaskedLM", "stock"),
    ("NeoMMEForMaskedLM", "stock"),
    ("PerceiverForMaskedLM", "stock"),  # no accessors at all
    ("T5ForConditionalGeneration", "stock"),
    ("T5ForConditionalGeneration", "untied"),
    ("T5GemmaForConditionalGeneration", "stock"),
    ("BartForConditionalGeneration", "stock"),
    ("BartForConditionalGeneration", "untied"),
    ("MarianMTModel", "stock"),
    ("MarianMTModel", "untied"),
    ("PegasusForConditionalGeneration", "stock"),
    ("WhisperForConditionalGeneration", "stock"),
]


@pytest.mark.parametrize(("name", "variant"), REPRESENTATIVE)
def test_representative_architectures(name: str, variant: str) -> None:
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    outcome = check(name, variant)
    assert outcome.good, outcome


@pytest.mark.parametrize("name", sorted(NO_SINGLE_VOCABULARY))
def test_models_without_a_single_vocabulary_are_refused_with_a_reason(name: str) -> None:
    outcome = check(name, "stock")
    assert outcome.refused is not None and name in outcome.refused


@pytest.mark.parametrize("size", [VOCAB, VOCAB + 7, 300])
def test_a_padded_table_beside_a_head_without_padding(size, tmp_path) -> None:
    """Inkling 2, whose head has the rows of its tokens alone since transformers 5.24."""
    model = build("Inkling2ForCausalLM", vocab_size=256, unpadded_vocab_size=VOCAB)
    ids = torch.arange(12).reshape(2, 6) + 5
    before, old = logits_of(model, ids), model.get_input_embeddings().weight.detach().clone()
    tokens = EmbeddingTables(model).vocab_size()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VocabularyWarning)  # a padded table keeps its rows
        patch(model).resize_token_embeddings(size)
    after = logits_of(model, ids)
    assert torch.equal(after[..., :VOCAB], before) and after.shape[-1] == model.config.unpadded_vocab_size
    assert model.config.unpadded_vocab_size == size
    table = model.get_input_embeddings().weight
    assert torch.equal(table[:VOCAB], old[:VOCAB]) and len(table) == model.config.vocab_size >= size
    if tokens == VOCAB:  # the padding was no token's: its rows are made anew
        torch.testing.assert_close(table[VOCAB:size], old[:VOCAB].mean(0).expand(size - VOCAB, -1))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits_of(again, ids), after, rtol=1e-6, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("variant", ["stock", "untied", "tied"])
def test_every_architecture(variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    outcomes: dict[str, list[Outcome]] = {}
    not_built = []
    for task, _, name in architectures.classes():
        try:
            outcomes.setdefault(task, []).append(check(name, variant))
        except Exception as error:
            not_built.append((name, f"{type(error).__name__}: {error}"))
        gc.collect()
    torch.set_num_threads(threads)
    every = [outcome for of_task in outcomes.values() for outcome in of_task]
    lines = [
        f"{variant}: {len(every)} classes of transformers {transformers.__version__} built, {not_built} not"
    ]
    heads = ("task", "built", "refused", *CHECKS)
    lines.append(" | ".join(f"{head:>10}" for head in heads))
    for task, of_task in [*outcomes.items(), ("all", every)]:
        counts = [sum(key in o.passed for o in of_task) for key in CHECKS]
        cells = [task, len(of_task), sum(o.refused is not None for o in of_task), *counts]
        lines.append(" | ".join(f"{cell:>10}" for cell in cells))
    lines += [f"refused {o.name}: {o.refused}" for o in every if o.refused]
    lines += [
        f"problem {o.name}: {sorted(set(CHECKS) - o.passed)} {o.problem}"
        for o in every
        if not (o.good or o.refused)
    ]
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert all(o.good for o in every if not o.refused)
    assert {o.name for o in every if o.refused} <= NO_SINGLE_VOCABULARY
    if variant == "stock" and Version(transformers.__version__) >= Version("5.23"):
        assert {name for name, _ in not_built} <= NOT_BUILT


def test_a_config_that_was_wrong_before_is_right_after(tmp_path) -> None:
    """A table replaced by `set_input_embeddings`: the saved checkpoint could not be loaded."""
    model = build("LlamaForCausalLM")
    model.set_input_embeddings(torch.nn.Embedding(VOCAB + 3, model.config.hidden_size))
    model.lm_head = torch.nn.Linear(model.config.hidden_size, VOCAB + 3, bias=False)
    assert model.config.vocab_size == VOCAB
    patch(model).resize_token_embeddings(VOCAB + NEW)
    assert model.config.vocab_size == model.vocab_size == VOCAB + NEW
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
