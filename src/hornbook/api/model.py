"""Use a trained model: logits, loss, embeddings, generation, masks and predictions, for texts or ids.

    model = load("runs/demo")
    model.logits("def main(")            fp32 [T, V]
    model.loss(["one text", "another"])  nats per token
    model.generate("def main(")          the continuation

Texts are encoded as in training, see `Model.encode`; ids are used unchanged. The methods run the same code as the
commands ``evaluate`` and ``generate``, so their numbers agree.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, cast, get_args, overload

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.api import passes
from hornbook.api.passes import EmbedOptions, One, Several, read_inputs, refuse_below_one
from hornbook.api.writing import GenerateOptions, write
from hornbook.config import GenerationConfig, Recipe
from hornbook.config.sections import Compute
from hornbook.engine.validation import validate
from hornbook.errors import UserError
from hornbook.exchange import formats
from hornbook.exchange.restore import LoadedModel, load_model
from hornbook.generate.answers import FoundAnswer
from hornbook.generate.classes import Classified
from hornbook.generate.embeddings import Pooling as Vector
from hornbook.generate.embeddings import embed_ids, hidden_states
from hornbook.generate.fill_mask import Filled, GapFiller
from hornbook.model import LanguageModel
from hornbook.objective import CausalLM, MaskedLM
from hornbook.parallel.device import prepare
from hornbook.text.tokenizer import Tokenizer

Pooling: TypeAlias = Vector | Literal["none"]


class Model:
    """A trained model in evaluation mode, returned by `load`.

    Args:
        loaded: the model with its recipe and tokenizer.

    Attributes:
        module: the torch module; docs/extend.md describes it.
        recipe: the recipe of its training.
        path: the checkpoint or folder from which it was loaded.
        step: number of finished training steps; 0 for imported models.
        is_causal: True for a decoder (GPT), which generates text, False for an encoder (BERT), which fills masks.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.module: LanguageModel = loaded.model
        self.recipe: Recipe = loaded.recipe
        self.path: Path = loaded.path
        self.step: int = loaded.step
        self.is_causal: bool = loaded.model.is_causal

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the training, with ``encode(text)``, ``decode(ids)`` and ``vocab_size``.

        Raises:
            CheckpointError: the model has no tokenizer.
        """
        return self._loaded.require_tokenizer()

    @property
    def device(self) -> torch.device:
        """The device of the model and of the tensors that it returns."""
        return self.module.device

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, encoded as in training.

        For a decoder trained by hornbook, the text is preceded by the end-of-text token; for an imported decoder, if
        its tokenizer does so in transformers, as that of an export does. For an encoder, the text is enclosed in [CLS]
        and [SEP], and the name of the mask token in the text is encoded as that token.

        Raises:
            UserError: the text is not valid Unicode.
            CheckpointError: the model has no tokenizer.
        """
        return passes.encode(self._loaded, text)

    @overload
    def logits(self, inputs: One, *, batch_size: int = 8) -> Tensor: ...
    @overload
    def logits(self, inputs: Several, *, batch_size: int = 8) -> list[Tensor]: ...
    def logits(self, inputs: One | Several, *, batch_size: int = 8) -> Tensor | list[Tensor]:
        """Return the model's logits.

        Args:
            inputs: a text or a sequence of T ids, a list of these, or a tensor of ids ``[B, T]``.
            batch_size: sequences per batch.

        Returns:
            fp32 ``[T, V]``: at each position, the logits of the next token (decoder) or of the token itself (encoder).
            For fine-tuned models, ``[C]`` for the classes or ``[T, 2]`` for the start and end of a span. For a list, a
            list with a tensor for each entry; for ids ``[B, T]``, a tensor with a leading dimension B.

        Raises:
            UserError: the input is empty, too long for the model, or has an unknown id.
        """
        refuse_below_one(batch_size=batch_size)
        given = read_inputs(inputs)
        rows = passes.apply(self.module, passes.ids_of(self._loaded, given), passes.logits, batch_size=batch_size)
        return cast("Tensor | list[Tensor]", given.shaped(rows))

    def loss(self, inputs: One | Several, *, labels: object = None, batch_size: int = 8) -> float:
        """Return the mean loss in nats per scored token, over all sequences.

        A decoder is scored on every token except the first of each sequence, given the tokens before it. An encoder is
        scored on ``labels`` or, without them, on every token except [CLS] and [SEP], masked one at a time (the
        pseudo-log-likelihood of Salazar et al. 2020, with a forward pass for each token).

        Args:
            inputs: as for `logits`.
            labels: for encoders, target ids of the shape of ``inputs``, -100 for tokens that are not scored.
            batch_size: sequences per batch.

        Raises:
            UserError: as for `logits`; no token is scored; the labels do not match the inputs; or the model was
                fine-tuned and does not predict tokens.
        """
        refuse_below_one(batch_size=batch_size)
        held_out = passes.held_out_of(self._loaded, passes.ids_of(self._loaded, read_inputs(inputs)), labels)
        objective = CausalLM() if self.is_causal else MaskedLM()
        size = max(1, min(batch_size, held_out.num_items))
        result = validate(self.module, held_out, objective, micro_batch_size=size)
        if not result.tokens:
            raise UserError("no token is scored; expected a sequence of two ids or more, or a label that is not -100")
        return result.loss

    @overload
    def embed(self, inputs: One, *, pooling: Pooling = "mean", **options: Unpack[EmbedOptions]) -> Tensor: ...
    @overload
    def embed(self, inputs: Several, *, pooling: Vector = "mean", **options: Unpack[EmbedOptions]) -> Tensor: ...
    @overload
    def embed(self, inputs: Several, *, pooling: Literal["none"], **options: Unpack[EmbedOptions]) -> list[Tensor]: ...
    def embed(
        self,
        inputs: One | Several,
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        batch_size: int = 16,
        window: int | None = None,
    ) -> Tensor | list[Tensor]:
        """Return embeddings: the pooled hidden states after the last block and the final norm, as ``hornbook embed``.

        An encoder's text is enclosed in [CLS] and [SEP]; a decoder's is not preceded by the end-of-text token. A
        warning counts the texts that are truncated; ids are never truncated.

        Args:
            inputs: as for `logits`.
            pooling: ``"mean"`` or ``"max"`` over all tokens of a sequence, including [CLS] and [SEP]; ``"cls"``, an
                encoder's first token; ``"last"``, a decoder's last token, the only one that attends to all others;
                ``"none"``, every token.
            normalize: scale each vector to length 1.
            batch_size: sequences per batch.
            window: truncate texts to this number of tokens at their end; None: as in training.

        Returns:
            fp32 ``[D]`` for one sequence and ``[N, D]`` for N sequences; with ``"none"`` ``[T, D]``, or a list of
            these.

        Raises:
            UserError: as for `logits`, or the model does not support the pooling.
        """
        refuse_below_one(batch_size=batch_size, window=window)
        given = read_inputs(inputs)
        ids = passes.ids_to_embed(self._loaded, given, window)
        if pooling == "none":
            rows = passes.apply(self.module, ids, hidden_states, batch_size=batch_size)
            states = [functional.normalize(row_TD, dim=1) for row_TD in rows] if normalize else rows
            return cast("Tensor | list[Tensor]", given.shaped(states))
        vectors_ND = embed_ids(self.module, ids, pooling=pooling, normalize=normalize, batch_size=batch_size)
        vectors = torch.from_numpy(vectors_ND).to(self.device)
        return vectors[0] if given.form == "one" else vectors

    @overload
    def generate(self, prompt: str = ..., *, num_samples: None = None, **options: Unpack[GenerateOptions]) -> str: ...
    @overload
    def generate(self, prompt: str, *, num_samples: int, **options: Unpack[GenerateOptions]) -> list[str]: ...
    @overload
    def generate(
        self, prompt: list[str], *, num_samples: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: list[int] | Tensor, *, num_samples: None = None, **options: Unpack[GenerateOptions]
    ) -> list[int]: ...
    @overload
    def generate(
        self, prompt: list[list[int]], *, num_samples: int | None = None, **options: Unpack[GenerateOptions]
    ) -> list[list[int]]: ...
    def generate(
        self,
        prompt: One | Several = "",
        *,
        num_samples: int | None = None,
        output_length: int = GenerationConfig.output_length,
        input_length: int | None = GenerationConfig.input_length,
        start_token: bool | None = GenerationConfig.start_token,
        temperature: float = GenerationConfig.temperature,
        top_k: int | None = GenerationConfig.top_k,
        top_p: float | None = GenerationConfig.top_p,
        repetition_penalty: float = GenerationConfig.repetition_penalty,
        stop: str | Sequence[str] = GenerationConfig.stop,
        stop_token: str | None = GenerationConfig.stop_token,
        seed: int = GenerationConfig.seed,
        batch_size: int = GenerationConfig.batch_size,
    ) -> Any:
        """Continue a prompt, or several, as ``hornbook generate`` does; the same seed gives the same text.

        Args:
            prompt: a text or ids to continue, or a list of these; ``""`` starts a new text.
            num_samples: return a list with this number of continuations per prompt; None: one, not in a list.
            output_length: maximum number of new tokens.
            input_length: truncate prompts to their last ``input_length`` tokens; None: a longer one is an error.
            start_token: put the end-of-text token before prompts of text; None: as `encode` does.
            temperature: sampling temperature; 0 for greedy decoding.
            top_k: sample from the ``top_k`` most likely tokens; None for all.
            top_p: sample from the smallest set of tokens with this total probability; None for all.
            repetition_penalty: penalty for tokens that occur in the prompt or text (CTRL); 1 for none.
            stop: strings before which a text ends.
            stop_token: token that ends a text; None: the end-of-text token; ``"none"``: no token.
            seed: of the sampling.
            batch_size: prompts per batch.

        Returns:
            The continuation without the prompt: a text for a text, ids for ids, and a list of them for a list of
            prompts or with ``num_samples``, prompt by prompt.

        Raises:
            UserError: the model is an encoder, an argument is out of range, or a prompt is too long.
            CheckpointError: the model has no tokenizer, and the prompt is a text.
        """
        if not self.is_causal:
            raise UserError(f"{self.path} is an encoder, which does not generate text; fill gaps with fill()")
        options = GenerationConfig(
            num_samples=GenerationConfig.num_samples if num_samples is None else num_samples,
            batch_size=batch_size,
            output_length=output_length,
            input_length=input_length,
            start_token=start_token,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token=stop_token,
            seed=seed,
        )
        return write(self._loaded, read_inputs(prompt), options, several=num_samples is not None)

    @overload
    def fill(self, text: str, *, top_k: int = 5, batch_size: int = 8) -> Filled: ...
    @overload
    def fill(self, text: list[str], *, top_k: int = 5, batch_size: int = 8) -> list[Filled]: ...
    def fill(self, text: str | list[str], *, top_k: int = 5, batch_size: int = 8) -> Filled | list[Filled]:
        """Fill the masks of a text, or of several, with an encoder.

        Args:
            text: contains the name of the mask token for each mask: ``"The cat sat on the [MASK]."``
            top_k: number of tokens to return for each mask.
            batch_size: texts per batch.

        Returns:
            ``Filled``: ``text``, with the most likely token for each mask, and ``gaps``, with the ``top_k`` most likely
            tokens for each, best first, with ``token``, ``id`` and ``probability``. A list of these for a list.

        Raises:
            UserError: the model is a decoder or was fine-tuned, a text has no mask or is too long, or an argument is
                out of range.
            CheckpointError: the model has no tokenizer.
        """
        if self.is_causal:
            raise UserError(f"{self.path} is a decoder, which does not fill masks; continue a text with generate()")
        refuse_below_one(top_k=top_k, batch_size=batch_size)
        filler = GapFiller(self.module, self.tokenizer, top_k=top_k)
        given = read_inputs(text)
        several = len(given.items) > 1
        requests = [
            filler.request(one, place=f"text {number}" if several else "the text")
            for number, one in enumerate(given.texts(), 1)
        ]
        if not requests:
            raise UserError("fill takes texts, not ids; decode the ids with tokenizer.decode")
        starts = range(0, len(requests), batch_size)
        filled = [one for start in starts for one in filler.fill(requests[start : start + batch_size])]
        return filled[0] if given.form == "one" else filled

    @overload
    def predict(
        self, texts: str, second_texts: str | None = None, **options: Unpack[passes.PredictOptions]
    ) -> Classified | FoundAnswer: ...
    @overload
    def predict(
        self, texts: list[str], second_texts: list[str] | None = None, **options: Unpack[passes.PredictOptions]
    ) -> list[Classified] | list[FoundAnswer]: ...
    def predict(
        self,
        texts: str | list[str],
        second_texts: str | list[str] | None = None,
        *,
        top_k: int | None = None,
        batch_size: int = 32,
        window: int | None = None,
    ) -> Any:
        """Classify texts, or answer questions about texts, as ``hornbook predict`` does.

        Args:
            texts: a text, or a list of texts; for question answering, the questions. A warning counts the texts or
                pairs that are truncated.
            second_texts: the second text of each pair; for question answering, the contexts.
            top_k: return only the ``top_k`` most likely classes; None: all.
            batch_size: sequences per batch.
            window: truncate texts to this number of tokens at their end, or split contexts into windows of this
                length; None: as in training.

        Returns:
            From a classifier, ``Classified``: ``label``, ``probability``, and ``probabilities`` by class, best first.
            From a question-answering model, ``FoundAnswer``: ``text``, ``start``, ``end`` and ``score``. A list of
            these for a list.

        Raises:
            UserError: the model was not fine-tuned for either, a text is blank, or second texts are missing or given to
                a classifier of single texts.
            CheckpointError: the model has no tokenizer or no names of classes.
        """
        refuse_below_one(top_k=top_k, batch_size=batch_size, window=window)
        firsts = [texts] if isinstance(texts, str) else list(texts)
        seconds = [second_texts] if isinstance(second_texts, str) else list(second_texts or [])
        found = passes.predict(self._loaded, firsts, seconds, top_k=top_k, batch_size=batch_size, window=window)
        return found[0] if isinstance(texts, str) else found

    def export(self, path: str | Path, **options: Unpack[formats.ExportOptions]) -> list[Path]:
        """Write the model with its present weights, as ``hornbook checkpoint export`` does; return the files.

        Args:
            path: the new folder or, for ``"gguf"``, the new file.
            options: ``format``, ``"transformers"`` (default) or ``"gguf"``, for llama.cpp; ``dtype`` of the weights,
                ``"fp32"`` (default), ``"bf16"`` or ``"fp16"``; ``license``, such as apache-2.0, by default a line to
                fill in the model card; ``shard_size``, bytes of the largest file of weights in a folder, 5 GB.

        Raises UserError if ``path`` exists or the library ``gguf`` is missing, CheckpointError if no such model exists.
        """
        return formats.export_loaded(self._loaded, Path(path), **options)

    def to_transformers(self) -> Any:
        """Return a copy of the model as a transformers model, with the same logits, in fp32 and on the same device.

        This exports the model as ``hornbook checkpoint export`` does, and loads it with the class in its
        ``config.json``: ``GPT2LMHeadModel``, ``BertForPreTraining``, ``RobertaForMaskedLM``, …

        Raises:
            UserError: transformers is not installed.
            CheckpointError: transformers has no equivalent model.
        """
        return formats.to_transformers(self._loaded).to(self.device).eval()

    def __repr__(self) -> str:
        family, size = self.recipe.model.family, self.module.num_parameters
        return f"<Model {family}, {size:,} parameters, of {self.path} on {self.device}>"


def load(path: str | Path, *, device: str = "auto", compute: Compute = "auto", threads: int | None = None) -> Model:
    """Load a trained model.

    Args:
        path: a run folder, for its newest undamaged checkpoint; a checkpoint; a Hugging Face folder; a TensorFlow
            checkpoint; or ``owner/name`` on the Hugging Face hub.
        device: ``"auto"``, the fastest available, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        compute: dtype of the activations; ``"auto"``: bf16 on devices that multiply it natively, otherwise fp32.
        threads: number of CPU threads of this process from now on; None leaves it unchanged.

    Raises:
        UserError: the device is not available.
        CheckpointError: there is no undamaged checkpoint.
        RecipeError: the model has custom parts that are not registered; see `hornbook.extend`.
        HornbookError: the hub cannot be reached, or has no such model.
    """
    if compute not in get_args(Compute):
        raise UserError(f"compute is {compute!r}; expected one of {', '.join(get_args(Compute))}")
    chosen = prepare(device, torch.get_num_threads() if threads is None else threads)
    return Model(load_model(path, chosen, compute=compute))
