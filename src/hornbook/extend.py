"""The public API for custom models, objectives, optimizers, schedules, tasks and trackers.

    from hornbook import extend

    @dataclass(frozen=True, kw_only=True)
    class MyConfig: ...                              its options in a recipe, one ``option`` per field
    extend.register("model", "mine", MyConfig)       family = "mine" in [model] now selects this dataclass
    @extend.build_model.register                     ... and this function builds the model
    def build(config: MyConfig, compute_dtype): ...

    if __name__ == "__main__":                       not in the processes that clean Wikipedia, which import the script
        raise SystemExit(extend.main())              ``python mine.py train ...`` is hornbook with your model

These names are stable between minor versions; other modules are private. Since your parts are registered by a plain
script rather than discovered plug-ins, only a script that registers them can open their checkpoints; the ``hornbook``
command cannot.
"""

from hornbook.__main__ import main
from hornbook.config import AdamWConfig, DecoderConfig, Problem, option, register
from hornbook.config.description import Block as BlockDescription
from hornbook.config.description import Described, Description
from hornbook.config.optimizers import OptimizerConfig, role_of
from hornbook.config.parts import Attention as AttentionPart
from hornbook.config.parts import FeedForward as FeedForwardPart
from hornbook.config.parts import Linear as LinearLayer
from hornbook.config.parts import Norm as NormLayer
from hornbook.config.parts import Other as OtherPart
from hornbook.config.parts import Table as TableLayer
from hornbook.corpora.store import TokenStore, open_store
from hornbook.errors import UserError
from hornbook.evaluate import Row, TaskInput, register_task
from hornbook.exchange.restore import LoadedModel
from hornbook.model import LanguageModel, build_model
from hornbook.model.attention import CausalSelfAttention, Context, KeyValues, attend
from hornbook.model.block import FeedForward, PreNormBlock
from hornbook.model.head import CausalHead, OutputHead
from hornbook.model.initialize import Draw
from hornbook.model.language_model import Forward
from hornbook.model.layers import Dropout, Embedding, LayerNorm, Linear, MakeLinear, RMSNorm
from hornbook.objective import Objective, build_objective
from hornbook.ops.attention import WeightDropout, causal_attention, head_keys
from hornbook.optim.adam import adamw
from hornbook.optim.schedules import Schedule, build_schedule
from hornbook.optim.slots import Slot
from hornbook.optim.updates import Update, build_update
from hornbook.samples.batches import Batch, HeldOutWindows, evaluation_batches
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows
from hornbook.track.trackers.tracker import Ended, Histogram, TrackedRun, Tracker, register_tracker

__all__ = [
    "NOT_SCORED",
    "AdamWConfig",
    "AttentionPart",
    "Batch",
    "BlockDescription",
    "CausalHead",
    "CausalSelfAttention",
    "Context",
    "DecoderConfig",
    "Described",
    "Description",
    "Draw",
    "Dropout",
    "Embedding",
    "Ended",
    "EvaluationWindows",
    "FeedForward",
    "FeedForwardPart",
    "Forward",
    "HeldOutWindows",
    "Histogram",
    "KeyValues",
    "LanguageModel",
    "LayerNorm",
    "Linear",
    "LinearLayer",
    "LoadedModel",
    "MakeLinear",
    "NormLayer",
    "Objective",
    "OptimizerConfig",
    "OtherPart",
    "OutputHead",
    "PreNormBlock",
    "Problem",
    "RMSNorm",
    "Row",
    "Schedule",
    "Slot",
    "TableLayer",
    "TaskInput",
    "TokenStore",
    "TrackedRun",
    "Tracker",
    "Update",
    "UserError",
    "WeightDropout",
    "adamw",
    "attend",
    "build_model",
    "build_objective",
    "build_schedule",
    "build_update",
    "causal_attention",
    "evaluation_batches",
    "head_keys",
    "main",
    "open_store",
    "option",
    "register",
    "register_task",
    "register_tracker",
    "role_of",
]
