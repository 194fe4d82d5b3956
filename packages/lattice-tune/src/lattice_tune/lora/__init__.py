"""Training of low-rank adapters (LoRA) on the programs that run models."""
