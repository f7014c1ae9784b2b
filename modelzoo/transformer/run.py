"""Runs the encoder-decoder: ``python -m modelzoo.transformer.run -m train -p FILE``. No more."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="transformer")
