"""Files of new tokens, in Python and by the command line."""

from __future__ import annotations

import json

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_embinit.__main__ import main
from hf_embinit.errors import DataNotFoundError, EmbinitError
from hf_embinit.vocabulary import read_tokens_file

YAML = """
- "<tool>"
- {name: "<plan>", description: a man and a dog}
- {name: "<king>", like: [Ġdog, Ġman], special: true}
- name: "<draw>"
  init: mean_cov
  options: {scale: 0.01}
"""


@pytest.mark.parametrize("name", ["tokens.yaml", "tokens.json"])
def test_each_token_is_made_as_the_file_says(name, tmp_path, capsys) -> None:
    import yaml

    t = tokenizer("byte_level", 600)
    model("gpt2", len(t)).save_pretrained(tmp_path / "model")
    t.save_pretrained(tmp_path / "model")
    text = YAML if name.endswith("yaml") else json.dumps(yaml.safe_load(YAML))
    (tmp_path / name).write_text(text, encoding="utf-8")
    out = str(tmp_path / "out")
    flags = ["--tokens_file", str(tmp_path / name), "--output_dir", out]
    assert main(["expand", str(tmp_path / "model"), *flags]) == 0
    assert "<king>" in capsys.readouterr().out
    m, grown = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    rows = m.get_input_embeddings().weight.detach()
    tool, plan, king, draw = (grown.convert_tokens_to_ids(f"<{x}>") for x in ("tool", "plan", "king", "draw"))
    mean = rows[:600].mean(0)
    torch.testing.assert_close(rows[tool], mean)
    torch.testing.assert_close(rows[plan], rows[t("a man and a dog")["input_ids"]].mean(0))
    torch.testing.assert_close(rows[king], rows[t(" dog man")["input_ids"]].mean(0))
    assert not torch.allclose(rows[draw], mean)
    assert king in grown.all_special_ids or grown.added_tokens_decoder[king].special
    assert not grown.added_tokens_decoder[plan].special


def test_a_line_a_token_is_as_before(tmp_path) -> None:
    (tmp_path / "words.txt").write_bytes("one\n\n two\r\na\x85b\u2028c\n".encode())
    assert read_tokens_file(tmp_path / "words.txt") == (["one", " two", "a\x85b\u2028c"], {})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("- [1", "cannot be read"),
        ("name: x", "holds no list"),
        ("- 3", "entry 1: 3 is neither a token nor a mapping"),
        ("- a\n- {like: x}", "entry 2: .* nor a mapping with its name"),
        ("- {name: x, lik: y}", "has 'lik': expected name, description, like"),
        ("- {name: x, like: y, init: mean}", "has 'like' and 'init': give one"),
        ("- {name: x, options: {scale: 1}}", "'options', which belong to an 'init'"),
        ("- {name: x, special: maybe}", "special is 'maybe', expected true or false"),
        ("- {name: x, description: 3}", "description is 3, expected a text"),
        ("- {name: x, like: [{}]}", "expected a token or a list of tokens"),
        ("- {name: x, like: []}", "expected a token or a list of tokens"),
        ("- {name: x, init: mean_cov, options: 3}", "options is 3, expected a mapping"),
        ("- {name: x, init: mean_cov, options: {scale: lots}}", "scale='lots': expected a finite number"),
        ("- {name: x, init: mena}", "Unknown init 'mena'"),
        ("", "has no token"),
    ],
)
def test_what_is_wrong_is_one_sentence(text, match, tmp_path) -> None:
    (tmp_path / "tokens.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(EmbinitError, match=match) as error:
        read_tokens_file(tmp_path / "tokens.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet", ".gz"])
def test_files_whose_lines_are_no_tokens_are_refused(ending, tmp_path) -> None:
    (tmp_path / f"tokens{ending}").write_text('{"name": "<x>"}', encoding="utf-8")
    with pytest.raises(
        EmbinitError, match=rf"a {ending} file is not read; .* in a .txt, or a list in a .json"
    ):
        read_tokens_file(tmp_path / f"tokens{ending}")


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(DataNotFoundError, match="is no file here"):
        read_tokens_file(tmp_path / "tokens.yaml")
    with pytest.raises(DataNotFoundError, match="is a folder: give a file"):
        read_tokens_file(tmp_path)
