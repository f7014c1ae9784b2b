"""The table of BERT's fine-tunings. The name of a row is that of its folder."""

from modelzoo.bert.fine_tuning.classifier.model import Classifier
from modelzoo.bert.fine_tuning.extractive_summarization.model import ExtractiveSummarization
from modelzoo.bert.fine_tuning.question_answering.model import QuestionAnswering
from modelzoo.bert.fine_tuning.token_classifier.model import TokenClassifier

TASKS = {
    "classifier": Classifier(),
    "token_classifier": TokenClassifier(),
    "question_answering": QuestionAnswering(),
    "extractive_summarization": ExtractiveSummarization(),
}
