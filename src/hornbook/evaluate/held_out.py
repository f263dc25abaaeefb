"""The stores that a task scores: those that the user names, or else what the run held out.

--data FOLDER     that store, or its validation split
nothing           the run's validation stores, one of each corpus that it was trained on

What it was trained on is scored only if the user names it: a score on the training text looks like one on held-out
text, and is better.
"""

from hornbook.corpora.store import TokenStore, open_held_out, open_store
from hornbook.errors import UserError
from hornbook.evaluate.tasks import TaskInput
from hornbook.text.tokenizer import Tokenizer


def held_out_stores(given: TaskInput) -> list[TokenStore]:
    """Return one store or several of one tokenizer, which is the model's as far as they know.

    Raises:
        UserError: no store is named or held out, or its tokenizer is another one.
        DataError: a store is malformed.
        CheckpointError: the model has no tokenizer.
    """
    stores = open_scored(given)
    _refuse_other_tokenizer(stores[0], given.loaded.require_tokenizer())
    return stores


def open_scored(given: TaskInput) -> list[TokenStore]:
    """Return the stores that are named or held out, whatever their tokenizer; errors as `held_out_stores`."""
    data = given.loaded.recipe.data
    if named := given.data or data.validation:
        return [open_store(named, split="validation")]
    if not data.train:
        raise UserError("the run names no validation data: say which store to score with `--data FOLDER`")
    if stores := open_held_out(data.train):
        return stores
    raise UserError(
        f"the run was trained on {', '.join(data.train)}, of which nothing is held out: name a store by "
        "`--data FOLDER` (in a recipe by data.validation), or give that one to score the training text itself"
    )


def _refuse_other_tokenizer(store: TokenStore, tokenizer: Tokenizer) -> None:
    own = store.tokenizer()
    if own is not None and own.digest != tokenizer.digest:
        raise UserError(
            f"the store was made with tokenizer {own.digest[:12]}, the model was trained with {tokenizer.digest[:12]}: "
            "build the store with the model's tokenizer.json"
        )
