"""Suggestions for unknown words: the name of the same option in other trainers, or the most similar word.

did_you_mean("lerning_rate", ["learning_rate", "beta1"]) -> '; did you mean "learning_rate"?'
did_you_mean("optimizer.lr", ["optimizer.learning_rate"]) -> '; did you mean "optimizer.learning_rate"?'
did_you_mean_path(Path("runs/mien"))                      -> '; did you mean "runs/mine"?'
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from hornbook.config.options import TAGS, describe
from hornbook.config.recipe import SECTIONS, Key, Recipe, dotted, specs

_USUAL = {
    "learning_rate": "lr max_lr peak_lr peak_learning_rate base_learning_rate",
    "weight_decay": "wd l2 weight_decay_rate",
    "epsilon": "eps adam_eps adam_epsilon",
    "beta1": "betas b1 adam_beta1 adam_betas",
    "beta2": "b2 adam_beta2",
    "clip_norm": "clip grad_clip gradient_clip gradient_clipping max_grad_norm grad_norm_clip clip_grad clip_grad_norm",
    "warmup_steps": "warmup warmup_iters num_warmup_steps lr_warmup lr_warmup_steps warmup_updates",
    "warmup_fraction": "warmup_ratio warmup_proportion lr_warmup_fraction",
    "decay_end": "lr_decay_steps lr_decay_iters",
    "max_samples": "max_train_samples n_samples",
    "early_stopping_patience": "patience",
    "early_stopping_min_delta": "min_delta early_stopping_threshold",
    "final_fraction": "min_lr min_lr_ratio final_lr end_lr min_learning_rate",
    "steps": "max_steps num_steps train_steps max_iters num_train_steps iterations total_steps train_iters",
    "epochs": "nepochs num_epochs max_epochs num_train_epochs n_epochs",
    "tokens": "max_tokens num_tokens train_tokens",
    "global_batch_size": "batch_size bs train_batch_size batch gbs",
    "micro_batch_size": "mbs device_batch_size per_device_train_batch_size per_device_batch_size",
    "seed": "random_seed",
    "compute": "dtype precision fp16 bf16 mixed_precision amp",
    "num_layers": "n_layer n_layers layers num_hidden_layers depth encoder_layers",
    "num_heads": "n_head n_heads heads num_attention_heads attention_heads",
    "hidden_size": "n_embd n_embed d_model hidden_dim hidden embed_dim model_dim dim width",
    "head_size": "d_head head_dim qkv_length",
    "feed_forward_size": "d_ff ff_dim ffn_dim n_inner ffn_size intermediate_size mlp_dim ff_length",
    "vocab_size": "n_vocab vocabulary_size source_vocab_length",
    "max_positions": "n_positions max_position_embeddings n_ctx ctx_len block_size context_length max_seq_len",
    "sequence_length": "seq_len seq_length ctx_len block_size context_length max_seq_len max_seq_length max_length",
    "activation": "hidden_act act activation_function",
    "residual_dropout": "dropout resid_pdrop hidden_dropout_prob",
    "attention_dropout": "attn_pdrop attention_probs_dropout_prob attn_dropout",
    "embedding_dropout": "embd_pdrop",
    "initializer_std": "initializer_range init_std",
    "layer_norm_epsilon": "layer_norm_eps ln_eps",
    "every_steps": "eval_interval eval_every save_every save_steps eval_steps save_interval",
    "keep_last": "save_total_limit max_to_keep",
    "log_every_steps": "log_interval log_every logging_steps",
}
"""Names in other trainers by hornbook's name; some, such as ``block_size``, correspond to two options."""


def usual(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that other trainers call ``word``, or None.

    Of ``section.key``, only the key is compared; known words of the same section are preferred.
    """
    section, _, key = word.lower().rpartition(".")
    ours = [name for name, words in _USUAL.items() if key in words.split()]
    meant = [name for name in known if name.rpartition(".")[2] in ours]
    return min(meant, key=lambda name: not name.startswith(f"{section}."), default=None)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that other trainers call ``word``, or the most similar one, or None."""
    known = list(known)
    return usual(word, known) or _closest(word, known)


def _closest(word: str, known: list[str]) -> str | None:
    from difflib import get_close_matches  # takes 4 ms, needed only for errors

    matches = get_close_matches(word, known, n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a suggestion, or nothing."""
    suggestion = nearest(word, known)
    return f'; did you mean "{suggestion}"?' if suggestion else ""


def did_you_mean_path(path: Path) -> str:
    """Return the end of an error message about a path that does not exist: a similar path that does, or nothing.

    The first missing part of the path is replaced by the most similar name in the same folder.
    """
    with suppress(OSError):  # no suggestion for unreadable folders
        missing = next((part for part in reversed([path, *path.parents]) if not part.exists()), path)
        name = _closest(missing.name, [entry.name for entry in missing.parent.iterdir()])
        if name is not None:
            near = missing.with_name(name)
            whole = near / path.relative_to(missing)
            return f'; did you mean "{whole if whole.exists() else near}"?'
    return ""


def why_unknown(key: Key, options: Collection[str], chosen: object = None) -> str:
    """Return why a section has no such key: it applies to other choices, or is unknown, with a suggestion.

    Suggestions are the option that other trainers call so, a similar key of the section, or the key in other sections.

    Args:
        key: section and name.
        options: the section's options by name.
        chosen: the value of the section's tag; None for its default.
    """
    section, name = key
    if tags := [f'"{tag}"' for tag, _ in specs(section).get(name, ()) if tag] if section in SECTIONS else []:
        tag = (section, TAGS[section])
        chosen = chosen or describe(SECTIONS[section])[TAGS[section]].default
        listed = f"{', '.join(tags[:-1])} or {tags[-1]}" if len(tags) > 1 else tags[0]
        return f'applies only to {dotted(tag)} = {listed}, not "{chosen}"; remove it or change {dotted(tag)}'
    everywhere = [*describe(Recipe), *(f"{section}.{name}" for section in SECTIONS for name in specs(section))]
    near = nearest(name, options)
    same = [known for known in everywhere if known.endswith(f".{name}")]
    meant = usual(dotted(key), everywhere) or (near and dotted((section, near))) or (same[0] if same else None)
    return f'unknown key; did you mean "{meant}"?' if meant else f"unknown key{did_you_mean(dotted(key), everywhere)}"
