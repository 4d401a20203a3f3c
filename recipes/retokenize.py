# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# timeout = "1h"
# ///
"""Another tokenizer for a trained model: what it costs at once, and after short training.

    python recipes/retokenize.py
    python recipes/retokenize.py --pairs tatoeba/train.jsonl:en,de multi30k/train.jsonl:en,de \\
        --test_pairs multi30k/test.jsonl:en,de --max_pairs 25000 --vocab_size 8000
    python recipes/retokenize.py --model models/stories260K --init fvt --vocab_size 2000 --max_steps 60

The first makes a German sentence encoder of an English one, all-MiniLM-L6-v2, from 8,000 embedded pairs of
sentences in some two minutes on two cores, without training: a German vocabulary is learnt, its rows are made
by `--init`, and the English sentences are looked for by their translations. The second does it with real data
in HF_EMBINIT_DATA. The third learns a vocabulary for a language model from texts that the model writes, and
measures bits per byte of others before any training, and after training the tables alone or all of it
(`--train`). Writes `results.json` and, with `--save`, the model and its tokenizer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from hf_embinit.arguments import Count, CountOrZero, Positive, Text, TrainingSeed, Wanted
from hf_embinit.training import flag, parse_arguments, run_main

WORDS = ("hund", "katze", "wasser", "haus", "frau", "kinder", "straße", "schule", "schnell", "schreiben")
STORY = "Once upon a time, there was a"


@dataclass
class Arguments:
    """The model, its new tokenizer, and what the rows are made of."""

    model: str = flag("minilm", "`minilm`, or an encoder or causal LM by folder or Hub id.")
    init: str = flag("trans_tokenizer", "Method, by name or name:option=value; `auto` picks one.")
    refine: str | None = flag(None, "token_distillation or tokens2words, also with :option=value, after it.")
    tokenizer: str | None = flag(None, "Folder or Hub id of the new one. Default: one learnt from text.")
    vocab_size: Count = flag(4000, "Tokens of a tokenizer that is learnt.")
    pairs: list[str] = flag(
        ["tatoeba"], "`tatoeba` (embedded) or files of English-German pairs, such as pairs.jsonl:en,de."
    )
    test_pairs: list[str] = flag(["tatoeba"], "Pairs to find each other, from `tatoeba` or such files.")
    max_pairs: Count | None = flag(None, "Pairs to use, drawn by the seed. Default: all.")
    max_test_pairs: Count = flag(500, "The first pairs of --test_pairs.")
    num_texts: Annotated[int, Wanted("a whole number of 5 or more", lambda n: n >= 5)] = flag(
        500, "Texts that a causal LM writes; a fifth of them is held out."
    )
    untie: bool = flag(False, "The output table of a causal LM gets rows of its own.")
    max_steps: CountOrZero = flag(0, "Optimizer steps of training a causal LM on its texts.")
    train: str = flag("tables", "What is trained.", choices=["tables", "all"])
    learning_rate: Positive = flag(3e-3, "Learning rate of that.")
    output_dir: Text = flag("runs/retokenize", "Folder for results.json.")
    save: bool = flag(False, "Save the model with its new tokenizer there, too.")
    seed: TrainingSeed = flag(0, "Seed of the rows, the pairs, the texts and the training.")


def main() -> None:
    """Texts, tokenizer, scores before, rows, scores after, training."""
    (args,) = parse_arguments((Arguments,), lambda known: {}, description=__doc__ or "")
    # after --help, which answers without them
    import resource
    import time

    import hf_embinit
    from hf_embinit import records
    from hf_embinit.initializers import read_init
    from hf_embinit.measures import mean_pooled
    from hf_embinit.tasks import find_tokenizer, retokenizing

    init, options = (args.init, {}) if args.init == "auto" else read_init(args.init)
    folder = records.prepare_run_folder(args.output_dir, arguments=asdict(args)).folder
    model, old = retokenizing.load_model(args.model)
    generates = model.get_output_embeddings() is not None
    pairs, scores = list[Any](), dict[str, float]()
    if generates:
        made = retokenizing.sample_texts(model, old, args.num_texts, seed=args.seed)
        texts, held_out = made[len(made) // 5 :], made[: len(made) // 5]
    else:
        pairs = retokenizing.load_pairs(args.pairs, "train", args.max_pairs, args.seed)
        texts, held_out = [pair.new for pair in pairs], retokenizing.load_pairs(args.test_pairs, "test")
        held_out = held_out[: args.max_test_pairs]
        english = mean_pooled(model, old, [pair.old for pair in held_out])

    def score(when: str, tokenizer: Any) -> None:
        """Measures the model and prints it."""
        if generates:
            name, value = "bits_per_byte", retokenizing.bits_per_byte(model, tokenizer, held_out)
            ids = tokenizer(STORY, add_special_tokens=False, return_tensors="pt")["input_ids"]
            said = tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0])
        else:
            name, value = "accuracy", retokenizing.paired_accuracy(model, tokenizer, held_out, english)
            said = ""
        scores[f"{when}_{name}"] = value
        print(f"{when} {name} {value:.3f} {said!r}" if said else f"{when} {name} {value:.3f}", flush=True)

    score("before", old)
    old_rows = model.get_input_embeddings().weight.detach().clone()
    tokenizer = (retokenizing.train_tokenizer(old, texts, args.vocab_size) if args.tokenizer is None
                 else find_tokenizer(args.tokenizer))  # fmt: skip
    start = time.perf_counter()
    given = retokenizing.help_for(init, tokenizer, pairs, texts, args.seed)
    if args.refine and args.refine.startswith("token_distillation"):
        given.setdefault("texts", texts)
    report = hf_embinit.replace_tokenizer(
        model, old, tokenizer, init, seed=args.seed, refine=args.refine, untie=args.untie, **given, **options
    )
    seconds = time.perf_counter() - start
    print(report)
    score("step_0", tokenizer)
    if not generates:
        rows = model.get_input_embeddings().weight.detach()
        for word, near in retokenizing.nearest_words(rows, tokenizer, WORDS, old_rows, old).items():
            print(f"  {word}: {', '.join(near)}")
    if args.max_steps and generates:
        settings = {"tables_only": args.train == "tables", "seed": args.seed}
        retokenizing.train_briefly(model, tokenizer, texts, args.max_steps, args.learning_rate, **settings)
        score("trained", tokenizer)
    records.write_json(folder / "results.json", {
        "dataset": "stories" if generates else "pairs",
        "init": args.init,
        "seed": args.seed,
        "arguments": asdict(args),
        "metrics": {**scores, "seconds": seconds,
                    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024},
        "report": report.to_dict(),
        "runtime": {"device": records.device_name("cpu")},
        "versions": records.collect_versions(),
    })  # fmt: skip
    if args.save:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    records.unlock_folder(folder)


if __name__ == "__main__":
    run_main(main)
