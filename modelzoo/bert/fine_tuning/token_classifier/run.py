"""Runs token classifiers: ``python -m modelzoo.bert.fine_tuning.token_classifier.run -p FILE``."""

from modelzoo.common.train.run import run

if __name__ == "__main__":
    run(model_name="bert.fine_tuning.token_classifier")
