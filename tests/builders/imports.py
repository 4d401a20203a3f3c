"""What programs of tests import, in the process that they are forks of."""

# ruff: noqa: F401
import gc

import evaluate
import matplotlib.pyplot
import peft
import spacy
import torch.distributed.run
import transformers.trainer

import hf_embinit.__main__
import hf_embinit.models
import hf_embinit.studies
import hf_embinit.training.loop

gc.collect()
gc.freeze()
