"""The stubs say what is there: the same names, and of every function the same parameters in the same order."""

import ast
import importlib
import inspect
import pathlib

import eightfold
import pytest
from conftest import HAS_TORCH

FOLDER = pathlib.Path(eightfold.__file__).parent
MODULES = {stub.stem: "eightfold" if stub.stem == "__init__" else f"eightfold.{stub.stem}" for stub in FOLDER.glob("*.pyi")}


def functions(stub):
    tree = ast.parse((FOLDER / f"{stub}.pyi").read_text())
    return {node.name: [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)] for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("stub", MODULES)
def test_stubs_name_the_parameters(stub):
    if stub in ("flash_attn", "comfyui") and not HAS_TORCH:
        pytest.skip("torch is not installed")
    module = importlib.import_module(MODULES[stub])
    said = functions(stub)
    for name, parameters in said.items():
        real = inspect.signature(getattr(module, name)).parameters.values()
        names = [p.name for p in real if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        assert parameters == names, name


def test_every_public_module_has_a_stub():
    public = {module.stem for module in FOLDER.glob("*.py") if not module.stem.startswith("_")}
    assert public and public <= set(MODULES)


def test_every_public_name_is_in_the_stub():
    text = (FOLDER / "__init__.pyi").read_text()
    assert [name for name in eightfold.__all__ if name not in text] == []


def test_the_native_module_has_no_name_that_the_stub_lacks():
    native = importlib.import_module("eightfold._eightfold")
    text = (FOLDER / "_eightfold.pyi").read_text()
    names = [name for name in dir(native) if not name.startswith("__")]
    assert names and [name for name in names if name not in text] == []
