# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]", "trl>=1.16,<2"]
#
# [tool.hf-jobs]
# flavor = "a10g-small"
# timeout = "2h"
# ///
"""Teach a language model to chat with new control tokens: TRL's SFT, a small adapter, a plain checkpoint.

    python recipes/chat_tokens.py
    python recipes/chat_tokens.py --model HuggingFaceTB/SmolLM2-135M --template Qwen/Qwen3-0.6B

The control tokens come with a chat template, which TRL's `clone_chat_template` copies from another tokenizer;
under `hf_embinit.patched` it neither cuts rows off nor trains dummies. LoRA trains the layers, and PEFT the
rows of the control tokens; the adapter carries them, is loaded on the model as it was before, and merged into
a checkpoint that needs no adapter. Then it answers. The first command runs offline in about two minutes of
one CPU core: a small model of embedded captions learns to answer with a sentence and to stop there. It is too
small to heed the words that it is asked about. TRL is to be installed: `pip install trl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_embinit.arguments import Count, Positive, Text, TrainingSeed
from hf_embinit.training import flag, parse_arguments, run_main

CONTROL = ["<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass
class ChatArguments:
    """The model, its new tokens, and the training."""

    model: str = flag(
        "captions", "A causal LM by Hub id or folder, or `captions`: a small one trained on embedded text."
    )
    template: str | None = flag(
        None, "Hub id or folder of the tokenizer whose chat template is copied. Default: ChatML's."
    )
    init: str = flag("mean", "Initialiser of the new rows, by name or name:option=value.")
    output_dir: Text = flag("runs/chat_tokens", "Folder for `adapter` and `merged`.")
    max_train_samples: Count = flag(2000, "Conversations to train on.")
    max_steps: Count = flag(200, "Optimizer steps.")
    learning_rate: Positive = flag(2e-3, "Learning rate of adapter and new rows.")
    rank: Count = flag(16, "LoRA's rank.")
    batch_size: Count = flag(16, "Conversations a step.")
    use_cpu: bool = flag(False, "Stay off the GPU.")
    seed: TrainingSeed = flag(0, "Seed of the new rows, the adapter and the order of the conversations.")


def conversation(caption: str) -> dict[str, Any]:
    """A caption as an answer to two of its words."""
    words = sorted(set(caption.strip(".").lower().split()), key=lambda word: (-len(word), word))[:2]
    request = {"role": "user", "content": " ".join(words)}
    return {"messages": [request, {"role": "assistant", "content": caption}]}


def chatml(tokenizer: Any, folder: Path) -> str:
    """The folder of a tokenizer that has ChatML's template and tokens."""
    import copy

    source = copy.deepcopy(tokenizer)
    source.add_special_tokens({"additional_special_tokens": CONTROL})
    source.eos_token, source.chat_template = CONTROL[1], TEMPLATE
    source.save_pretrained(folder)
    return str(folder)


def main() -> None:
    """Template and tokens, training, adapter, merge, answers."""
    (args,) = parse_arguments((ChatArguments,), lambda known: {}, description=__doc__ or "")
    # after --help, which answers without them
    from datasets import Dataset
    from transformers import pipeline, set_seed
    from transformers.utils import is_torch_bf16_gpu_available
    from trl import SFTConfig, SFTTrainer, chat_template_utils

    import hf_embinit
    from hf_embinit.files import check_output
    from hf_embinit.hub import load_pretrained_tokenizer
    from hf_embinit.initializers import read_init
    from hf_embinit.tasks import caption_language_model, load_causal_lm, own_tokenizer
    from hf_embinit.tasks.language_modeling import load_texts

    init, options = read_init(args.init)
    output = Path(args.output_dir)
    source = str(caption_language_model()) if args.model == "captions" else args.model
    check_output(output)
    tokenizer = own_tokenizer(source, None, [])
    model = load_causal_lm(source, dtype="auto")
    if args.template is not None:
        load_pretrained_tokenizer(args.template, f"--template {args.template!r}")
    scratch = TemporaryDirectory()  # so that --output_dir holds what is finished alone
    template = args.template or chatml(tokenizer, Path(scratch.name, "template"))
    old_rows = model.get_input_embeddings().num_embeddings
    set_seed(args.seed)

    # new tokens: the template's own, each with a row by the initialiser; called by its module, where
    # `patched` stands in for it
    with hf_embinit.patched(init, seed=args.seed, **options):
        model, tokenizer, new = chat_template_utils.clone_chat_template(model, tokenizer, template)
    print(f"{len(new)} control tokens: {', '.join(tokenizer.convert_ids_to_tokens(new))}")

    # an adapter that holds their rows, and carries them to the model as it was
    peft = hf_embinit.peft_config_for_new_tokens(
        model, new, r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    captions = load_texts("captions")["train"]["text"][: args.max_train_samples]
    settings = SFTConfig(
        str(Path(scratch.name, "run")),
        max_steps=args.max_steps,
        learning_rate=args.learning_rate,
        per_device_train_batch_size=args.batch_size,
        use_cpu=args.use_cpu,
        bf16=not args.use_cpu and is_torch_bf16_gpu_available(),
        seed=args.seed,
        save_strategy="no",
        logging_steps=20,
        report_to=[],
    )
    data = Dataset.from_list([conversation(caption) for caption in captions])
    trainer = SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer, peft_config=peft)
    trainer.train()
    trainer.save_model(str(output / "adapter"))

    # the base as it was, the adapter on it, one plain checkpoint, and what it answers
    base = load_causal_lm(source, dtype="auto")
    merged = hf_embinit.merge_adapter(hf_embinit.load_adapter(base, output / "adapter"), tokenizer)
    merged.save_pretrained(output / "merged")
    tokenizer.save_pretrained(output / "merged")
    chat = pipeline("text-generation", model=str(output / "merged"), device="cpu" if args.use_cpu else None)
    for words in ("dog grass", "woman street"):
        said = chat([{"role": "user", "content": words}], max_new_tokens=40, do_sample=False)
        print(f"{words}: {said[0]['generated_text'][-1]['content'].strip()}")
    print(f"rows {old_rows} -> {merged.get_input_embeddings().num_embeddings}, saved: {output / 'merged'}")


if __name__ == "__main__":
    run_main(main)
