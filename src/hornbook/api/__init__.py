"""The Python API, available as ``import hornbook``, with the names of the commands.

    corpora     train_tokenizer, build_corpus, corpus -> Corpus      tokenize texts; a corpus as a torch Dataset
    training    train -> Run; metrics, runs                          train a recipe; logged values as rows
    model       load -> Model                                        logits, loss, generate, fill, embed, transformers

The API and the commands call the same functions, so they compute the same results. Errors are those of
`hornbook.errors`, and nothing exits the process. The trade-off: a message may name an option of the command
(``--input-length``); the argument here has the same name with underscores.
"""
