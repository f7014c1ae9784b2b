"""Environment variables are listed, read and refused in one place."""

import pytest

from cerebras_tf import environment
from cerebras_tf.errors import ConfigError
from tests.messages import names


def test_every_variable_is_listed_once_and_documented():
    listed = [variable.name for variable in environment.VARIABLES]
    found = {
        item.name
        for item in vars(environment).values()
        if isinstance(item, environment.EnvironmentVariable)
    }
    assert len(listed) == len(set(listed)) and set(listed) == found
    assert all(variable.meaning and variable.default_text for variable in environment.VARIABLES)


def test_unset_and_empty_variables_give_the_default(monkeypatch):
    for variable in environment.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
        assert variable.get() == variable.default and not variable.is_set
        monkeypatch.setenv(variable.name, "")
        assert variable.get() == variable.default and variable.is_set


@pytest.mark.parametrize(
    "variable, text",
    [
        (environment.EXECUTION_MODE, "pipelined"),
        (environment.THREADS, "0"),
        (environment.SGEMM, "mkl"),
        (environment.ISA, "avx"),
        (environment.WAFERS, "0"),
        (environment.RANK, "-1"),
    ],
)
def test_an_invalid_value_is_refused_by_name(variable, text, monkeypatch):
    monkeypatch.setenv(variable.name, text)
    with pytest.raises(ConfigError) as refused:
        variable.get()
    assert names(str(refused.value), variable.name, f"Received: {text!r}")
