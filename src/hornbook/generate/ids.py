"""The generation loop: ids in, ids out, for many texts at a time.

    prompts -> decoder.start -> logits -> chooser -> ids -> decoder.advance -> logits -> ...
                                             |
                                             +--> on_token(row, id), which may end a row

A row that ends leaves the batch, so that the others become faster.
"""

import random
from collections.abc import Callable, Sequence

from hornbook.config.generation import Sampling
from hornbook.generate.decoder import Decoder, make_decoder
from hornbook.generate.sampling import Chooser, draws_of
from hornbook.model import LanguageModel
from hornbook.model.forward import Forward, evaluation_mode, forward_resident

OnToken = Callable[[int, int], bool]
"""Called with (row, id) for every chosen id, including stop ids; returning True ends that text."""


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    seed: int,
    vocab_size: int | None = None,
    sampling: Sampling | None = None,
    stop_id: int | None = None,
    forward: Forward = forward_resident,
) -> list[int]:
    """Return up to ``num_tokens`` ids that continue ``prompt``.

    Args:
        model: left in its current mode.
        prompt: at least one id; only the last ``max_positions`` count.
        num_tokens: number of ids to add.
        seed: seed of the draws.
        vocab_size: only smaller ids are chosen, for a tokenizer with fewer than the model; None for the model's.
        sampling: how to choose ids.
        stop_id: id that ends the text; it is not returned.
        forward: runs the model on a batch.
    """
    with evaluation_mode(model):
        (ids,) = generate_batch(
            make_decoder(model, forward),
            [prompt],
            num_tokens=num_tokens,
            vocab_size=min(model.vocab_size, vocab_size or model.vocab_size),
            draws=[draws_of(seed, prompt)],
            sampling=sampling,
            stop_id=stop_id,
        )
    return ids


def generate_batch(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    vocab_size: int,
    draws: Sequence[random.Random],
    sampling: Sampling | None = None,
    stop_id: int | None = None,
    on_token: OnToken | None = None,
) -> list[list[int]]:
    """Return up to ``num_tokens`` ids for each prompt; in fp32, the same ids as for each prompt alone.

    (The last bits of sums depend on the number of rows, so ids may differ if two candidates are equally likely to six
    digits.)

    Args:
        decoder: decoder of a model in evaluation mode.
        prompts: at least one id each.
        num_tokens: number of ids to add.
        vocab_size: only smaller ids are chosen.
        draws: the numbers of each row, see ``draws_of``.
        sampling: how to choose ids.
        stop_id: id that ends a text; it is not returned.
        on_token: called for every chosen id; may end a text.

    Raises:
        NotFiniteError: the model's logits are not finite.
    """
    assert all(prompts), "a prompt needs at least one id"
    ids: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts))) if num_tokens > 0 else []
    if not active:
        return ids
    chooser = Chooser(sampling or Sampling(), prompts, draws, vocab_size=vocab_size)
    logits_BV = decoder.start(prompts, num_tokens)
    for number in range(1, num_tokens + 1):
        chosen = chooser.choose(logits_BV)
        going = []
        for slot, (row, token) in enumerate(zip(active, chosen, strict=True)):
            has_ended = on_token is not None and on_token(row, token)
            if token == stop_id:
                continue
            ids[row].append(token)
            if not has_ended:
                going.append(slot)
        if not going or number == num_tokens:
            break
        if len(going) < len(active):
            decoder.keep(going)
            chooser.keep(going)
            active, chosen = [active[slot] for slot in going], [chosen[slot] for slot in going]
        logits_BV = decoder.advance(chosen)
    return ids
