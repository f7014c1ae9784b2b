"""Runs a transformers model: ``python -m modelzoo.hugging_face.run -m train -p FILE``."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="hf_causal_lm")
