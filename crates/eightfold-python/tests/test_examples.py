"""The examples of the docstrings."""

import doctest
import importlib
import inspect

import eightfold
import pytest
from conftest import HAS_TORCH

MODULES = ["eightfold", "eightfold._attention", "eightfold._check", "eightfold._machine", "eightfold._paged", "eightfold._sdpa", "eightfold.transformers", "eightfold.diffusers", "eightfold.comfyui", "eightfold.vllm"]


@pytest.mark.parametrize("name", MODULES + ["eightfold.flash_attn"])
def test_examples_run(name):
    if name.endswith("flash_attn") and not HAS_TORCH:
        pytest.skip("torch is not installed")
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [test for test in finder.find(module, name) if test.examples and "configure" not in test.name]
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_every_function_has_an_example():
    names = [name for name in eightfold.__all__ if HAS_TORCH or not name.startswith("flash_attn")]
    public = [getattr(eightfold, name) for name in names]
    lacking = [one.__name__ for one in public if inspect.isfunction(one) and ">>> " not in (one.__doc__ or "")]
    assert lacking == []
