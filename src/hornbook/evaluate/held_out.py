"""Find the stores that a task scores: those that the user names, or else the run's held-out ones.

--data FOLDER     that store, or its validation split
(none)            the run's validation stores, one for each training corpus

The training data is scored only if the user names it: its score looks like one on held-out text, but is better.
"""

from hornbook.corpora.store import TokenStore, open_held_out, open_store
from hornbook.errors import UserError
from hornbook.evaluate.tasks import TaskInput


def held_out_stores(given: TaskInput) -> list[TokenStore]:
    """Return one store or several, made with the model's tokenizer as far as is known.

    Raises:
        UserError: no store is named or held out, or its tokenizer is not the model's.
        DataError: a store is malformed.
        CheckpointError: the model has no tokenizer.
    """
    stores = open_scored(given)
    own, tokenizer = stores[0].tokenizer(), given.loaded.require_tokenizer()
    if own is not None and own.digest != tokenizer.digest:
        raise UserError(
            f"the store was made with tokenizer {own.digest[:12]}, but the model with {tokenizer.digest[:12]}: "
            "build the store with the model's tokenizer.json"
        )
    return stores


def open_scored(given: TaskInput) -> list[TokenStore]:
    """Return the named or held-out stores, whatever their tokenizer; see `held_out_stores` for errors."""
    data = given.loaded.recipe.data
    if named := given.data or data.validation:
        return [open_store(named, split="validation")]
    if not data.train:
        raise UserError("the run names no validation data: say which store to score with `data=FOLDER`")
    if stores := open_held_out(data.train):
        return stores
    raise UserError(
        f"the run was trained on {', '.join(data.train)}, which have no held-out data: name a store by "
        "`data=FOLDER` (in a recipe by data.validation), or name the training store to score the training text"
    )
