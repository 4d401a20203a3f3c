"""Models side by side: nothing passes between them, same masks, and what is recorded of them."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.tiny_tokenizers import model as tiny_model
from builders.tiny_tokenizers import tokenizer
from datasets import Dataset
from transformers import TrainerControl, TrainerState

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError
from hf_embinit.measures.knn import knn_match_similarity
from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForCausalLM
from hf_embinit.tasks.causal_models import build_tokenizer
from hf_embinit.tasks.language_modeling import (
    TextData,
    continuations,
    load_texts,
    pack_blocks,
    preset,
    spread_blocks,
    token_counts,
)
from hf_embinit.training.callbacks import (
    EpochClock,
    changed_tensors,
    freeze_all_but_embeddings,
    train_seconds,
)
from hf_embinit.training.trajectory_figures import plot_trajectory
from hf_embinit.training.twins import (
    TwinRecorder,
    Twins,
    compared_rows,
    log_schedule,
    trajectory,
    twin_metrics,
)

V = 30


def decoder(seed: int, **config: Any) -> VanillaTransformerForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes: dict[str, Any] = {"d_model": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "pad_token_id": 0}
        return VanillaTransformerForCausalLM(VanillaTransformerConfig(**{"vocab_size": V, **sizes, **config}))


def block() -> torch.Tensor:
    return torch.randint(1, V, (3, 7), generator=torch.Generator().manual_seed(0))


def test_each_gets_its_own_gradient_alone() -> None:
    twins = Twins({"a": decoder(0, dropout_rate=0.0), "b": decoder(1, dropout_rate=0.0)}).train()
    twins(block(), block())["loss"].backward()
    for seed, name in enumerate("ab"):
        alone = decoder(seed, dropout_rate=0.0).train()
        loss = alone(input_ids=block(), labels=block()).loss
        loss.backward()
        ours = dict(twins.models[name].named_parameters())
        assert all(torch.equal(ours[n].grad, p.grad) for n, p in alone.named_parameters())  # type: ignore[arg-type]
        assert float(twins.loss_sums[seed]) == pytest.approx(loss.item())
    assert int(twins.loss_count) == 1


def test_all_draw_the_same_dropout_masks_and_as_many_numbers_as_one() -> None:
    model = decoder(0, dropout_rate=0.5).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        one = model(input_ids=block(), labels=block()).loss.item()
        after = torch.get_rng_state()
        torch.manual_seed(5)
        twins = Twins({"a": model, "b": copy.deepcopy(model)}).train()
        total = twins(block(), block())["loss"].item()
        assert torch.equal(after, torch.get_rng_state())
    assert total == pytest.approx(2 * one) and twins.loss_sums.tolist() == [pytest.approx(one)] * 2


def test_in_evaluation_the_losses_of_each_are_told() -> None:
    twins = Twins({"a": decoder(0), "b": decoder(1)}).eval()
    with torch.no_grad():
        told = twins(block(), block())
        losses = [m(input_ids=block(), labels=block()).loss.item() for m in twins.models.values()]
    assert told["losses"].shape == (3, 2) and int(twins.loss_count) == 0
    found = twin_metrics(SimpleNamespace(predictions=told["losses"].numpy()))
    assert found == {"loss_0": pytest.approx(losses[0]), "loss_1": pytest.approx(losses[1])}


def test_the_state_of_tied_models_can_be_saved_and_loaded(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    twins = Twins({"a": tiny_model("gpt2", V), "b": tiny_model("gpt2", V)})
    save_file(twins.state_dict(), tmp_path / "model.safetensors")
    other = Twins({"a": tiny_model("gpt2", V), "b": tiny_model("gpt2", V)})
    for parameter in other.parameters():
        parameter.detach().zero_()
    result = other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert not result.missing_keys and not result.unexpected_keys
    assert all(torch.equal(x, y) for x, y in zip(twins.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("last", "per_decade"), [(1, 1), (7, 3), (16_000, 8), (1000, 1)])
def test_the_schedule_is_even_on_a_logarithmic_axis(last, per_decade) -> None:
    steps = log_schedule(last, per_decade)
    assert steps[:2] == [0, 1] and steps[-1] == last and steps == sorted(set(steps))
    far = [s for s in steps if s >= 100]
    ratios = [b / a for a, b in itertools.pairwise(far[:-1])]
    assert all(r == pytest.approx(10 ** (1 / per_decade), rel=0.02) for r in ratios)
    if last == 1000:
        assert steps == [0, 1, 10, 100, 1000]


def test_a_schedule_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        log_schedule(0, 8)


def test_which_rows_are_compared() -> None:
    counts = torch.arange(V)  # the last ids are the most frequent
    assert compared_rows(decoder(0), counts, None, 3).tolist() == list(range(1, V))  # without padding
    assert compared_rows(decoder(0), counts, 5, 3).tolist() == list(range(V - 5, V))
    wider = decoder(0, pad_token_id=None)
    assert compared_rows(wider, counts[:10], 4, 3).tolist() == [6, 7, 8, 9]
    for k in (0, 5):
        with pytest.raises(InvalidArgumentError, match=f"--knn_k {k}: each of the 5 tokens"):
            compared_rows(decoder(0), counts, 5, k)


def recorder(twins: Twins, **options: Any) -> TwinRecorder:
    settings: dict[str, Any] = {"per_decade": 2, "k": 3, "max_grad_norm": 1.0, "counts": torch.ones(V)}
    return TwinRecorder(twins, **{**settings, "rows": torch.arange(1, V), **options})


def test_each_is_clipped_by_its_own_norm() -> None:
    twins = Twins({"a": decoder(0), "b": decoder(1)})
    for name, size in (("a", 10.0), ("b", 1e-3)):
        for parameter in twins.models[name].parameters():
            parameter.grad = torch.full_like(parameter, size)
    before = [p.grad.clone() for p in twins.models["b"].parameters()]  # type: ignore[union-attr]
    recorder(twins).on_pre_optimizer_step(None, None, None)  # type: ignore[arg-type]
    norm = torch.stack([p.grad.norm() for p in twins.models["a"].parameters()]).norm()  # type: ignore[union-attr]
    assert float(norm) == pytest.approx(1.0, rel=1e-4)
    assert all(torch.equal(p.grad, g) for p, g in zip(twins.models["b"].parameters(), before, strict=True))  # type: ignore[arg-type]


def test_a_row_has_the_means_over_all_over_seen_and_by_frequency() -> None:
    twins = Twins({"a": decoder(0), "b": decoder(1)})
    counts = torch.zeros(V)
    counts[3], counts[4] = 1.0, 3.0
    row: dict[str, Any] = recorder(twins, counts=counts).similarities()
    tables = [m.get_input_embeddings().weight.detach()[1:] for m in twins.models.values()]
    each = knn_match_similarity(*tables, 3, per_token=True)
    assert row["knn_input_inner_product"] == pytest.approx(float(each.mean()))
    assert row["knn_input_inner_product_seen"] == pytest.approx(float(each[2:4].mean()))
    assert row["knn_input_inner_product_weighted"] == pytest.approx(float(0.25 * each[2] + 0.75 * each[3]))
    assert {"knn_input_cosine", "knn_output_inner_product"} <= row.keys()
    tied = Twins({"a": decoder(0, tie_word_embeddings=True), "b": decoder(1, tie_word_embeddings=True)})
    assert not any(name.startswith("knn_output") for name in recorder(tied).similarities())


def test_rows_are_written_at_the_steps_of_the_schedule_and_read_back() -> None:
    twins = Twins({"a": decoder(0), "b": decoder(1)})
    writer, state, control = recorder(twins), TrainerState(max_steps=10), TrainerControl()
    writer.on_train_begin(None, state, control)  # type: ignore[arg-type]
    for step in range(11):
        state.global_step, control.should_evaluate = step, False
        writer.on_step_end(None, state, control)  # type: ignore[arg-type]
        if control.should_evaluate:
            twins.loss_sums += torch.tensor([2.0, 4.0])
            twins.loss_count += 2
            writer.on_evaluate(None, state, control, metrics={"eval_loss_0": 5.0, "eval_loss_1": 6.0})  # type: ignore[arg-type]
    rows = trajectory([{"step": 3, "loss": 1.0}, *state.log_history])
    assert [row["step"] for row in rows] == log_schedule(10, 2)
    assert all(row["train_loss_a"] == 1.0 and row["train_loss_b"] == 2.0 for row in rows)
    assert rows[0]["validation_loss_a"] == 5.0 and rows[0]["std_b"] > 0


def test_freezing_all_but_embeddings() -> None:
    for tied in (False, True):
        model = decoder(0, tie_word_embeddings=tied)
        frozen = freeze_all_but_embeddings(model)
        trained = [n for n, p in model.named_parameters() if p.requires_grad]
        assert trained == ["model.decoder.embed_tokens.weight"] and trained[0] not in frozen
        assert ("lm_head.weight" in frozen) == (not tied) and "lm_head.bias" in frozen
        model.get_input_embeddings().weight.data += 1
        assert changed_tensors(model, frozen) == []
        model.lm_head.bias.data[0] += 1e-7
        assert changed_tensors(model, frozen) == ["lm_head.bias"]


def test_the_clock_stops_for_evaluations_within_an_epoch(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hf_embinit.training.callbacks.time.perf_counter", lambda: now[0])
    clock, state, control = EpochClock(), TrainerState(), TrainerControl()
    arguments: tuple[Any, ...] = (None, state, control)
    clock.on_epoch_begin(*arguments)
    for step, evaluate in enumerate([False, True, False]):
        clock.on_step_begin(*arguments)
        now[0] += 1
        control.should_evaluate = evaluate
        clock.on_step_end(*arguments)
        now[0] += 100 * evaluate
        state.global_step = step + 1
    clock.on_epoch_end(*arguments)
    assert train_seconds(state.log_history) == 3 and len(state.log_history) == 2


def test_the_picture_of_a_trajectory(tmp_path) -> None:
    names = ("knn_input_inner_product", "validation_loss_a", "train_loss_a", "std_a")
    rows = [{"step": step, **dict.fromkeys(names, 1 / (step + 1))} for step in (0, 1, 10, 100)]
    path = plot_trajectory(rows, ["a"], tmp_path / "t.png", title="x")
    assert path.stat().st_size > 20_000
    with pytest.raises(InvalidArgumentError, match="no rows"):
        plot_trajectory([], ["a"], tmp_path / "t.png")


def test_stories_and_their_blocks() -> None:
    data = load_texts("stories")
    assert {split: len(rows) for split, rows in data.items()} == {
        "train": 2000,
        "validation": 100,
        "test": 100,
    }
    texts = data["test"]["text"][:]
    assert all(text.count(".") >= 4 for text in texts)
    words = build_tokenizer("words", texts, min_frequency=1)
    packed = pack_blocks(texts, words, 16)
    counts = token_counts(packed.blocks, len(words))
    assert int(counts.sum()) == 16 * len(packed.blocks) and counts[words.pad_token_id] == 0
    assert len(spread_blocks(packed.blocks, 5)) == 5
    assert len(spread_blocks(packed.blocks, 0)) == len(packed.blocks)
    data = TextData({"train": data["test"], "validation": data["test"]}, words, block_size=16)
    many = len(data.train)
    args = SimpleNamespace(train_batch_size=many - 1, world_size=1, gradient_accumulation_steps=1)
    for step, read in {1: many - 1, 2: many, 3: 2 * many - 1, 4: 2 * many}.items():  # the last batch has one
        trainer = SimpleNamespace(args=args, state=SimpleNamespace(global_step=step))
        assert data.trained_tokens(trainer) == 16 * read
    numbered = Dataset.from_dict({"i": list(range(127))})
    assert spread_blocks(numbered, 64)["i"][:] == [i * 127 // 64 for i in range(64)]  # to the end of the text
    for count in (127, 128):
        assert spread_blocks(numbered, count)["i"][:] == list(range(127))
    rows = continuations({"it": decoder(0, vocab_size=len(words))}, words, packed.blocks, count=2)
    assert [set(row) for row in rows] == [{"prompt", "reference", "it"}] * 2


def test_a_tokenizer_that_is_nowhere(tmp_path) -> None:
    with pytest.raises(DataNotFoundError, match="--tokenizer 'nobody/nothing' is no folder here"):
        build_tokenizer("nobody/nothing", ["x"])
    tokenizer("byte_level").save_pretrained(tmp_path / "t")
    assert len(build_tokenizer(str(tmp_path / "t"), ["x"])) == 320


def test_presets() -> None:
    assert preset("wikitext-2-v1", "vanilla")["max_steps"] == 16_000
    assert preset("wikitext-2-v1", "vanilla")["d_model"] == 512
    assert preset("wikitext-2-v1", "some/model")["max_steps"] == 8_000
    assert "max_steps" not in preset("stories", "some/model", new_embeddings=False)
