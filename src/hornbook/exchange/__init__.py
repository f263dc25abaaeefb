"""Models of other projects: Hugging Face and TensorFlow checkpoints, read and written."""
