"""GPT-2 and GPT-3: decoder-only language models."""
