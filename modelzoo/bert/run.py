"""Runs BERT pre-training: ``python -m modelzoo.bert.run -m train -p FILE``."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="bert")
