"""Steps as CUDA graphs. Without a GPU a stand-in for the graph does the step again at each replay, which
shows what is around it: static inputs, gradients that are put back, shapes. On a GPU
`tests/benchmarks/bench_cuda_graphs.py` compares the losses themselves."""

import pytest
import torch
from datasets import Dataset
from transformers import Seq2SeqTrainingArguments, set_seed

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_embinit.tasks.translation import TASK, PairCollator
from hf_embinit.training import graphs
from hf_embinit.training.loop import GeneratingTrainer, start
from hf_embinit.training.shared_arguments import StepArguments


class Padder:
    """What a collator asks of a tokenizer."""

    pad_token_id, padding_side, model_input_names = 0, "right", ("input_ids", "attention_mask")

    def pad(self, features, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None):
        length = max(len(f["input_ids"]) for f in features)
        length += -length % (pad_to_multiple_of or 1)
        rows = {
            name: [f[name] + [0] * (length - len(f[name])) for f in features]
            for name in self.model_input_names
        }
        return {name: torch.tensor(values) for name, values in rows.items()}


def pairs(count: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(count):
        source, target = torch.randint(2, 20, (2,), generator=generator).tolist()
        ids = torch.randint(4, 30, (source,), generator=generator).tolist()
        labels = torch.randint(4, 30, (target,), generator=generator).tolist()
        rows.append(
            {
                "input_ids": ids,
                "attention_mask": [1] * source,
                "labels": labels,
                "length": max(source, target),
            }
        )
    return Dataset.from_list(rows)


def trained(tmp_path, monkeypatch, *, cuda_graphs: bool, frozen: bool):
    set_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=30, decoder_vocab_size=30, d_model=16, d_ff=32, num_layers=1, num_heads=2,
        dropout_rate=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        freeze_embeddings=frozen,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config)
    replays = []

    def stand_in(step, pool):
        static = step()
        written = [p.grad for p in model.parameters() if p.grad is not None]

        def replay():
            replays.append(1)
            model.zero_grad()
            static.copy_(step())
            for gradient, parameter in zip(
                written, (p for p in model.parameters() if p.grad is not None), strict=True
            ):
                gradient.copy_(parameter.grad)
                parameter.grad = None  # a replay writes to its own memory, and to no parameter

        return replay, static

    monkeypatch.setattr(graphs, "capture", stand_in)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    collator = PairCollator(Padder(), model=model, pad_to_multiple_of=graphs.PADDED_TO)
    trainer = GeneratingTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            str(tmp_path),
            num_train_epochs=3,
            per_device_train_batch_size=8,
            train_sampling_strategy="group_by_length",
            remove_unused_columns=False,
            learning_rate=1e-2,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=pairs(100),
        data_collator=collator,
    )
    trainer.graphs = graphs.StepGraphs() if cuda_graphs else None
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return model, losses, trainer, len(replays)


@pytest.mark.parametrize("frozen", [False, True])
def test_replayed_steps_train_as_the_trainers_own(tmp_path, monkeypatch, frozen):
    ours, losses, trainer, replays = trained(tmp_path, monkeypatch, cuda_graphs=True, frozen=frozen)
    plain, expected, _, none = trained(tmp_path, monkeypatch, cuda_graphs=False, frozen=frozen)
    assert none == 0 and replays > 20, "steps were not replayed"
    assert 2 <= len(trainer.graphs.captured) <= 12 < trainer.state.global_step
    trainable = sum(p.requires_grad for p in ours.parameters())
    assert {len(step.gradients) for step in trainer.graphs.captured.values()} == {trainable}
    assert losses == pytest.approx(expected, rel=1e-5)
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    assert losses[-1] < losses[0]


class OnGpu:
    """Arguments of a run as on a GPU."""

    def __init__(self, args, **changed):
        self.args, self.changed = (
            args,
            {"device": torch.device("cuda"), "n_gpu": 1, "world_size": 1} | changed,
        )

    def __getattr__(self, name):
        return self.changed[name] if name in self.changed else getattr(self.args, name)


@pytest.mark.parametrize(
    ("changed", "twins", "named"),
    [
        ({"device": torch.device("cpu")}, False, "needs a CUDA GPU, and this run is on cpu"),
        ({"n_gpu": 2}, False, "one GPU: set CUDA_VISIBLE_DEVICES"),
        ({"world_size": 2}, False, "one GPU"),
        ({"gradient_accumulation_steps": 2}, False, "--gradient_accumulation_steps 2: leave one"),
        ({"fp16": True}, False, "--fp16"),
        ({"torch_compile": True}, False, "--torch_compile"),
        ({"gradient_checkpointing": True}, False, "--gradient_checkpointing"),
        ({}, True, "--twin_seeds"),
    ],
)
def test_what_cannot_be_captured_is_refused(tmp_path, changed, twins, named):
    args = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    graphs.check_cuda_graphs(OnGpu(args))
    with pytest.raises(InvalidArgumentError, match=f"--cuda_graphs .*{named}"):
        graphs.check_cuda_graphs(OnGpu(args, **changed), twins=twins)


def test_the_recipe_refuses_it_before_any_work(tmp_path):
    args = Seq2SeqTrainingArguments(str(tmp_path / "run"), use_cpu=True, report_to=[])
    with pytest.raises(InvalidArgumentError, match="needs a CUDA GPU"):
        start(
            TASK, args, StepArguments(cuda_graphs=True), dataset="captions", init="xavier", tokenizer="words"
        )
    assert not (tmp_path / "run").exists()
