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
    python recipes/retokenize.py --pairs tatoeba/train.jsonl:en,en --labelled glue/stsb/validation.jsonl
    python recipes/retokenize.py --model models/stories260K --init fvt --vocab_size 2000 --max_steps 60
    python recipes/retokenize.py --model models/stories260K --init fvt --expand 300

The first makes a German sentence encoder of an English one, all-MiniLM-L6-v2, from 8,000 embedded pairs of
sentences in some two minutes on two cores, without training: a German vocabulary is learnt, its rows are made
by `--init`, and the English sentences are looked for by their translations. The second does it with data in
HF_EMBINIT_DATA; the third scores an English vocabulary by the similarity of sentences. The fourth learns a
vocabulary for a language model from texts that it writes, or from `--texts`, and measures bits per byte of
others at once and after training the tables alone or all of it (`--train`); the fifth keeps the tokenizer and
adds words to it. Writes `results.json`, with `--save` the model, too, to a folder named by what it was given.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from hf_embinit.arguments import Count, CountOrZero, Positive, Text, TrainingSeed, Wanted
from hf_embinit.training import default_folder, flag, parse_arguments, run_main

WORDS = ("hund", "katze", "wasser", "haus", "frau", "kinder", "straße", "schule", "schnell", "schreiben")
STORY = "Once upon a time, there was a"


@dataclass
class Arguments:
    """The model, its new tokenizer, and what the rows are made of."""

    model: str = flag("minilm", "`minilm`, or an encoder, classifier or causal LM by folder or Hub id.")
    init: str = flag("trans_tokenizer", "Method, by name or name:option=value; `auto` picks one.")
    refine: str | None = flag(None, "What makes its rows better, such as token_distillation:steps=100.")
    tokenizer: str | None = flag(None, "Folder or Hub id of the new one. Default: one learnt from text.")
    vocab_size: Count = flag(4000, "Tokens of a tokenizer that is learnt.")
    expand: CountOrZero = flag(0, "Words to add to the tokenizer of a causal LM, in place of another one.")
    pairs: list[str] = flag(["tatoeba"], "`tatoeba` (embedded) or files of pairs, such as pairs.jsonl:en,de.")
    test_pairs: list[str] = flag(["tatoeba"], "Pairs to find each other, from `tatoeba` or such files.")
    max_pairs: Count | None = flag(None, "Pairs to use, drawn by the seed. Default: all.")
    labelled: str | None = flag(None, "File of two texts and a label: scored on in place of --test_pairs.")
    max_test_pairs: Count = flag(500, "The first pairs of --test_pairs, or as many spread over --labelled.")
    texts: list[str] = flag([], "For a causal LM: stories.jsonl:text, say; 100 characters or more each.")
    num_texts: Annotated[int, Wanted("a whole number of 5 or more", lambda n: n >= 5)] = flag(
        500, "Texts of a causal LM; a fifth of them is held out."
    )
    untie: bool = flag(False, "The output table of a causal LM gets rows of its own.")
    max_steps: CountOrZero = flag(0, "Optimizer steps of training a causal LM on its texts.")
    train: str = flag("tables", "What is trained.", choices=["tables", "all"])
    learning_rate: Positive = flag(3e-3, "Learning rate of that.")
    output_dir: Text = flag("runs/retokenize", "Folder for results.json; if none is given, one in this.")
    save: bool = flag(False, "Save the model with its new tokenizer there, too.")
    seed: TrainingSeed = flag(0, "Seed of the rows, the pairs, the texts and the training.")


def main() -> None:
    """Trial, score before, tokenizer, rows, score after, training."""
    (args,) = parse_arguments(
        (Arguments,),
        lambda k: {"output_dir": default_folder("retokenize", k.model, k.tokenizer, k.init, seed=k.seed)},
        description=__doc__ or "",
    )
    import resource  # after --help, which answers without it

    from hf_embinit import records
    from hf_embinit.errors import InvalidArgumentError
    from hf_embinit.tasks import retokenizing, trials
    from hf_embinit.vocabulary import expand_vocabulary, read_refinement, replace_tokenizer

    if args.expand and (args.refine or args.untie or args.tokenizer):
        raise InvalidArgumentError("--expand keeps the tokenizer: leave --tokenizer, --refine, --untie out")
    init, options = retokenizing.read_method(args.init, adds_words=bool(args.expand))
    refinements = read_refinement(args.refine)  # what is misspelt ends here, before any work
    folder = records.prepare_run_folder(args.output_dir, arguments=asdict(args)).folder
    model, old = retokenizing.load_model(args.model)
    generates = model.get_output_embeddings() is not None
    retokenizing.check_fits(asdict(args), asdict(Arguments()), generates)
    pairs = [] if generates else trials.load_pairs(args.pairs, "train", args.max_pairs, args.seed)
    if generates:
        trial = trials.text_trial(model, old, args.texts, args.num_texts, seed=args.seed)
    elif args.labelled:
        trial = trials.label_trial(model, pairs, args.labelled, args.max_test_pairs)
    else:
        found = trials.load_pairs(args.test_pairs, "test")[: args.max_test_pairs]
        trial = trials.pair_trial(model, old, pairs, found)
    sizes = {"size": args.vocab_size, "words": args.expand}
    tokenizer, words = retokenizing.new_tokenizer(old, trial.texts, name=args.tokenizer, **sizes)
    scores = dict[str, float]()

    def score(when: str, tokenizer: Any) -> None:
        """Measures the model and prints it."""
        value = scores[f"{when}_{trial.metric}"] = trial.score(model, tokenizer)
        said = ""
        if generates:
            ids = tokenizer(STORY, add_special_tokens=False, return_tensors="pt")["input_ids"]
            said = repr(tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0]))
        print(f"{when} {trial.metric} {value:.3f} {said}".rstrip(), flush=True)

    score("before", old)
    old_rows = model.get_input_embeddings().weight.detach().clone()
    with trials.measured() as cost:
        given = retokenizing.help_for(init, tokenizer, pairs, trial.texts, args.seed)
        if any("texts" in record.needs for record, _ in refinements):
            given.setdefault("texts", trial.texts)
        given |= {"seed": args.seed, **options}
        if words:
            report: Any = expand_vocabulary(model, old, words, init, prefixes=trial.held_out[:20], **given)
            scores["kl_of_old_tokens"] = report.shift.kl_mean
        else:
            given |= {"refine": args.refine, "untie": args.untie}
            report = replace_tokenizer(model, old, tokenizer, init, **given)
    print(report)
    score("step_0", tokenizer)
    if not generates:
        rows = model.get_input_embeddings().weight.detach()
        for word, near in retokenizing.nearest_words(rows, tokenizer, WORDS, old_rows, old).items():
            print(f"  {word}: {', '.join(near)}")
    if args.max_steps and generates:
        rest = {"learning_rate": args.learning_rate, "tables_only": args.train == "tables", "seed": args.seed}
        retokenizing.train_briefly(model, tokenizer, trial.texts, args.max_steps, **rest)
        score("trained", tokenizer)
    if args.save:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        records.declare_files(folder)
    records.write_json(folder / "results.json", {
        "dataset": "stories" if generates else "pairs", "data": trial.data,
        "init": args.init, "seed": args.seed, "arguments": asdict(args),
        "metrics": {**scores, **cost,
                    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024},
        "report": report.to_dict(),
        "runtime": {"device": records.device_name("cpu")},
        "versions": records.collect_versions(),
    })  # fmt: skip
    records.unlock_folder(folder)


if __name__ == "__main__":
    run_main(main)
