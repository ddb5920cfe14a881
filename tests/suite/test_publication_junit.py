"""pytest's own report: a failing cell's entry says what failed and how to see it, in few words."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

pytest_plugins = ["pytester"]

CONFORMANCE = ("-p", "no:cacheprovider", "--pyargs", "qkvac.tests.conformance")

PORT = """
import numpy as np

def attention(X, Wq, Wk, Wv):
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    e = np.exp(Q @ K.T / X.dtype.type(Wq.shape[1]))
    A = e / e.sum(axis=1, keepdims=True)
    return {"Q": Q, "K": K, "V": V, "A": A, "C": A @ V}
"""


@pytest.mark.parametrize("count", ["0", "2"])
def test_junit_has_the_failures_and_little_else(pytester: pytest.Pytester, count: str) -> None:
    pytester.makepyfile(port_of_mine=PORT)
    options = ("--qkvac-dtype", "float32", "--qkvac-case", "attention/normal/2x3x5")
    pytester.runpytest_subprocess(
        *CONFORMANCE, "--qkvac-port", "port_of_mine.py", *options, "-n", count, "--junitxml=j.xml"
    )
    suite = ElementTree.parse(pytester.path / "j.xml").getroot()
    cases = {case.attrib["name"].rpartition("-")[2]: case for case in suite.iter("testcase")}
    for case in cases.values():
        (told,) = case.iter("property")
        assert told.attrib["name"] == "qkvac"
        assert len(told.attrib["value"]) < 60
    good = next(cases["Q]"].iter("property")).attrib["value"]
    assert good.endswith("of the bound")
    assert not list(cases["Q]"].iter("failure"))
    (failure,) = cases["A]"].iter("failure")
    assert failure.text is not None
    head, *rest = failure.text.splitlines()
    assert head.endswith("attention/normal/2x3x5 · A: failed, local, its equation")
    assert any("worst at [" in line for line in rest)
    assert any("goes wrong is A[n, n] = softmax" in line for line in rest)
    assert any(line.strip().startswith("again: qkvac check port_of_mine.py") for line in rest)
    (skipped,) = cases["scores]"].iter("skipped")
    assert "not returned by the port" in skipped.attrib["message"]
