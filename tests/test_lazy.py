"""What is imported on first use: nothing by `import hf_embinit`, the vanilla models by an Auto class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT


def runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_imports_nothing_else() -> None:
    runs(
        "import sys; import hf_embinit; "
        "assert not {'torch', 'transformers', 'numpy', 'hf_embinit.models'} & set(sys.modules)"
    )


HEAVY = {"datasets", "spacy", "matplotlib", "sklearn", "scipy", "evaluate", "peft", "sacrebleu"}


def test_patching_needs_no_vanilla_model_and_touches_no_class() -> None:
    runs(
        "import sys; from transformers import GPT2Config, AutoModelForCausalLM, PreTrainedModel as P; "
        "before = P.resize_token_embeddings, P._init_weights; loaded = set(sys.modules); "
        f"import hf_embinit; heavy = {HEAVY} & (set(sys.modules) - loaded); assert not heavy, heavy; "
        "import hf_embinit.vocabulary; assert 'hf_embinit.axolotl' not in sys.modules; "
        "sys.modules['hf_embinit.models'] = None; "  # an import of it is an error
        "config = GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1); "
        "model = hf_embinit.patch(AutoModelForCausalLM.from_config(config)); "
        "model.resize_token_embeddings(11); "
        "assert before == (P.resize_token_embeddings, P._init_weights); "
        "assert not {'datasets', 'spacy', 'matplotlib', 'sacrebleu'} & set(sys.modules)"
    )


def test_no_other_public_name_needs_the_vanilla_models() -> None:
    """They need a later transformers than the package does."""
    runs(
        "import sys, hf_embinit; sys.modules['hf_embinit.models'] = None; "
        "[getattr(hf_embinit, name) for name in hf_embinit.__all__ if name != 'models']"
    )


def test_recipes_that_train_nothing_themselves_have_a_quick_help() -> None:
    runs(
        "import contextlib, runpy, sys\n"
        "for name in ('reproduce', 'retokenize', 'compare_vocabularies', 'chat_tokens'):\n"
        f"    sys.argv = [{str(ROOT / 'recipes')!r} + f'/{{name}}.py', '--help']\n"
        "    with contextlib.suppress(SystemExit): runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "    slow = {'transformers.modeling_utils', 'transformers.training_args', 'peft', 'spacy'}\n"
        "    assert not slow & set(sys.modules), (name, slow & set(sys.modules))"
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    from hf_embinit.models import (
        VanillaTransformerConfig,
        VanillaTransformerForCausalLM,
        VanillaTransformerTokenizer,
    )

    folder = tmp_path_factory.mktemp("vanilla")
    tokenizer = VanillaTransformerTokenizer.build(["a man"], source_lang="en", min_frequency=1)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=8, num_heads=2, d_ff=8, num_layers=1,
        is_encoder_decoder=False, is_decoder=True,
    )  # fmt: skip
    VanillaTransformerForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("first", "auto"),
    [
        ("hf_embinit", "AutoTokenizer"),
        ("transformers.models.auto.configuration_auto", "AutoModelForCausalLM"),
        ("transformers.models.auto.modeling_auto", "AutoConfig"),
    ],
)
def test_the_auto_classes_know_the_vanilla_models_once_they_meet_one(first, auto, checkpoint) -> None:
    runs(
        f"import {first}; import sys, hf_embinit; from transformers import {auto}; "
        "assert 'hf_embinit.models' not in sys.modules; "
        f"found = {auto}.from_pretrained({str(checkpoint)!r}); "
        "assert type(found).__module__.startswith('hf_embinit.models'), type(found)"
    )
