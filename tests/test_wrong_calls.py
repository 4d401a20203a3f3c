"""Wrong calls of every public function: one sentence that names the argument, and nothing is changed."""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import pytest
import torch
from builders.run_folders import run_folder
from builders.tiny_models import marian_with_two_vocabularies, word_tokenizer
from builders.tiny_tokenizers import model, tokenizer
from tokenizers import AddedToken
from torch import nn
from typing_extensions import TypeAliasType

import hf_embinit
from hf_embinit import measures, surgery, tokens, vectors, vocabulary
from hf_embinit.arguments import check, checked, mismatch
from hf_embinit.display import printable
from hf_embinit.errors import EmbinitError, InvalidArgumentError
from hf_embinit.tables import EmbeddingTables

NAN, INF = math.nan, math.inf
NUMBERS: tuple[Any, ...] = ("7", None, True, 1.5, NAN, [7])
SEEDS: tuple[Any, ...] = ("a", None, True, 1.5, NAN, -1, 2**64)
SWITCHES: tuple[Any, ...] = ("yes", None, 1, [True])
MODELS: tuple[Any, ...] = (None, "gpt2", 3, nn.Linear(2, 2), b"model")
TOKENIZERS: tuple[Any, ...] = ("gpt2", 3, {"a": 1}, nn.Linear(2, 2))
TABLES: tuple[Any, ...] = (
    None,
    "table",
    [[1.0, 2.0]],
    torch.ones(3),
    torch.ones(3, 2).int(),
    torch.ones(0, 2),
)
BROKEN_TABLES = (torch.full((4, 3), NAN), torch.tensor([[1.0, INF], [2.0, 3.0]]))


class Says(NamedTuple):
    """A wrong value whose sentence has these words, where the argument's name would be no help."""

    value: Any
    words: str


class Call(NamedTuple):
    """A public function, arguments that are right, and for each argument values that are wrong."""

    function: Callable[..., Any]
    right: dict[str, Any]
    wrong: dict[str, tuple[Any, ...]]


def world(folder: Path) -> SimpleNamespace:
    """What the calls are about: two models with their tokenizers, vectors, checkpoints, a run."""
    bytes_, words = tokenizer("byte_level"), tokenizer("wordpiece")
    w = SimpleNamespace(
        folder=folder,
        tok=bytes_,
        words=words,
        larger=word_tokenizer(500),
        gpt2=model("gpt2", len(bytes_)),
        bert=model("bert", len(words)),
        two=marian_with_two_vocabularies(),
        table=torch.randn(40, 6, generator=torch.Generator().manual_seed(0)),
        generator=torch.Generator().manual_seed(0),
    )
    names = [t for t in words.get_vocab() if t.isalpha()][:30]
    w.vectors = vectors.PretrainedVectors(names, torch.randn(len(names), 16, generator=w.generator), "v")
    w.narrow = vectors.PretrainedVectors(names, torch.randn(len(names), 5, generator=w.generator), "narrow")
    w.strange = vectors.PretrainedVectors(["ᚠ", "ᚢ"], torch.randn(2, 16, generator=w.generator), "runes")
    w.file = folder / "v.txt"
    vectors.write_vectors(w.file, w.vectors)
    w.checkpoint = folder / "bert"
    w.bert.save_pretrained(w.checkpoint)
    words.save_pretrained(w.checkpoint)
    w.empty = folder / "empty"
    w.empty.mkdir()
    w.text = folder / "notes.txt"
    w.text.write_text("no vectors\nat all here\n")
    w.grown, w.grown_tok = copy.deepcopy(w.gpt2), copy.deepcopy(bytes_)
    w.report = hf_embinit.expand_vocabulary(w.grown, w.grown_tok, ["<one>", "<two>"], prefixes=())
    from peft import get_peft_model

    w.peft = get_peft_model(
        copy.deepcopy(w.grown), hf_embinit.peft_config_for_new_tokens(w.grown, w.report.token_ids)
    )
    w.adapter = folder / "adapter"
    w.peft.save_pretrained(w.adapter)
    hf_embinit.save_vocabulary(w.peft, w.adapter)
    w.run = folder / "runs" / "one"
    run_folder(w.run, "gpt2")
    w.missing = folder / "missing"
    return w


def calls_on_models(w: SimpleNamespace) -> Iterator[Call]:
    """What changes a model."""
    inits = ("xaver", "", "glove*", None, 3, ["xavier"])
    wrong_vectors = (3, None, w.missing, str(w.empty), str(w.text), torch.ones(2, 2), b"v", ["a"], w.strange)
    yield Call(
        hf_embinit.initialize,
        {"model": w.bert, "init": "xavier", "tokenizer": w.words, "seed": 0},
        {
            "model": MODELS,
            "init": (*inits, Says("mean", "'mean' makes rows beside")),
            "tokenizer": (*TOKENIZERS, Says(w.larger, "the tokenizer has 500 source tokens")),
            "seed": SEEDS,
            "vectors": (Says(w.vectors, "uses no vectors"),),
            "scale": (Says(2.0, "has no option 'scale'"),),
            "allow_pickle": SWITCHES,
        },
    )
    yield Call(
        hf_embinit.initialize,
        {"model": w.bert, "init": "pretrained", "tokenizer": w.words, "vectors": w.vectors},
        {
            "vectors": (*wrong_vectors, Says(w.narrow, "width")),
            "target_vectors": (3, [w.vectors]),
            "tokenizer": (None,),
            "token_counts": ("abc", [1, 2], [0.5], [None], 3),
        },
    )
    yield Call(
        hf_embinit.initialize,
        {"model": w.bert, "init": "normal", "std": 0.1},
        {"std": (-1, NAN, INF, "a", [1.0], True, 10**400), "mean": (NAN, None, "0", True)},
    )
    yield Call(
        hf_embinit.patch,
        {"model": w.gpt2, "init": "subword_mean", "tokenizer": w.tok},
        {
            "model": MODELS,
            "init": inits,
            "tokenizer": (*TOKENIZERS, Says(None, "give tokenizer=")),
            "seed": SEEDS,
            "overrides": (
                "zeros",
                [1],
                {"<one>": 3},
                {"<one>": ("copy",)},
                Says({"<one>": "xaver"}, "Unknown init 'xaver'"),
                {1.5: "zeros"},
            ),
            "exclude_rows": (3, "abc", [0.5], [True], [-1], [None]),
            "input_pooling": ("middle", None, 3),
            "scale": (Says(1.0, "has no option 'scale'"),),
        },
    )
    yield Call(
        hf_embinit.patched,
        {"init": "mean_cov"},
        {"init": inits, "tokenizer": TOKENIZERS, "seed": SEEDS, "scale": (NAN, -1.0, "much", INF)},
    )
    yield Call(hf_embinit.unpatch, {"model": w.gpt2}, {"model": MODELS[:3]})
    resized = hf_embinit.patch(copy.deepcopy(w.gpt2))
    yield Call(
        resized.resize_token_embeddings,
        {"new_num_tokens": 330},
        {
            "new_num_tokens": (0, -3, 1.5, "330", NAN, True, Says(10**13, "GiB"), [3]),
            "pad_to_multiple_of": (0, -8, 1.5, "8", Says(10**12, "GiB")),
        },
    )
    yield Call(
        hf_embinit.expand_vocabulary,
        {"model": w.gpt2, "tokenizer": w.tok, "new_tokens": ["<new>"], "prefixes": ()},
        {
            "model": MODELS,
            "tokenizer": (*TOKENIZERS, None, Says(w.larger, "is this the model's own tokenizer?")),
            "new_tokens": (
                "<new>",
                None,
                3,
                [],
                [""],
                [" "],
                [3],
                [None],
                [b"a"],
                AddedToken("<a>"),
                ["<|endoftext|>"],
            ),
            "init": (*inits, Says("glove", "glove.840B.300d.zip")),
            "seed": SEEDS,
            "overrides": (
                {"<other>": "zeros"},
                "zeros",
                {"<new>": 3},
                Says({"<new>": ("copy", "no such token")}, "'no such token' is not one old token"),
            ),
            "prefixes": (3, [3], [None]),
            "dry_run": SWITCHES,
            "pad_to_multiple_of": (0, -8, 1.5, "8", True, Says(10**12, "GiB")),
            "exclude_rows": ("abc", [0.5], 3),
            "side": ("left", None, 3, Says("target", "no target vocabulary")),
            "of": (Says("king", "has no option 'of'"),),
        },
    )
    yield Call(
        hf_embinit.expand_vocabulary,
        {
            "model": w.gpt2,
            "tokenizer": w.tok,
            "new_tokens": ["<new>"],
            "init": "copy",
            "of": "a",
            "prefixes": (),
        },
        {"of": (None, 1.5, 10**6, -1, "no token at all", [], [None], {}, {"<other>": "a"}, True)},
    )
    yield Call(
        hf_embinit.expand_vocabulary,
        {
            "model": w.bert,
            "tokenizer": w.words,
            "new_tokens": ["qzx"],
            "init": "pretrained_map",
            "vectors": w.vectors,
            "prefixes": (),
        },
        {"vectors": wrong_vectors},
    )
    yield Call(
        hf_embinit.repair,
        {"model": w.gpt2, "tokenizer": w.tok, "rows": [3]},
        {
            "model": MODELS,
            "tokenizer": TOKENIZERS,
            "rows": (3, "3", [0.5], [-1], [10**6], [None], [True]),
            "init": inits,
            "seed": SEEDS,
            "findings": (3, "equal_rows", ["equal_rows"], [None], Says([], "rows= and findings= were both")),
        },
    )
    yield Call(
        hf_embinit.expand_vocabulary,
        {"model": w.gpt2, "tokenizer": w.tok, "new_tokens": ["<one>"], "slots": [300], "prefixes": ()},
        {
            "slots": ("reserve", "", [], 7, {300}, [None], [True], [1.5], ["300"], [-1], [10**6], [300, 300]),
            "new_tokens": (
                Says(["<one>", "<two>"], "there are 1 ids in slots"),
                Says([""], "empty token"),
                None,
                3,
            ),
            "pad_to_multiple_of": (Says(8, "pad_to_multiple_of=8 grows the tables"),),
        },
    )
    yield Call(
        hf_embinit.prune_vocabulary,
        {"model": w.gpt2, "tokenizer": w.tok, "keep": ["a", "b"]},
        {
            "model": (*MODELS, Says(w.two, "has no shared vocabulary")),
            "tokenizer": (
                *TOKENIZERS,
                None,
                Says(w.larger, "'a', which is not in the tokenizer's vocabulary"),
            ),
            "keep": (None, 3, [], ["no such token"], [10**6], [-1], [1.5], [None], [b"a"]),
        },
    )
    yield Call(
        surgery.apply,
        {"model": w.bert, "spec": "reversed", "tokenizer": w.words},
        {
            "model": MODELS,
            "spec": (
                "revresed",
                "",
                "+",
                "reversed+",
                None,
                3,
                "remove_last_x",
                "remove_last_9",
                Says("shuffled_embeddings+nothing", "'nothing'"),
            ),
            "tokenizer": TOKENIZERS,
            "seed": SEEDS,
            "donor": (Says("bert", "has no option 'donor'"),),
        },
    )
    yield Call(
        surgery.apply,
        {"model": w.bert, "spec": "shuffled_embeddings", "tokenizer": w.words},
        {
            "pattern": ("(", 3, None, "nothing-matches"),
            "family": ("runes", 3),
            "tokenizer": (
                Says(None, "give tokenizer="),
                Says(w.larger, "the tokenizer has 500 source tokens"),
            ),
        },
    )
    yield Call(
        surgery.check, {"spec": "reversed"}, {"spec": ("revresed", "", None, 3), "tokenizer": TOKENIZERS}
    )


def calls_on_adapters(w: SimpleNamespace) -> Iterator[Call]:
    """Adapters, and training new rows."""
    ids = (None, 3, [], [-1], [10**6], [0.5], "12", [None], [True], torch.tensor([0.5]))
    for function in (hf_embinit.train_new_rows_only, hf_embinit.peft_config_for_new_tokens):
        yield Call(
            function,
            {"model": w.gpt2, "token_ids": [3]},
            {
                "model": MODELS,
                "token_ids": ids,
                "side": ("left", None, Says("target", "no target vocabulary")),
            },
        )
    yield Call(hf_embinit.train_new_rows_only, {"model": w.gpt2, "token_ids": [3]}, {"freeze_rest": SWITCHES})
    yield Call(
        hf_embinit.peft_config_for_new_tokens,
        {"model": w.gpt2, "token_ids": [3]},
        {"trainable_token_indices": ([1],), "lora_alfa": (Says(8, "did you mean lora_alpha=?"),)},
    )
    yield Call(
        hf_embinit.load_adapter,
        {"base": w.gpt2, "adapter": w.adapter},
        {
            "base": (
                *(Says(one, "neither a transformers model") for one in MODELS),
                Says(w.bert, "base, a BertForMaskedLM, has no transformer.wte.weight"),
            ),
            "adapter": (None, 3, w.missing, str(w.empty), str(w.text), b"a", ""),
            "revision": (3, b"main"),
        },
    )
    yield Call(
        hf_embinit.merge_adapter,
        {"model": w.peft},
        {"model": (*MODELS, Says(w.gpt2, "expected a PeftModel"))},
    )
    yield Call(
        hf_embinit.merge_adapter,
        {"model": copy.deepcopy(w.peft), "tokenizer": w.grown_tok},
        {"tokenizer": TOKENIZERS},
    )
    yield Call(
        hf_embinit.parameter_groups,
        {"model": w.grown, "new_row_lr": 1e-3},
        {
            "model": (*MODELS, Says(w.gpt2, "tells of no new rows: give token_ids=")),
            "new_row_lr": ("1e-3", None, -1, NAN, INF, [1e-3], True),
            "weight_decay": ("a", None, -0.1, NAN, [0.1]),
            "token_ids": tuple(one for one in ids if one is not None),
        },
    )
    yield Call(hf_embinit.carry_vocabulary, {"model": w.peft}, {"model": (*MODELS, w.gpt2)})
    yield Call(
        hf_embinit.save_vocabulary,
        {"model": w.grown, "folder": w.folder / "kept"},
        {"model": MODELS, "folder": (None, 3, b"a", str(w.text))},
    )


def calls_on_files(w: SimpleNamespace) -> Iterator[Call]:
    """What reads, compares and publishes."""
    paths = (None, 3, b"a", w.missing, str(w.empty), str(w.text), "", "a\0b", "x" * 5000)
    yield Call(
        hf_embinit.doctor,
        {"model": w.gpt2, "tokenizer": w.tok},
        {"model": (None, 3, b"a", ""), "tokenizer": TOKENIZERS, "trust_remote_code": SWITCHES},
    )
    yield Call(
        vocabulary.read_tokens_file,
        {"file": w.text},
        {"file": (None, 3, b"a", w.missing, str(w.empty), "", "a\0b", "x" * 5000)},
    )
    yield Call(
        vocabulary.used_tokens,
        {"tokenizer": w.tok, "texts": ["a man"]},
        {
            "tokenizer": (*TOKENIZERS, None),
            "texts": (None, 3, "a man", [3], [None], [b"a"]),
            "min_count": (0, *NUMBERS),
        },
    )
    yield Call(
        hf_embinit.propose_tokens,
        {"tokenizer": w.tok, "corpus": ["a zyzzyva", "a zyzzyva again"], "n": 3},
        {
            "tokenizer": (*TOKENIZERS, None),
            "corpus": ("one string", None, 3, [3], [None], [], ["the"]),
            "n": (*NUMBERS, 0, -1),
            "min_count": (*NUMBERS, 0),
            "word": ("(", 3),
        },
    )
    yield Call(
        hf_embinit.read_manifest, {"source": w.checkpoint}, {"source": paths, "revision": (3, b"main")}
    )
    yield Call(
        hf_embinit.compare,
        {"a": w.checkpoint, "b": w.file},
        {
            "a": (*paths, w.strange),
            "b": (None, [w.file]),
            "k": (*NUMBERS, 0, -1),
            "table": (3, "no.such.table"),
            "revisions": (None, ("main",), "main", (3, None)),
            "allow_pickle": SWITCHES,
        },
    )
    yield Call(
        hf_embinit.publish,
        {"run_folder": w.run, "repo_id": "user/name"},
        {
            "run_folder": paths,
            "repo_id": (None, 3, "", "a/b/c", "user/na me", "../x"),
            "private": ("no", 1),
            "token": (3, b"hf_"),
            "license": (3, ["mit"]),
            "overwrite": SWITCHES,
        },
    )
    yield Call(
        hf_embinit.publish_embeddings,
        {"source": w.bert, "repo_id": "user/name", "tokenizer": w.words},
        {
            "source": (
                None,
                3,
                w.missing,
                str(w.empty),
                torch.ones(3),
                torch.ones(3, 2).int(),
                torch.full((400, 2), NAN),
            ),
            "repo_id": (None, 3, "", "a/b/c"),
            "tokenizer": (
                *TOKENIZERS,
                Says(None, "tokenizer="),
                Says(w.larger, "the tokenizer has 500 tokens"),
            ),
            "table": (3, "nothing"),
            "private": ("no", 1),
        },
    )
    yield Call(
        vectors.load_vectors,
        {"spec": w.file},
        {
            "spec": (*paths, Says("glove", "glove.840B.300d.zip"), "./none", torch.ones(2)),
            "tokens": ("the", 3, [3], [None]),
            "family": ("runes", 3),
            "revision": (3,),
            "table": (3,),
            "allow_pickle": SWITCHES,
        },
    )
    yield Call(
        vectors.read_vectors,
        {"path": w.file},
        {"path": paths, "tokens": ("the", 3, [3]), "family": ("runes", None), "member": (3,)},
    )
    yield Call(
        vectors.read_embedding_table,
        {"path_or_id": w.checkpoint},
        {"path_or_id": paths, "tokens": ("the", [3]), "table": (3, "nothing*"), "revision": (3, "main")},
    )
    yield Call(
        vectors.write_vectors,
        {"path": w.folder / "new.txt", "vectors": w.vectors},
        {
            "path": (None, 3, b"a", str(w.empty), str(w.text / "below")),
            "vectors": (
                None,
                "v",
                torch.ones(2, 2),
                Says(vectors.PretrainedVectors(["a\nb"], torch.ones(1, 2), "v"), "line end"),
            ),
        },
    )
    yield Call(
        vectors.PretrainedVectors,
        {"tokens": ["a"], "matrix": torch.ones(1, 2), "name": "v"},
        {
            "tokens": ("a", None, [3], Says(["a", "b"], "2 tokens but a matrix")),
            "matrix": (
                None,
                [[1.0]],
                Says(torch.ones(1), "a matrix of"),
                Says(torch.ones(1, 2).int(), "floating"),
            ),
            "name": (None, 3),
            "family": ("runes", None),
        },
    )
    yield Call(
        vectors.train_glove,
        {"sentences": [["a", "b"], ["b", "a"]], "dim": 2, "min_count": 1, "epochs": 1, "progress": False},
        {
            "sentences": (
                None,
                3,
                Says([], "the sentences have no words"),
                ["a b"],
                [3],
                [[3, 4]],
                Says([["a"]], "no two words"),
                "text",
                [None],
            ),
            **dict.fromkeys(("dim", "window", "min_count", "epochs", "batch_size"), (*NUMBERS, 0, -1)),
            **dict.fromkeys(("x_max", "alpha", "learning_rate"), ("7", None, True, NAN, INF, 0, -1)),
            "seed": SEEDS,
            "symmetric": SWITCHES,
            "device": (3, "abacus", None),
            "progress": SWITCHES,
        },
    )
    yield Call(
        vectors.rows_digest,
        {"tokens": ["a"], "matrix": torch.ones(1, 2)},
        {"tokens": ("a", None, [3]), "matrix": (None, [1.0])},
    )


def calls_on_tables(w: SimpleNamespace) -> Iterator[Call]:
    """Measures, tokens, and the tables of a model."""
    tables = (*TABLES, *BROKEN_TABLES)
    neighbors = {"k": (*NUMBERS, 0, -1, 40), "metric": ("manhattan", None, 3), "include_self": SWITCHES,
                 "tokens": ("all", 3, [], [-1], [40], [0.5], [True], torch.tensor([0.5]))}  # fmt: skip
    yield Call(
        hf_embinit.knn_match_similarity,
        {"a": w.table, "b": w.table},
        {
            "a": tables,
            "b": (None, [[1.0]], Says(torch.ones(3, 2), "b 3"), BROKEN_TABLES[0]),
            **neighbors,
            "weights": ("all", 3, [1.0], [-1.0] * 40, [NAN] * 40, [0.0] * 40, [None] * 40),
            "per_token": SWITCHES,
        },
    )
    yield Call(measures.nearest_neighbors, {"x": w.table}, {"x": tables, **neighbors})
    yield Call(
        measures.embedding_statistics,
        {"weight": w.table},
        {
            "weight": tables,
            "rows": ("all", 3, [40], [-41], [0.5], []),
            "scale": ("2", None, NAN, 0.0, -1.0),
            "effective_rank": SWITCHES,
        },
    )
    sizes = {"num_embeddings": (*NUMBERS, 0, -3), "embedding_dim": (*NUMBERS, 0)}
    yield Call(
        measures.xavier_statistics, {"num_embeddings": 3, "embedding_dim": 2}, {**sizes, "scale": (0.0, NAN)}
    )
    positions = {
        "num_positions": (*NUMBERS, 0, -3, 10**12),
        "dim": (*NUMBERS, 0),
        "base": (0.0, -1.0, NAN, "10", None),
    }
    for function in (measures.position_encoding, measures.position_encoding_statistics):
        yield Call(function, {"num_positions": 3, "dim": 2}, positions)
    yield Call(
        measures.position_span,
        {"positions": w.table},
        {"positions": tables, "energy": (0.0, 1.5, NAN, "all", None)},
    )
    yield Call(
        measures.absorption_curve,
        {"weight": w.table, "lengths": [8], "generator": w.generator},
        {"weight": tables, "lengths": (8, "8", [0], [-1], [1.5], [None]), "generator": (None, 3),
         "k": (0, 40, "3"), "sample": (0, -1, "3", 1.5)},
    )  # fmt: skip
    before, after = torch.zeros(2, 3), torch.zeros(2, 5)
    logits = (None, [[0.0]], Says(torch.zeros(3, 4), "expected [..., n]"))
    for function in (measures.kl_divergence, measures.top1_agreement):
        yield Call(function, {"before": before, "after": after}, {"before": logits, "after": logits})
    yield Call(
        measures.expansion_bound, {"new": 1, "old": 2}, {"new": (*NUMBERS, -1), "old": (*NUMBERS, 0, -1)}
    )
    yield Call(
        measures.new_token_mass,
        {"after": after, "old": 3},
        {"after": (None, [0.0]), "old": (*NUMBERS, -1, 6)},
    )
    numbers = (*NUMBERS[:3], *NUMBERS[4:])
    yield Call(
        measures.largest_scale,
        {"logits": after},
        {"logits": (None, [0.0], Says(torch.zeros(2, 1), "expected [..., n]"))},
    )
    stats = measures.embedding_statistics(w.table)
    yield Call(stats.scaled, {"factor": 2.0}, {"factor": (*numbers, 0, -1, INF)})
    yield Call(stats.standardized, {"std": 1.0}, {"std": (*numbers, 0, -1, INF), "mean": (*numbers, INF)})
    yield Call(
        measures.position_channel,
        {"weight": w.table, "positions": torch.ones(3, 6), "scale": 1.0, "generator": w.generator},
        {
            "weight": tables,
            "positions": tables,
            **dict.fromkeys(("scale", "position_scale"), (*numbers, 0, -1)),
            **dict.fromkeys(("k", "sample"), (*NUMBERS, 0, -5)),
            "energy": (0.0, 1.5, NAN),
            "generator": (None, 3),
        },
    )
    yield Call(
        measures.energy_share,
        {"rows": w.table, "basis": torch.eye(6)},
        {
            "rows": (None, Says(torch.ones(2, 5), "expected [V, D]")),
            "basis": (None, Says(w.table.T, "[r, D]")),
        },
    )
    yield Call(measures.metric_path, {"name": "bleu"}, {"name": ("blue", "", None, 3)})
    yield Call(measures.load_metric, {"name": "bleu"}, {"name": ("blue", "", None, 3), "speed": (1,)})
    yield Call(
        measures.read_analogies,
        {"path": w.file},
        {"path": (None, 3, w.missing, w.empty, str(w.text), "a\0b")},
    )
    task = measures.AnalogyTask.for_tokens({}, [])
    yield Call(
        measures.analogy_score,
        {"weight": w.table, "task": task},
        {"weight": tables, "task": (None, {}, "task")},
    )
    yield Call(
        measures.english_like,
        {"tokens": ["a"]},
        {"tokens": ("abc", None, 3, [3]), "family": ("runes", None, 3), "pattern": ("(", None, 3)},
    )
    yield Call(
        measures.vocabulary_overlap,
        {"tokens": ["a"], "family": "words", "reference_tokens": ["a"], "reference_family": "words"},
        {
            "tokens": ("a", [3], None),
            "family": ("runes", 3),
            "reference_tokens": ("a", [3]),
            "reference_family": ("runes",),
            "special": ("a", 3),
            "pattern": ("(",),
        },
    )
    yield Call(tokens.token_family, {"tokenizer": w.tok}, {"tokenizer": (*TOKENIZERS, None)})
    yield Call(
        tokens.vocabulary, {"tokenizer": w.tok}, {"tokenizer": (*TOKENIZERS, None), "side": ("left", None, 3)}
    )
    yield Call(
        tokens.align,
        {"target_tokens": ["a"], "target_family": "words", "source_tokens": ["a"], "source_family": "words"},
        {"target_tokens": ("a", [3], None), "target_family": ("runes", 3, None), "source_tokens": ("a", [3]),
         "source_family": ("runes", 3), "special": (3, "a", [0.5]), "lowercase_fallback": SWITCHES},
    )  # fmt: skip
    yield Call(
        tokens.coverage,
        {"tokens": ["a"], "found": [True]},
        {
            "tokens": ("a", [3]),
            "found": (3, "a", Says([True, False], "found=")),
            "counts": (3, "a", [1, 2], [0.5]),
        },
    )
    yield Call(EmbeddingTables, {"model": w.gpt2}, {"model": MODELS})
    own = EmbeddingTables(w.gpt2)
    yield Call(
        own.plan,
        {"new_num_tokens": 330},
        {
            "new_num_tokens": (0, -1, 1.5, "330", True),
            "pad_to_multiple_of": (0, "8", 1.5),
            "side": ("left", None, Says("target", "no target vocabulary")),
        },
    )
    yield Call(own.vocab_size, {}, {"side": ("left", None, 3)})
    yield Call(hf_embinit.get_initializer, {"name": "xavier"}, {"name": ("xaver", "", None, 3, ["xavier"])})
    yield Call(hf_embinit.list_initializers, {"pattern": "*"}, {"pattern": (None, 3), "purpose": ("cols", 3)})
    yield Call(
        hf_embinit.register_initializer,
        {"name": "mine", "summary": "rows", "reference": "nobody"},
        {
            "name": (None, 3),
            "summary": (None, 3),
            "purpose": ("cols", None),
            "needs": (3, ["glue"]),
            "aliases": ("other", 3),
        },
    )


GROUPS = (calls_on_models, calls_on_adapters, calls_on_files, calls_on_tables)


def fingerprint(w: SimpleNamespace) -> str:
    """All that a wrong call could change: models, tokenizers, tables, files."""
    digest = hashlib.sha256()
    for one in (w.gpt2, w.bert, w.two, w.grown, w.peft):
        for name, tensor in one.state_dict().items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
        digest.update(repr([p.requires_grad for p in one.parameters()]).encode())
        digest.update(repr([(n, m.training, sorted(vars(m))) for n, m in one.named_modules()]).encode())
        digest.update(
            one.config.to_json_string(use_diff=False).encode()
            if hasattr(one.config, "to_json_string")
            else b""
        )
    for one in (w.tok, w.words, w.larger, w.grown_tok):
        digest.update(one.backend_tokenizer.to_str().encode())
    digest.update(
        w.table.numpy().tobytes() + pickle.dumps(w.vectors.tokens) + w.vectors.matrix.numpy().tobytes()
    )
    for path in sorted(w.folder.rglob("*")):
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def named(call: Call) -> str:
    return getattr(call.function, "__name__", type(call.function).__name__)


def told(value: Any) -> str:
    """What a sentence must show of a value."""
    return str(value)[:40] if isinstance(value, (int, float)) else ""


def problem(call: Call, name: str, value: Any) -> str | None:
    """What is wrong with how a wrong call ends; None when it ends as it should."""
    words = value.words if isinstance(value, Says) else None
    value = value.value if isinstance(value, Says) else value
    try:
        result = call.function(**{**call.right, name: value})
        if hasattr(result, "__enter__") and call.function is hf_embinit.patched:
            result.__enter__()
            result.__exit__(None, None, None)
    except EmbinitError as error:
        text = str(error)
        if "\n" in text or len(text) > 900 or "Traceback" in text:
            return f"no sentence: {text[:200]!r}"
        if words is not None:
            return None if words in text else f"does not say {words!r}: {text}"
        if name not in text and not (isinstance(value, (str, Path)) and printable(value)[:20] in text):
            return f"does not name {name}: {text}"
        return None if told(value) in text else f"does not show {value!r}: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "nothing was raised"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return world(tmp_path_factory.mktemp("world"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_a_wrong_call_says_what_is_wrong_and_changes_nothing(made: SimpleNamespace, group: Any) -> None:
    problems, before = [], fingerprint(made)
    for call in group(made):
        for name, values in call.wrong.items():
            for value in values:
                found = problem(call, name, value)
                if found:
                    shown = value.value if isinstance(value, Says) else value
                    problems.append(f"{named(call)}({name}={shown!r:.60}): {found}")
        if before != (before := fingerprint(made)):
            problems.append(f"{named(call)} changed something by a wrong call")
    assert not problems, f"{len(problems)} wrong calls:\n" + "\n".join(problems)


def test_there_are_enough_of_them(made: SimpleNamespace) -> None:
    calls = [call for group in GROUPS for call in group(made)]
    assert sum(len(values) for call in calls for values in call.wrong.values()) >= 300
    grown = {"load_adapter", "merge_adapter", "carry_vocabulary", "save_vocabulary", "doctor", "repair"}
    grown |= {"parameter_groups", "read_tokens_file", "used_tokens"}
    about = [call for call in calls if named(call) in grown or "slots" in call.right]
    assert {named(call) for call in about} == {*grown, "expand_vocabulary"}
    assert sum(len(values) for call in about for values in call.wrong.values()) >= 100


def test_annotations_are_what_is_checked() -> None:
    @checked
    def draw(count: int, *, scale: float = 1.0, names: list[str] | None = None, **options: Any) -> int:
        return count

    assert draw(3, scale=2, names=["a"], anything=object()) == 3
    with pytest.raises(InvalidArgumentError, match=r"^count=True: expected an integer$"):
        draw(True)
    with pytest.raises(InvalidArgumentError, match=r"^names has 4: expected a string$"):
        draw(1, names=["a", 4])
    with pytest.raises(TypeError, match="draw"):  # Python's own words for a call of another form
        draw()
    with pytest.raises(InvalidArgumentError, match=r"^kind='c': expected 'a' or 'b'$"):
        check("kind", "c", Literal["a", "b"])
    assert mismatch(tuple[str | None, int], ("a", 1)) is None
    assert mismatch(tuple[str | None, int], ("a", "b")) is not None
    assert mismatch(dict[str, float], {"a": 1}) is None
    assert mismatch(dict[str, float], {"a": "1"}) is not None


def test_a_data_set_in_the_place_of_texts_is_told_by_its_rows() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a man qorvex", "a dog qorvex"]})
    t = tokenizer("byte_level")
    message = (
        r"has \{'text': 'a man qorvex'\}: expected a string; of a data set, give a column: dataset\['text'\]"
    )
    for corpus in (rows, iter(rows), (row for row in rows)):  # an iterator is compared as it is read
        with pytest.raises(InvalidArgumentError, match=f"^corpus {message}$"):
            hf_embinit.propose_tokens(t, corpus, 3)
    with pytest.raises(InvalidArgumentError, match=r"^texts has None: expected a string$"):
        hf_embinit.replace_tokenizer(model("gpt2", len(t)), t, t, texts=iter(["a man", None]))
    assert [str(token) for token in hf_embinit.propose_tokens(t, iter(rows["text"]), 3)] == [" qorvex"]
    for texts in (rows, rows.to_iterable_dataset(), rows.to_list()):
        with pytest.raises(InvalidArgumentError, match=f"^texts {message}$"):
            hf_embinit.replace_tokenizer(model("gpt2", len(t)), t, t, texts=texts)
    assert [str(token) for token in hf_embinit.propose_tokens(t, rows["text"], 3)] == [" qorvex"]
    from tqdm.auto import tqdm

    texts = tqdm(iter(rows["text"]), disable=True)
    assert len(vocabulary.used_tokens(t, texts)) == len(vocabulary.used_tokens(t, rows["text"][:]))


def test_an_alias_of_a_type_is_what_it_names() -> None:
    """NumPy's ArrayLike is one from Python 3.12 on."""
    alias = TypeAliasType("alias", int | str)
    assert mismatch(alias, 3) is None and mismatch(alias, 2.5).wanted == "an integer or a string"
