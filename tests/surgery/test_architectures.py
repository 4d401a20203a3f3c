"""With `-m sweep`: layers of every language model class of transformers reversed and removed.

What comes out is saved and loaded again and must be the same model; reversing twice must be the identity. A
class whose layers cannot be rearranged must be refused, by `UnsupportedModelError` alone, and left as it was.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from builders import architectures
from builders.surgery_models import same, values
from transformers import PreTrainedModel

from hf_embinit import surgery
from hf_embinit.errors import UnsupportedModelError

BROKEN_ALREADY = {"MusicgenForCausalLM", "MusicgenMelodyForCausalLM", "MarianMTModel"}
"""Built small, these do not run or reload as they are."""
NEEDS_LAYERS = {"GraniteMoeHybridForCausalLM", "RwkvForCausalLM"}
"""These run with a layer of each kind, or with two, alone."""


def built(name: str) -> PreTrainedModel:
    model = architectures.build(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def check(name: str) -> dict[str, bool]:
    """Intervention -> whether it was done (else refused)."""
    ids = torch.randint(5, 190, (2, architectures.sequence_length(name)))
    done = {}
    for spec in ("reversed", "remove_last_1"):
        model = built(name)
        before = values(model)
        try:
            surgery.apply(model, spec)
            done[spec] = True
        except UnsupportedModelError:
            done[spec] = False
            assert same(values(model), before), f"{name} {spec}: refused, but changed"
            continue
        if name in BROKEN_ALREADY or (spec != "reversed" and name in NEEDS_LAYERS):
            continue
        logits = architectures.logits_of(model, ids)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = type(model).from_pretrained(folder).eval()
        torch.testing.assert_close(architectures.logits_of(again, ids), logits, rtol=1e-5, atol=1e-6)
        if spec == "reversed":
            assert same(values(surgery.apply(model, "reversed")), before), f"{name}: twice is not once"
    return done


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_every_architecture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcomes: dict[str, dict[str, bool]] = {}
    problems = []
    for _, _, name in architectures.classes():
        try:
            built(name)
        except Exception:  # not every class can be built small
            continue
        try:
            outcomes[name] = check(name)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        gc.collect()
    refused = {s: sorted(n for n, d in outcomes.items() if not d[s]) for s in ("reversed", "remove_last_1")}
    with capsys.disabled():
        for spec, names in refused.items():
            sys.stdout.write(f"\n{spec}: {len(outcomes) - len(names)} done, refused: {', '.join(names)}")
        sys.stdout.write("\n")
    assert not problems, "\n".join(problems)
    assert len(refused["reversed"]) <= 8 and len(refused["remove_last_1"]) <= 14
    assert "AlbertForMaskedLM" in refused["reversed"]
