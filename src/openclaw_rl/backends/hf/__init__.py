"""What backends share of a Hugging Face model: loading, templates, adapters, memory."""
