"""Small vanilla transformers to study embeddings on, registered with the Auto classes on import.

These files are saved with a checkpoint (`trust_remote_code`), so they import nothing else of the package.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .segmentation_vanilla_transformer import TokenizerError, WordSegmenter
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer

AutoConfig.register("vanilla_transformer", VanillaTransformerConfig)
# Makes `save_pretrained` copy the code, so that checkpoints load without this package.
VanillaTransformerConfig.register_for_auto_class()
for _auto, _model in (
    (AutoModel, VanillaTransformerModel),
    (AutoModelForSeq2SeqLM, VanillaTransformerForConditionalGeneration),
    (AutoModelForSequenceClassification, VanillaTransformerForSequenceClassification),
    (AutoModelForCausalLM, VanillaTransformerForCausalLM),
):
    _auto.register(VanillaTransformerConfig, _model)
    _model.register_for_auto_class(_auto.__name__)
AutoTokenizer.register(VanillaTransformerConfig, slow_tokenizer_class=VanillaTransformerTokenizer)
VanillaTransformerTokenizer.register_for_auto_class("AutoTokenizer")

__all__ = [
    "TokenizerError",
    "VanillaTransformerConfig",
    "VanillaTransformerForCausalLM",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "VanillaTransformerTokenizer",
    "WordSegmenter",
]
