"""Building a corpus: documents to token batches, parts that survive a kill, and the finished stores."""
