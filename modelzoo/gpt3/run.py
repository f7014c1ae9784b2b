"""Runs GPT-2 and GPT-3: ``python -m modelzoo.gpt3.run -m train -p FILE``."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="gpt3")
