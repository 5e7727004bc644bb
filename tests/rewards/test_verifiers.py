"""Verifiers of answers: the right one in every spelling, and nothing else."""

import pytest

from grpo_jax.rewards import countdown, final_answer, math_answer, symbolic_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 3 + 4 = 7", "7"),
        ("it is 1,234.5 metres", "1,234.5"),
        ("so x = -3/4.", "-3/4"),
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{x^{2}}} and 5", r"\sqrt{x^{2}}"),
        ("5\n#### 42\n", "42"),
        ("#### 1,000 dollars\nbye 3", "1,000 dollars"),
        (r"#### 3 but \boxed{4}", "4"),
        (r"unclosed \boxed{4", "4"),
        ("no number", None),
        ("", None),
    ],
)
def test_a_solution_ends_with_its_last_box_mark_or_number(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("completion", "right", "reward"),
    [
        ("the answer is 42", "42", 1),
        ("the answer is 42.", "42.0", 1),
        ("the answer is 41", "42", 0),
        ("1,000", "1000", 1),
        (r"\boxed{\frac12}", "0.5", 1),
        (r"\boxed{\dfrac{3}{4}}", r"\frac{3}{4}", 1),
        (r"\boxed{-\frac{3}{4}}", "-0.75", 1),
        (r"\boxed{\text{Paris}}", "paris", 1),
        (r"\boxed{\left( 1, 2 \right)}", "(1,2)", 1),
        (r"\boxed{50\%}", "50", 1),
        (r"\boxed{1/0}", "1", 0),
        ("#### 72", "48/2=24\n24+48=72\n#### 72", 1),
        (r"so \boxed{5}", r"We find $\boxed{5}$.", 1),
        ("nothing", "1", 0),
        ("", "1", 0),
        ("1" * 5000, "1" * 5000 + "2", 0),
        ("1", 1, 1),
        ("1", None, None),
    ],
)
def test_an_answer_is_right_whatever_its_spelling(completion, right, reward):
    assert math_answer(["p"], [completion], answer=[right]) == [reward]
    assert math_answer([[]], [[{"role": "assistant", "content": completion}]], solution=[right]) == [reward]


def test_algebra_is_for_the_symbolic_verifier():
    pytest.importorskip("math_verify")
    completions = [r"so \boxed{2x + 1}", r"so \boxed{2x + 2}", "so 4", "x"]
    answers = ["1 + 2x", "1 + 2x", "4", None]
    assert math_answer(["p"] * 4, completions, answer=answers) == [0, 0, 1, None]
    assert symbolic_answer(["p"] * 4, completions, answer=answers) == [1, 0, 1, None]


@pytest.mark.parametrize("verifier", [math_answer, symbolic_answer])
def test_data_without_the_right_answer_is_refused(verifier):
    if verifier is symbolic_answer:
        pytest.importorskip("math_verify")
    with pytest.raises(ValueError, match="neither a column 'answer' nor a column 'solution'"):
        verifier(["p"], ["1"], right=["1"])


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>(19 + 36 - 55) * 7 + 6</answer>", 0),
        ("thinking\n<answer> 55 + 36 - 19 </answer>", 1),
        ("55 + 36 - 19 = 72", 1),
        ("(55 + 36) - 19", 1),
        ("55+36", 0),
        ("55+36-19+0", 0),
        ("55 + 36 - 19 - 19 + 19", 0),
        ("72", 0),
        ("19 - -36 + 55", 0),
        ("55.0 + 36 - 19", 0),
        ("__import__('os').system('false')", 0),
        ("9**9**9**9", 0),
        ("(" * 150 + "1" + ")" * 40, 0),
        ("1/0", 0),
        ("<answer></answer>", 0),
        ("", 0),
        ("1" * 400, 0),
        ("\0", 0),
    ],
)
def test_countdown_takes_every_number_once_and_reaches_the_target(completion, reward):
    assert countdown(["p"], [completion], target=[72], nums=[[19, 36, 55]]) == [reward]
    chat = [[{"role": "assistant", "content": completion}]]
    assert countdown([[]], chat, target=[72], numbers=[[55, 36, 19]]) == [reward]


def test_countdown_divides_exactly():
    assert countdown(["p"] * 2, ["8 / (3 - 8 / 3)", "1 / 3 * 3"], target=[24, 1], nums=[[8, 3, 8, 3], [1, 3, 3]]) == [
        1,
        1,
    ]


def test_countdown_needs_numbers():
    with pytest.raises(ValueError, match="neither a column 'nums' nor a column 'numbers'"):
        countdown(["p"], ["1"], target=[1])
