"""Read and write the models of other projects: Hugging Face folders and TensorFlow checkpoints."""
