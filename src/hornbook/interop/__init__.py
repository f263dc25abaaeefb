"""Files of other systems: formats, conversion of tokens, BERT's instances, TensorFlow's checkpoints.

formats      TFRecord, tf.train.Example, protocol buffers, CRC-32C, byte by byte
convert      tokenized documents and instances between formats       hornbook corpus convert
instances    BERT's instances: train on them, build them             hornbook corpus instances
tensorflow   models trained in TensorFlow                            hornbook checkpoint import

Nothing in the core imports this room: `hornbook/__init__` plugs it into the points of `hornbook.plugs`, and the
commands above call it.
"""
