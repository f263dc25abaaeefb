"""From files to documents and from documents to token ids; numpy and the tokenizers library, no torch."""
