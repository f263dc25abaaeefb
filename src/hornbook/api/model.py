"""A trained model in Python: what it predicts, writes, fills in and represents, from texts or ids.

    model = load("runs/demo")
    model.logits("def main(")            fp32 [T, V]
    model.loss(["one text", "another"])  nats a token
    model.generate("def main(")          the text that follows

A text becomes ids as the model saw texts in training, see `Model.encode`; ids are taken as they are. The functions go
the way of the commands ``evaluate`` and ``generate``, so that their numbers are the same.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, cast, get_args, overload

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.api import passes
from hornbook.api.inputs import One, Several, read_inputs
from hornbook.api.passes import refuse_below_one
from hornbook.api.writing import GenerateOptions, write
from hornbook.checkpoint.contents import Contents
from hornbook.config import Recipe, recipe_to_dict
from hornbook.config.sections import Compute
from hornbook.errors import UserError
from hornbook.evaluate.validation import validate
from hornbook.exchange.huggingface import UNTRAINED, write_folder
from hornbook.exchange.restore import LoadedModel, load_model
from hornbook.extras import require
from hornbook.generate import Sampling, TextOptions, find_stop_id
from hornbook.generate.answers import FoundAnswer
from hornbook.generate.classes import Classified
from hornbook.generate.embeddings import Pooling as Vector
from hornbook.generate.embeddings import embed_ids, hidden_states
from hornbook.generate.fill_mask import Filled, GapFiller
from hornbook.model import LanguageModel
from hornbook.objective import CausalLM, MaskedLM
from hornbook.parallel.device import choose_device, prepare
from hornbook.storage.json_files import read_json
from hornbook.text.tokenizer import Tokenizer

Pooling: TypeAlias = Vector | Literal["none"]


class Model:
    """A trained model; `load` returns one. It is in evaluation mode, and nothing here trains it.

    Args:
        loaded: the model with its recipe and tokenizer.

    Attributes:
        module: the torch module, as `hornbook.extend` describes it.
        recipe: the recipe that it was trained with.
        path: the checkpoint or folder that it is from.
        step: finished training steps; 0 of an imported model.
        is_causal: whether it writes (a decoder, GPT) or fills gaps (an encoder, BERT).
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.module: LanguageModel = loaded.model
        self.recipe: Recipe = loaded.recipe
        self.path, self.step = loaded.path, loaded.step
        self.is_causal = loaded.model.is_causal

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the training: ``encode(text)``, ``decode(ids)``, ``vocab_size``.

        Raises:
            CheckpointError: there is none.
        """
        return self._loaded.require_tokenizer()

    @property
    def device(self) -> torch.device:
        """Where the model is, and what tensors it returns."""
        return self.module.device

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as the model saw texts in training.

        For a decoder that hornbook trained, the end-of-text token goes before the text; for one that was imported, none
        does, as in transformers. For an encoder, [CLS] goes before it and [SEP] after it, and the name of the mask
        token in the text is that token.

        Raises:
            UserError: the text is no Unicode.
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
            batch_size: sequences at a time.

        Returns:
            fp32 ``[T, V]``: at each token those of the next token (a decoder) or of this one (an encoder). Of a
            fine-tuned encoder, ``[C]`` for its classes or ``[T, 2]`` for beginning and end of a span. Of a list, a list
            with one tensor for each entry; of ids ``[B, T]``, a tensor with B in front.

        Raises:
            UserError: the input is empty, too long for the model, or has an unknown id.
        """
        refuse_below_one(batch_size=batch_size)
        given = read_inputs(inputs)
        rows = passes.apply(self.module, passes.ids_of(self._loaded, given), passes.logits, batch_size=batch_size)
        return cast("Tensor | list[Tensor]", given.shaped(rows))

    def loss(self, inputs: One | Several, *, labels: object = None, batch_size: int = 8) -> float:
        """Return the mean loss in nats a scored token, over all sequences together.

        A decoder is scored on every token but the first of each sequence, given those before it. An encoder is scored
        where there are ``labels``; without them, on every token but [CLS] and [SEP], each hidden by itself (the
        pseudo-log-likelihood of Salazar et al. 2020, one look at the text a token).

        Args:
            inputs: as for `logits`.
            labels: for encoders, ids of the shape of ``inputs``: what is to be predicted, and -100 where nothing is.
            batch_size: sequences at a time.

        Raises:
            UserError: as for `logits`; nothing is scored; the labels do not fit; or the model has learned something
                else than to predict tokens.
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
    def embed(
        self, inputs: One, *, pooling: Pooling = "mean", normalize: bool = False, batch_size: int = 16
    ) -> Tensor: ...
    @overload
    def embed(
        self, inputs: Several, *, pooling: Vector = "mean", normalize: bool = False, batch_size: int = 16
    ) -> Tensor: ...
    @overload
    def embed(
        self, inputs: Several, *, pooling: Literal["none"], normalize: bool = False, batch_size: int = 16
    ) -> list[Tensor]: ...
    def embed(
        self, inputs: One | Several, *, pooling: Pooling = "mean", normalize: bool = False, batch_size: int = 16
    ) -> Tensor | list[Tensor]:
        """Return vectors for texts: the hidden states behind the last block and the final norm, pooled.

        A text becomes ids as for `encode`, but a decoder's without the end-of-text token before it.

        Args:
            inputs: as for `logits`.
            pooling: ``"mean"`` or ``"max"`` over all tokens of a sequence, [CLS] and [SEP] included; ``"cls"``, an
                encoder's first token; ``"last"``, a decoder's last token, the only one that has seen all others;
                ``"none"``, every token.
            normalize: scale each vector to length 1.
            batch_size: sequences at a time.

        Returns:
            fp32 ``[D]`` for one sequence and ``[N, D]`` for N of them; with ``"none"`` ``[T, D]``, or a list of these.

        Raises:
            UserError: as for `logits`, or the model has no such pooling.
        """
        refuse_below_one(batch_size=batch_size)
        given = read_inputs(inputs)
        ids = passes.ids_of(self._loaded, given, has_start=False)
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
        output_length: int = 128,
        input_length: int | None = None,
        start_token: bool | None = None,
        temperature: float = 0.8,
        top_k: int | None = 50,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        stop_token: str | None = None,
        seed: int = 0,
        batch_size: int = 8,
    ) -> Any:
        """Continue a prompt, or several, as ``hornbook generate`` does; the same seed gives the same text.

        Args:
            prompt: a text or ids to continue, or a list of these; ``""`` starts a new text.
            num_samples: so many texts for each prompt, in a list; None: one for each.
            output_length: new tokens at most.
            input_length: take so many tokens of a prompt at most, the last ones; None: a longer one than the model's
                positions is an error.
            start_token: put the end-of-text token before a prompt of text; None: as `encode` does.
            temperature: of the sampling; 0 takes the likeliest token each time.
            top_k: draw from so many of the likeliest tokens; None for all.
            top_p: draw from the fewest tokens with this total probability; None for all.
            repetition_penalty: divide the logits of tokens that the text has.
            stop: strings before which a text ends.
            stop_token: end at this token; None: the end-of-text token; ``"none"``: at no token.
            seed: of the draws.
            batch_size: prompts at a time.

        Returns:
            What follows the prompt, without it: a text for a text, ids for ids, and a list of them for a list of
            prompts or with ``num_samples``, one prompt after the other.

        Raises:
            UserError: the model is an encoder, an argument is out of range, or a prompt is too long.
            CheckpointError: the model has no tokenizer, and the prompt is a text.
        """
        if not self.is_causal:
            raise UserError(f"{self.path} is an encoder, which does not generate text; fill gaps with fill()")
        tokenizer = self._loaded.tokenizer
        options = TextOptions(
            output_length=output_length,
            input_length=input_length,
            start_token=self._loaded.has_start_token if start_token is None else start_token,
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty),
            stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_id=find_stop_id(stop_token, tokenizer) if tokenizer else None,
            seed=seed,
        )
        return write(self._loaded, read_inputs(prompt), options, num_samples=num_samples, batch_size=batch_size)

    @overload
    def fill(self, text: str, *, top_k: int = 5, batch_size: int = 8) -> Filled: ...
    @overload
    def fill(self, text: list[str], *, top_k: int = 5, batch_size: int = 8) -> list[Filled]: ...
    def fill(self, text: str | list[str], *, top_k: int = 5, batch_size: int = 8) -> Filled | list[Filled]:
        """Fill the gaps of a text, or of several, by an encoder.

        Args:
            text: with the name of the mask token for each gap: ``"The cat sat on the [MASK]."``
            top_k: how many tokens to name for each gap.
            batch_size: texts at a time.

        Returns:
            ``Filled``: ``text``, with the likeliest token in each gap, and ``gaps``, for each the ``top_k`` likeliest,
            best first, with ``token``, ``id`` and ``probability``. A list of these for a list.

        Raises:
            UserError: the model is a decoder or fine-tuned, a text has no gap or is too long, or an argument is out of
                range.
            CheckpointError: the model has no tokenizer.
        """
        if self.is_causal:
            raise UserError(f"{self.path} is a decoder, which fills no gaps; continue a text with generate()")
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
        self, texts: str, second_texts: str | None = None, *, top_k: int | None = None, batch_size: int = 32
    ) -> Classified | FoundAnswer: ...
    @overload
    def predict(
        self,
        texts: list[str],
        second_texts: list[str] | None = None,
        *,
        top_k: int | None = None,
        batch_size: int = 32,
    ) -> list[Classified] | list[FoundAnswer]: ...
    def predict(
        self,
        texts: str | list[str],
        second_texts: str | list[str] | None = None,
        *,
        top_k: int | None = None,
        batch_size: int = 32,
    ) -> Any:
        """Classify texts, or answer questions about texts, as ``hornbook predict`` does.

        Args:
            texts: a text, or a list of them; for a model that answers questions, the questions. A text longer than in
                training is truncated.
            second_texts: the second text of each pair, or the text that each question is about.
            top_k: name the most likely classes only; None: all.
            batch_size: sequences at a time.

        Returns:
            Of a classifier ``Classified``: ``label``, ``probability``, and ``probabilities`` by class, best first. Of
            a model that answers questions ``FoundAnswer``: ``text``, ``start``, ``end`` and ``score``. A list of these
            for a list.

        Raises:
            UserError: the model was fine-tuned on neither, a text is blank, or second texts are missing or not wanted.
            CheckpointError: the model has no tokenizer or no names of its classes.
        """
        refuse_below_one(top_k=top_k, batch_size=batch_size)
        firsts = [texts] if isinstance(texts, str) else list(texts)
        seconds = [second_texts] if isinstance(second_texts, str) else list(second_texts or [])
        found = passes.predict(self._loaded, firsts, seconds, top_k=top_k, batch_size=batch_size)
        return found[0] if isinstance(texts, str) else found

    def to_transformers(self) -> Any:
        """Return the model as one of transformers, with the same logits, in fp32 and on the same device.

        It is what ``hornbook checkpoint export`` writes, loaded by the class of its ``config.json``:
        ``GPT2LMHeadModel``, ``BertForPreTraining``, ``RobertaForMaskedLM``, … Its weights are copies.

        Raises:
            UserError: transformers is not installed.
            CheckpointError: transformers has no such model.
        """
        transformers = require("transformers", extra="transformers", purpose="to_transformers")
        loaded = self._loaded
        contents = Contents(
            step=loaded.step,
            tensors={"model": loaded.model.saved_tensors()},
            documents={"recipe": recipe_to_dict(loaded.recipe), UNTRAINED: list(loaded.untrained)},
            files={"tokenizer.json": loaded.tokenizer.to_json().encode()} if loaded.tokenizer else {},
        )
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            write_folder(folder, contents)
            (architecture,) = read_json(folder / "config.json", "the configuration")["architectures"]
            model = getattr(transformers, architecture).from_pretrained(folder)
        return model.to(self.device).eval()

    def __repr__(self) -> str:
        family, size = self.recipe.model.family, self.module.num_parameters
        return f"<Model {family}, {size:,} parameters, of {self.path} on {self.device}>"


def load(path: str | Path, *, device: str = "auto", compute: Compute = "auto", threads: int | None = None) -> Model:
    """Load a trained model.

    Args:
        path: what the commands take as a checkpoint: a run's folder, whose newest sound checkpoint is taken; a
            checkpoint; a Hugging Face folder; a TensorFlow checkpoint; or ``owner/name`` of the Hugging Face hub.
        device: ``"auto"``, the fastest there is, ``"cpu"``, ``"cuda"`` or ``"mps"``.
        compute: dtype of the activations; ``"auto"``: bf16 where the device is fast at it.
        threads: of this process on a CPU, from now on; None leaves them as they are.

    Raises:
        UserError: there is no such device.
        CheckpointError: nothing sound is there.
        RecipeError: the model has a part that is not registered; see `hornbook.extend`.
        HornbookError: the hub cannot be reached, or has no such model.
    """
    if compute not in get_args(Compute):
        raise UserError(f"compute is {compute!r}; expected {', '.join(get_args(Compute))}")
    chosen = choose_device(device)
    prepare(chosen, threads or torch.get_num_threads())
    return Model(load_model(path, chosen, compute=compute))
