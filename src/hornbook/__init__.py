"""hornbook takes raw text to a pre-trained, evaluated language model."""

__version__ = "0.1.0"
