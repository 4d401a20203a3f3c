"""The plugin for axolotl: as its plugin manager calls one, by the signatures of its base class."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from builders.tiny_tokenizers import model

from hf_embinit.errors import InvalidArgumentError

SIGNATURES = {
    "get_input_args": ["self"],
    "post_model_build": ["self", "cfg", "model"],
    "pre_lora_load": ["self", "cfg", "model"],
    "add_callbacks_pre_trainer": ["self", "cfg", "model"],
}
"""Of `BasePlugin` in `axolotl/integrations/base.py` of axolotl 0.19.0, read from its wheel of 2026-09-10."""


@pytest.fixture
def plugin(monkeypatch):
    try:
        importlib.import_module("axolotl.integrations.base")
    except ImportError:  # needs a GPU's packages: a base class of the same name in its place
        base = ModuleType("axolotl.integrations.base")
        base.BasePlugin = type("BasePlugin", (), {})
        for name in ("axolotl", "axolotl.integrations"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "hf_embinit.axolotl", raising=False)
    yield importlib.import_module("hf_embinit.axolotl")
    sys.modules.pop("hf_embinit.axolotl", None)


def configuration(plugin, **values) -> SimpleNamespace:
    return SimpleNamespace(seed=3, **{**plugin.EmbinitArgs().model_dump(), **values})


def test_the_methods_are_those_of_the_base_class(plugin) -> None:
    methods = dict(inspect.getmembers(plugin.EmbinitPlugin, inspect.isfunction))
    own = {
        n: list(inspect.signature(m).parameters)
        for n, m in methods.items()
        if n in vars(plugin.EmbinitPlugin)
    }
    assert own == SIGNATURES
    module, _, name = plugin.EmbinitPlugin().get_input_args().rpartition(".")
    assert getattr(importlib.import_module(module), name) is plugin.EmbinitArgs


def test_axolotl_itself_calls_it() -> None:
    """Its base class has these methods, and its manager registers the plugin by name."""
    base = pytest.importorskip("axolotl.integrations.base", reason="axolotl needs packages of a GPU")
    for name, parameters in SIGNATURES.items():
        assert list(inspect.signature(getattr(base.BasePlugin, name)).parameters) == parameters
    manager = base.PluginManager()
    manager.register("hf_embinit.axolotl.EmbinitPlugin")
    assert manager.get_input_args() == ["hf_embinit.axolotl.EmbinitArgs"]
    m = model("llama", 320)
    manager.post_model_build(SimpleNamespace(seed=3, embinit_init="mean", embinit_options=None), m)
    m.resize_token_embeddings(328)
    manager.pre_lora_load(None, m)
    assert m.config.embinit[0]["init"] == "mean"
    assert [type(c).__name__ for c in manager.add_callbacks_pre_trainer(None, m)] == ["VocabularyCallback"]


def test_a_resize_between_build_and_adapter_is_ours(plugin) -> None:
    one, m = plugin.EmbinitPlugin(), model("llama", 320)
    cfg = configuration(plugin, embinit_init="mean_cov", embinit_options={"scale": "auto"})
    one.post_model_build(cfg, m)
    m.resize_token_embeddings(328, mean_resizing=True)
    one.pre_lora_load(cfg, m)
    (event,) = m.config.embinit
    assert (event["init"], event["seed"], event["options"]) == ("mean_cov", 3, {"scale": "auto"})
    rows = m.get_input_embeddings().weight
    torch.testing.assert_close(rows[320:].mean(0), rows[:320].mean(0))
    m.resize_token_embeddings(330)
    assert len(m.config.embinit) == 1
    assert [type(c).__name__ for c in one.add_callbacks_pre_trainer(cfg, m)] == ["VocabularyCallback"]


def test_an_initialiser_that_reads_tokens_is_refused(plugin) -> None:
    with pytest.raises(InvalidArgumentError, match="looks tokens up"):
        plugin.EmbinitPlugin().post_model_build(
            configuration(plugin, embinit_init="subword_mean"), model("gpt2", 320)
        )
