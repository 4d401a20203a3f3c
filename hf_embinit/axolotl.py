"""A plugin for axolotl: new rows by any initialiser, and adapters that carry their vocabulary.

    plugins:
      - hf_embinit.axolotl.EmbinitPlugin
    embinit_init: mean_cov
    embinit_options: {scale: auto}

axolotl imports this module; nothing else does. The initialisers are those of new rows that read no tokens,
since axolotl shows a plugin no tokenizer before it resizes.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel


class EmbinitArgs(BaseModel):
    """What the plugin reads of axolotl's configuration."""

    embinit_init: str | None = None
    """Initialiser of the new rows; the default is that of `hf_embinit.patch`."""
    embinit_options: dict[str, Any] | None = None
    """Its options."""


class EmbinitPlugin(BasePlugin):
    """Fills the rows that axolotl's resize adds, and saves them beside adapters."""

    def get_input_args(self) -> str:
        """The keys of the configuration that this plugin reads."""
        return f"{__name__}.EmbinitArgs"

    def post_model_build(self, cfg: Any, model: Any) -> None:
        """Patches the model, which axolotl resizes next. Raises what `patch` does."""
        from . import patch

        chosen = {} if cfg.embinit_init is None else {"init": cfg.embinit_init}
        patch(model, **chosen, seed=cfg.seed or 0, **(cfg.embinit_options or {}))

    def pre_lora_load(self, cfg: Any, model: Any) -> None:
        """Takes the patch off: what is resized from here on is not the tokens of the configuration."""
        from . import unpatch

        unpatch(model)

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        """The callback by which checkpoints of an adapter carry the new rows."""
        from . import VocabularyCallback

        return [VocabularyCallback()]
