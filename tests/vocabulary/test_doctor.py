"""`doctor`: one broken model or folder for each finding; `repair` refills rows and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders.tiny_models import SEQ2SEQ, mobilebert
from builders.tiny_tokenizers import model, tokenizer
from tokenizers import AddedToken, pre_tokenizers
from transformers import BertTokenizerFast, MarianConfig, MarianMTModel, PreTrainedConfig

from hf_embinit import doctor, expand_vocabulary, read_manifest, repair
from hf_embinit.__main__ import main
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tables import configured_tie


def healthy(kind: str = "gpt2", rows: int = 320):
    t = tokenizer("byte_level")
    m = model(kind, rows)
    for config in (m.config, m.generation_config):
        config.bos_token_id = config.eos_token_id = 0
    return m, t


def codes(m, t=None) -> dict[str, str]:
    return {finding.code: finding.severity for finding in doctor(m, t)}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_healthy_model_has_nothing(kind, tmp_path) -> None:
    m, t = healthy(kind)
    assert doctor(m, t) == []
    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    assert doctor(tmp_path) == []


def break_config_size(m, t):
    m.config.vocab_size = 300


def break_configured_id(m, t):
    m.config.image_token_index = 400


def break_tokenizer_size(m, t):
    t.add_tokens(["zyxomma"])


def break_special_id(m, t):
    m.config.eos_token_id = m.generation_config.eos_token_id = 7


def break_generation(m, t):
    m.generation_config.eos_token_id = [7, 9]


def break_server_size(m, t):
    m.config.vocab_size = 512


def break_chat_token(m, t):
    t.chat_template = "{{ messages }}<|turn|>"
    t.add_tokens([AddedToken("<|turn|>", special=True)])
    expand_table(m)
    m.get_input_embeddings().weight.data[320] = 0


def break_pad(m, t):
    t.add_special_tokens({"pad_token": "<|pad|>"})
    expand_table(m)
    m.get_input_embeddings().weight.data[320] = 0


def expand_table(m):
    from hf_embinit import patch, unpatch

    patch(m, "mean_cov", scale=1.0).resize_token_embeddings(384)
    unpatch(m)


def break_under_trained(m, t):
    """Rows beyond the tokenizer as weight decay leaves them, and two tokens that never occurred."""
    expand_table(m)
    weight = m.get_input_embeddings().weight.data
    weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    unused = torch.randn(16, generator=torch.Generator().manual_seed(1))
    for i in (150, 0, *range(320, 384)):
        noise = torch.randn(16, generator=torch.Generator().manual_seed(i)) / 20
        weight[i] = 0.1 * (unused + noise / (4 if i < 320 else 1))


def break_timestamps(m, t):
    m.generation_config.no_timestamps_token_id = 318
    m.generation_config._from_model_config = False  # else a load forgets the field


def break_embedding_of_trained_model(m, t):
    """As `from_pretrained` leaves a table whose name it does not find."""
    m.transformer.ln_f.weight.data += torch.randn(16)
    m.get_input_embeddings().weight.data = torch.randn(320, 16, generator=torch.Generator().manual_seed(0))


def break_zero(m, t):
    m.get_input_embeddings().weight.data[300] = 0


def break_eos(m, t):
    m.get_input_embeddings().weight.data[0] = 0


def break_nan(m, t):
    m.get_input_embeddings().weight.data[300, 3] = torch.nan


def break_equal(m, t):
    weight = m.get_input_embeddings().weight.data
    weight[300] = weight[301]


def break_far(m, t):
    m.get_input_embeddings().weight.data[300] *= 1000


def break_tie(m, t):
    m.lm_head.weight = torch.nn.Parameter(m.lm_head.weight.detach() + 1)


def break_tie_in_config(m, t):
    m.config.tie_word_embeddings = False


def break_equal_new_rows(m, t):
    expand_vocabulary(m, t, [" zyxomma", " qorvex"], "mean", prefixes=())


IN_A_FOLDER = {
    "tie_only_in_config": ("head_overwritten", "error"),
    "tie_not_in_config": ("never_loaded", "error"),
}
"""What becomes of a broken model once it is saved, where that is another finding."""


@pytest.mark.parametrize(
    ("damage", "code", "severity"),
    [
        (break_config_size, "config_size", "error"),
        (break_configured_id, "configured_id_beyond_rows", "error"),
        (break_tokenizer_size, "ids_beyond_rows", "error"),
        (break_special_id, "special_id_differs", "warning"),
        (break_generation, "generation_config_disagrees", "warning"),
        (break_server_size, "server_refuses_size", "error"),
        (break_tokenizer_size, "server_refuses_size", "error"),
        (break_chat_token, "chat_token_untrained", "error"),
        (break_pad, "special_token_untrained", "warning"),
        (break_under_trained, "under_trained", "note"),
        (break_under_trained, "special_token_untrained", "warning"),
        (break_timestamps, "timestamps_order", "error"),
        (break_embedding_of_trained_model, "looks_never_loaded", "error"),
        (break_zero, "rows_of_zeros", "warning"),
        (break_eos, "special_token_untrained", "error"),
        (break_nan, "rows_not_finite", "error"),
        (break_equal, "equal_rows", "warning"),
        (break_far, "far_rows", "note"),
        (break_tie, "tie_only_in_config", "error"),
        (break_tie_in_config, "tie_not_in_config", "warning"),
        (break_equal_new_rows, "equal_new_rows", "warning"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_finding(damage, code, severity, tmp_path, capsys) -> None:
    m, t = healthy()
    damage(m, t)
    found = codes(m, t)
    assert found.get(code) == severity, found
    order = [finding.severity for finding in doctor(m, t)]
    assert order == sorted(order, key=["error", "warning", "note"].index)
    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    code, severity = IN_A_FOLDER.get(code, (code, severity))
    exit_code = main(["doctor", str(tmp_path)])
    told = capsys.readouterr()
    lines = told.out.strip().splitlines()
    assert sum(line.startswith(severity) and f"[{code}]" in line for line in lines) == 1, lines
    worst = lines[0].split(":")[0]
    assert exit_code == {"error": 4, "warning": 3, "note": 0}[worst]
    assert "Traceback" not in told.err and "LOAD REPORT" not in told.err


def test_rows_beyond_the_tokenizer_are_a_note_and_padding_is_no_fault() -> None:
    m, t = healthy(rows=384)
    m.transformer.wte.weight.data[320:] = 0
    assert codes(m, t) == {"rows_beyond_tokenizer": "note"}


def test_a_row_of_negative_entries_is_no_row_of_zeros() -> None:
    """What `amax <= eps`, the test that many copy, takes for an untrained row."""
    m, t = healthy()
    m.transformer.wte.weight.data[300] = -m.transformer.wte.weight.data[300].abs()
    assert m.transformer.wte.weight.data[300].amax() <= 0
    assert doctor(m, t) == []


def test_an_added_token_that_normalisation_swallows() -> None:
    t = tokenizer("wordpiece")
    m = model("bert", len(t) + 1)
    t.add_tokens([AddedToken("a zyx", single_word=True)])
    t.add_tokens([AddedToken("zyx", single_word=True)])
    swallowed = [f for f in doctor(m, t) if f.code == "added_token_swallowed"]
    assert swallowed and "'zyx'" in swallowed[0].message


@pytest.mark.parametrize("normalized", [True, False])
def test_markers_that_a_chat_template_writes_behind_text(normalized) -> None:
    t = tokenizer("sentencepiece_bpe")
    markers = [f"<|{role}|>" for role in ("user", "assistant", "end")]
    t.add_tokens([AddedToken(marker, normalized=normalized) for marker in markers])
    t.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    split = [f for f in doctor(model("llama", len(t)), t) if f.code == "chat_token_split"]
    assert len(split) == normalized
    if split:
        assert split[0].severity == "warning" and "2 added tokens are split" in split[0].message
        assert "'<|assistant|>', '<|end|>'" in split[0].message and "normalized=False" in split[0].advice
    t.chat_template = "{{ raise_exception('system first') }}"
    assert "chat_token_split" not in codes(model("llama", len(t)), t)


def test_a_tokenizer_that_its_class_builds_anew(tmp_path) -> None:
    """transformers 5 makes BERT's pre-tokenizer from its flags, whatever `tokenizer.json` says."""
    tokenizer("wordpiece").save_pretrained(tmp_path)
    t = BertTokenizerFast.from_pretrained(tmp_path)
    m = model("bert", len(t))
    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    for healthy_one in (codes(m, t), codes(tmp_path)):
        assert "splits_differently_after_saving" not in healthy_one
    t.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert codes(m, t)["splits_differently_after_saving"] == "error"
    t.save_pretrained(tmp_path)
    assert codes(tmp_path)["splits_differently_after_saving"] == "error"
    assert main(["doctor", str(tmp_path)]) == 4


def test_folders_that_cannot_be_read_are_findings(tmp_path) -> None:
    m, t = healthy()
    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    good = config.read_text()
    for text in ("", "[]", "{}", good[:-30], good.replace('"n_embd": 16', '"n_embd": 32')):
        config.write_text(text)
        assert codes(tmp_path).get("cannot_be_loaded") == "error", text[:20]
    config.write_text(good.replace('"n_embd": 16', '"n_embd": "many"'))
    (said,) = (finding.message for finding in doctor(tmp_path) if finding.code == "cannot_be_loaded")
    assert "\n" not in said
    if hasattr(PreTrainedConfig, "validate"):  # transformers 5.0 gives the number to torch as it is
        assert "'n_embd'" in said and "many" in said
    config.write_text(good)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    assert codes(tmp_path) == {"cannot_be_loaded": "error"}
    (tmp_path / "tokenizer.json").write_text("{}")
    assert codes(tmp_path)["tokenizer_cannot_be_loaded"] == "error"


def test_a_head_that_is_not_in_the_files(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    m, _ = healthy("llama")
    m.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert codes(tmp_path)["never_loaded"] == "error"


def test_repair_refills_what_is_broken_and_records_it() -> None:
    m, t = healthy()
    before = m.transformer.wte.weight.detach().clone()
    m.transformer.wte.weight.data[300] = 0
    m.transformer.wte.weight.data[310] = torch.nan
    assert repair(m, t) == [300, 310]
    now = m.transformer.wte.weight.detach()
    others = [i for i in range(320) if i not in (300, 310)]
    assert torch.equal(now[others], before[others])
    torch.testing.assert_close(now[300], before[others].mean(0))
    assert "rows_of_zeros" not in codes(m, t)
    assert read_manifest(m)[-1]["event"] == "repair" and read_manifest(m)[-1]["rows"] == [300, 310]
    assert repair(*healthy()) == []
    m.transformer.wte.weight.data[:] = torch.nan
    assert repair(m, t) == []  # nothing is left to make rows of, which the finding says
    for rows in ([320], [-1], [True], ["a"]):
        with pytest.raises(InvalidArgumentError, match="rows has"):
            repair(m, t, rows=rows)


def test_an_entry_of_a_bias_is_mended_and_its_row_stays(tmp_path: Path) -> None:
    m = MarianMTModel(MarianConfig(**{**SEQ2SEQ, "vocab_size": 320, "pad_token_id": 0}))
    before = {name: tensor.clone() for name, tensor in m.state_dict().items()}
    m.final_logits_bias[0, 7] = torch.nan
    m.final_logits_bias[0, :5] = 2.0
    m.save_pretrained(tmp_path)
    for found in (doctor(m), doctor(tmp_path)):
        (broken,) = (f for f in found if f.code == "bias_not_finite")
        assert (broken.rows, broken.table, broken.severity) == ((7,), "final_logits_bias", "error")
    assert repair(m) == [7]
    torch.testing.assert_close(
        m.final_logits_bias[0, 7], m.final_logits_bias[0].sum() / 320, atol=1e-4, rtol=0.01
    )
    del before["final_logits_bias"]
    assert all(torch.equal(m.state_dict()[name], tensor) for name, tensor in before.items())
    assert "bias_not_finite" not in codes(m)


def test_each_of_two_vocabularies_is_repaired() -> None:
    sizes = {**SEQ2SEQ, "vocab_size": 320, "decoder_vocab_size": 280, "pad_token_id": 0}
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    m = MarianMTModel(MarianConfig(**{**sizes, **apart}))
    m.get_encoder().embed_tokens.weight.data[300] = 0
    m.get_decoder().embed_tokens.weight.data[270] = 0
    assert repair(m, findings=doctor(m)) == [270, 300]
    assert bool(m.get_encoder().embed_tokens.weight[300].any())
    assert bool(m.get_decoder().embed_tokens.weight[270].any())
    m.final_logits_bias[0, 7] = torch.nan
    assert repair(m) == [7]
    told = [(event["rows"], event["side"], len(event["tables"])) for event in read_manifest(m)]
    assert told == [([300], "source", 1), ([270], "target", 1), ([7], "target", 0)]
    with pytest.raises(InvalidArgumentError, match="rows= does not say which of the two vocabularies"):
        repair(m, rows=[3])


def test_repair_from_vectors(tmp_path: Path) -> None:
    m, t = healthy()
    table, file = m.transformer.wte.weight.data, tmp_path / "v.txt"
    before = table.clone()
    words = {i: token[1:] for token, i in t.get_vocab().items() if token[0] == "Ġ" and token[1:].isalpha()}
    lost = min(words)  # the vectors are the table's own rows
    file.write_text(
        "".join(f"{word} {' '.join(map(str, before[i].tolist()))}\n" for i, word in words.items())
    )
    table[lost] = 0
    with pytest.raises(InvalidArgumentError, match="init 'mean' uses no vectors"):
        repair(m, t, vectors=file)
    with pytest.raises(InvalidArgumentError, match="needs vectors="):
        repair(m, t, init="pretrained_map")
    assert repair(m, t, init="pretrained_map", vectors=file) == [lost]
    assert torch.cosine_similarity(table[lost], before[lost], dim=0) > 0.9
    (source,) = {entry["source"]["name"] for entry in read_manifest(m)[-1]["tables"]}
    assert source.endswith("v.txt")


def test_only_the_table_that_is_broken_is_refilled() -> None:
    m, t = healthy("llama")
    m.lm_head.weight.data[300] = 0
    embedding = m.get_input_embeddings().weight.detach().clone()
    (found,) = doctor(m, t)
    assert (found.code, found.table, found.refill) == ("rows_of_zeros", "lm_head.weight", True)
    assert repair(m, t) == [300]
    assert torch.equal(m.get_input_embeddings().weight, embedding)
    assert [table["name"] for table in read_manifest(m)[-1]["tables"]] == ["lm_head.weight"]
    assert bool(m.lm_head.weight[300].any())
    assert repair(m, t, rows=[300]) == [300]
    assert not torch.equal(m.get_input_embeddings().weight, embedding)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (break_equal, "equal_rows"),
        (break_equal_new_rows, "equal_new_rows"),
        (break_under_trained, "under_trained"),
        (break_far, "far_rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_may_be_meant_so_are_refilled_when_they_are_named(damage, code, tmp_path, capsys) -> None:
    m, t = healthy()
    damage(m, t)
    before = m.get_input_embeddings().weight.detach().clone()
    assert repair(m, t) == [] and torch.equal(m.get_input_embeddings().weight, before)
    m.save_pretrained(tmp_path / "bad")
    t.save_pretrained(tmp_path / "bad")
    (found,) = (f for f in doctor(m, t) if f.code == code)
    assert repair(m, t, findings=[found], init="mean_cov", scale=1.0) == sorted(found.rows)
    others = [i for i in range(len(before)) if i not in found.rows]
    assert torch.equal(m.get_input_embeddings().weight[others], before[others])
    assert code not in codes(m, t)
    command = ["doctor", str(tmp_path / "bad"), "--fix", str(tmp_path / "fixed")]
    main([*command, "--refill", code, "--init", "mean_cov", "--option", "scale=1.0"])
    assert f"refilled {len(found.rows)} rows" in capsys.readouterr().out
    assert code not in codes(tmp_path / "fixed")


def test_wrong_ways_to_ask_for_a_refill(tmp_path, capsys) -> None:
    m, t = healthy()
    break_equal(m, t)
    m.save_pretrained(tmp_path / "bad")
    t.save_pretrained(tmp_path / "bad")
    command, fix = ["doctor", str(tmp_path / "bad")], ["--fix", str(tmp_path / "fixed")]
    for flags, sentence in (
        (["--refill", "equal_rows"], "--refill says how --fix refills rows: give --fix FOLDER, too"),
        (["--init", "mean"], "--init says how --fix refills rows: give --fix FOLDER, too"),
        ([*fix, "--refill", "equal_row"], "no finding here with rows has this code: equal_rows"),
        ([*fix, "--init", "meen"], "meen"),
        ([*fix, "--option", "scale=2"], "scale"),
    ):
        assert main([*command, *flags]) in (1, 2)
        told = capsys.readouterr().err.strip().splitlines()
        assert sentence in told[-1] and not (tmp_path / "fixed").exists()
    (found,) = (f for f in doctor(m, t) if f.code == "equal_rows")
    with pytest.raises(InvalidArgumentError, match="rows= and findings= were both given"):
        repair(m, t, rows=[3], findings=[found])
    with pytest.raises(InvalidArgumentError, match=r"findings has one about 'transformer\.wte.+', but"):
        repair(model("llama", 320), t, findings=[found])


def test_new_rows_that_are_equal_are_one_finding() -> None:
    m, t = healthy()
    break_equal_new_rows(m, t)
    assert [f.code for f in doctor(m, t) if "equal" in f.code] == ["equal_new_rows"]
    break_equal(m, t)  # old rows that are equal are another
    assert {f.code for f in doctor(m, t) if "equal" in f.code} == {"equal_new_rows", "equal_rows"}


def test_the_command(tmp_path, capsys) -> None:
    m, t = healthy()
    m.save_pretrained(tmp_path / "good")
    t.save_pretrained(tmp_path / "good")
    assert main(["doctor", str(tmp_path / "good")]) == 0
    assert capsys.readouterr().out.strip() == "nothing found"
    m.transformer.wte.weight.data[300] = 0
    m.save_pretrained(tmp_path / "bad")
    t.save_pretrained(tmp_path / "bad")
    fixed = str(tmp_path / "fixed")
    assert main(["doctor", str(tmp_path / "bad"), "--json", "--fix", fixed]) == 3
    told = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in told["findings"]] == ["rows_of_zeros"] and told["repaired"] == [300]
    assert main(["doctor", fixed]) == 0
    (tmp_path / "bad" / "config.json").write_text("{}")
    assert main(["doctor", str(tmp_path / "bad")]) == 4


def test_a_table_beside_a_tied_one_is_not_what_the_configuration_ties() -> None:
    assert not [finding for finding in doctor(mobilebert()) if finding.code == "tie_only_in_config"]


def test_the_tie_of_a_composite_model_is_what_its_own_configuration_says() -> None:
    tied = model("llama", 320)
    composite = SimpleNamespace(tie_word_embeddings=True, get_text_config=lambda: tied.config)
    assert tied.config.tie_word_embeddings is False and configured_tie(composite) is True
    composite.tie_word_embeddings = None
    assert configured_tie(composite) is False
