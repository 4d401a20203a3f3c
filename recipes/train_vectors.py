# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-embinit[recipes]"]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# timeout = "2h"
# ///
"""Train GloVe word vectors on one's own text, and write them as a file that every recipe's --vectors reads.

    python recipes/train_vectors.py --corpus multi30k:de tatoeba:de --language de --output de.300d.txt
    python recipes/train_vectors.py --corpus multi30k:en tatoeba:en wikitext-2-v1:text --language en \\
        --output en.300d.txt
    python recipes/train_vectors.py --corpus captions:de --language de --dim 128 --output captions.de.txt

Words are those of spaCy's rules, lower-cased, as in `recipes/translate.py --tokenizer words`. Settings are
Pennington et al. 2014's but for --x_max, which suits some million words. Their text is named beside them
(en.300d.json) and with every run that reads them; another CPU or OMP_NUM_THREADS changes last digits, and so
the digest. `--push_to_hub --hub_model_id user/name` publishes them: `--vectors user/name` reads them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from hf_embinit.arguments import Count, Positive, Seed, Text
from hf_embinit.training import parse_arguments, run_main


@dataclass
class CorpusArguments:
    """The text."""

    corpus: list[str] = field(
        metadata={
            "help": "Training text, one or more of: a .txt file, `captions:<language>` (embedded), or "
            "the training split of a data set with the column to read, `<name, folder or Hub id>:<column>` "
            "(`multi30k:de`). Names are looked for in --data_dir, then in HF_EMBINIT_DATA, then on the Hub."
        }
    )
    language: Text = field(
        metadata={"help": "Language of the text; one that spaCy does not know takes its rules for any."}
    )
    output: Text = field(
        metadata={"help": "File to write: a line `n D`, then a line `word x1 ... xD` for each word."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder with a sub-folder for each data set."}
    )
    keep_duplicates: bool = field(
        default=False, metadata={"help": "Read a text as often as it is there, not once."}
    )


@dataclass
class GloveArguments:
    """How the vectors are trained."""

    dim: Count = field(default=300, metadata={"help": "Width of the vectors, in dimensions."})
    window: Count = field(default=10, metadata={"help": "Words to either side that count as context."})
    min_count: Count = field(default=2, metadata={"help": "Words seen fewer times than this have no vector."})
    x_max: Positive = field(
        default=10.0, metadata={"help": "Co-occurrences from which on a pair has full weight."}
    )
    alpha: Positive = field(default=0.75, metadata={"help": "Exponent of the weight of rarer pairs."})
    epochs: Count = field(default=25, metadata={"help": "Passes over the co-occurring pairs."})
    learning_rate: Positive = field(default=0.05, metadata={"help": "AdaGrad's initial learning rate."})
    batch_size: Count = field(default=100_000, metadata={"help": "Pairs a batch, at most."})
    seed: Seed = field(
        default=0, metadata={"help": "Seed of the initial vectors and of the order of the pairs."}
    )
    device: str = field(default="cpu", metadata={"help": "Device to train on, such as cpu or cuda."})


@dataclass
class HubArguments:
    """Where the vectors are published."""

    push_to_hub: bool = field(
        default=False, metadata={"help": "Publish the vectors; other recipes read them with --vectors."}
    )
    hub_model_id: str | None = field(
        default=None, metadata={"help": "Repository, owner/name. Default: the name of the file."}
    )
    hub_private_repo: bool | None = field(
        default=None, metadata={"help": "Whether a new repository is private."}
    )
    hub_token: str | None = field(
        default=None, metadata={"help": "Token with the write role. Default: the one that is logged in."}
    )


def main() -> None:
    """Read, tokenize, count, train, write."""
    corpus, settings, hub = parse_arguments(
        (CorpusArguments, GloveArguments, HubArguments), lambda known: {}, description=__doc__ or ""
    )
    # after --help, which answers without them
    from tqdm.auto import tqdm

    from hf_embinit.cards import prepare_vectors_push, publish_embeddings
    from hf_embinit.disk import check_file
    from hf_embinit.hub import HubRepository
    from hf_embinit.models import WordSegmenter
    from hf_embinit.records import collect_versions
    from hf_embinit.tasks import load_texts, texts_digest
    from hf_embinit.vectors import check_taken, train_glove, write_vectors

    check_file(corpus.output, "--output")
    access = {"private": hub.hub_private_repo, "token": hub.hub_token}
    if hub.push_to_hub:  # a token or a name that cannot work ends here, before any work
        hub.hub_model_id = HubRepository(hub.hub_model_id or Path(corpus.output).stem, **access).repo_id

    texts, corpora = [], []
    for part in corpus.corpus:
        read = load_texts(part, data_dir=corpus.data_dir)
        read = read if corpus.keep_duplicates else list(dict.fromkeys(read))
        corpora.append({"corpus": part, "texts": len(read), "sha256": texts_digest(read)})
        texts += read
    made_of = {"corpora": corpora, "language": corpus.language, **vars(settings)}
    request = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    check_taken(corpus.output, request, "--output")
    if hub.push_to_hub:
        prepare_vectors_push(hub.hub_model_id, request, **access)
    segmented = WordSegmenter(corpus.language)(texts)
    sentences = (words for words, _ in tqdm(segmented, total=len(texts), desc="tokenizing", unit="text"))
    vectors = train_glove(sentences, **vars(settings))
    vectors.provenance = {
        "corpora": corpora,
        "language": corpus.language,
        "keep_duplicates": corpus.keep_duplicates,
        **(vectors.provenance or {}),
        "request": request,
        "versions": collect_versions(),
    }
    write_vectors(corpus.output, vectors)

    matrix = vectors.matrix
    print(json.dumps(vectors.provenance, indent=2))
    print(f"{len(vectors)} words x {vectors.dim}: mean {matrix.mean():.4f}, sd {matrix.std():.4f}, range "
          f"{matrix.min():.2f} to {matrix.max():.2f}, in {corpus.output}")  # fmt: skip
    if hub.push_to_hub:
        print(publish_embeddings(corpus.output, hub.hub_model_id, **access))


if __name__ == "__main__":
    run_main(main)
