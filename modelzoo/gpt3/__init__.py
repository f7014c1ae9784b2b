"""GPT-2 and GPT-3: decoder-only language models. Holds no blocks shared with other models."""
