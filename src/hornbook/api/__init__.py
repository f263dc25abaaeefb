"""The Python API: what ``import hornbook`` offers, in the words of the commands.

    corpora     train_tokenizer, build_corpus, corpus -> Corpus      texts to tokens, tokens to a torch Dataset
    training    train -> Run; metrics, runs                          a recipe to a finished run, its numbers as rows
    model       load -> Model                                        logits, loss, generate, fill, embed, transformers

Nothing is computed here that the commands compute otherwise: both call the same functions below. Errors are those of
`hornbook.errors`, and nothing exits. The trade-off: a message may name the option of the command (``--input-length``)
whose argument here has the same name with underscores.
"""
