import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.tasks import Example, Task, arithmetic, exact_answer

SPLITS = ("train", "validation", "longer", "operators", "format")
TASK = arithmetic()


def expression(prompt: str) -> str:
    """The expression a prompt asks for, without format and leading zeros."""
    bare = prompt.removeprefix("say ").replace(" ", "").removesuffix("=")
    return re.sub(r"\b0+(\d)", r"\1", bare)


def operands(prompt: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", prompt))


def some(task: Task, split: str, count: int = 300):
    size = task.splits[split]
    return task.examples(split, 0, count if size is None else min(count, size))


@pytest.mark.parametrize("operators", ["+", "-", "*", "+-", "+-*"])
@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_right_and_fit(operators, split):
    task = arithmetic(operators, digits=(1, 2))
    for example in some(task, split):
        assert example.columns == {"answer": str(eval(expression(example.prompt)))}
        assert len(task.tokenizer.encode(example.prompt)) <= task.max_prompt_tokens
        assert len(task.tokenizer.encode(task.demonstration(example))) < task.max_completion_tokens
        assert set(re.findall(r"[-+*]", example.prompt)) <= set(operators)


@pytest.mark.parametrize("digits", [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize(
    ("operators", "worst"),
    [("+", "{long}+{long}"), ("-", "{small}-{big}-{big}"), ("+*", "{big}*{big}*{big}"), ("*", "{long}*{long}")],
)
def test_the_budgets_hold_the_longest_answer_of_any_split(operators, worst, digits):
    big, long = "9" * digits[1], "9" * (digits[1] + 1)
    small = "0" if digits[0] == 1 else "1" + "0" * (digits[0] - 1)
    task = arithmetic(operators, digits=digits)
    assert len(str(eval(worst.format(big=big, long=long, small=small)))) + 1 <= task.max_completion_tokens
    prompts = [f"{big} + {big} =", f"say {big}+{big}=", f"0{big}+0{big}=", f"{long}+{long}=", f"{big}+{big}+{big}="]
    assert max(map(len, prompts)) == task.max_prompt_tokens


def test_prompts_look_as_documented():
    shapes = {
        "train": r"\d{1,2}[-+]\d{1,2}=",
        "validation": r"\d{1,2}[-+]\d{1,2}=",
        "longer": r"\d{3}[-+]\d{3}=",
        "operators": r"\d{1,2}[-+]\d{1,2}[-+]\d{1,2}=",
        "format": r"\d{1,2} [-+] \d{1,2} =|0\d{1,2}[-+]0\d{1,2}=|say \d{1,2}[-+]\d{1,2}=",
    }
    for split, shape in shapes.items():
        prompts = [example.prompt for example in some(TASK, split)]
        assert all(re.fullmatch(shape, prompt) for prompt in prompts), split
    formats = {re.sub(r"[1-9]\d*", "n", prompt.replace("-", "+")) for prompt in prompts}
    assert {"n + n =", "0n+0n=", "say n+n="} <= formats


@pytest.mark.parametrize(("digits", "lowest", "highest"), [((1, 1), 0, 9), ((2, 2), 10, 99), ((1, 3), 0, 999)])
def test_operands_have_the_digits_asked_for(digits, lowest, highest):
    found = [
        number for example in some(arithmetic(digits=digits), "train", 3000) for number in operands(example.prompt)
    ]
    assert lowest <= min(found) < lowest + 0.1 * (highest - lowest) + 1
    assert highest >= max(found) > highest - 0.1 * (highest - lowest) - 1


def test_no_held_out_operands_are_ever_trained_on_in_either_order_or_under_any_operator():
    task = arithmetic("+-", digits=(1, 1), held_out=0.3)
    held_out = {frozenset(operands(example.prompt)) for example in task.examples("validation", 0, 2 * 16)}
    reformatted = {frozenset(operands(example.prompt)) for example in task.examples("format", 0, 2 * 16)}
    passes = 20
    train = {frozenset(operands(example.prompt)) for example in task.examples("train", 0, 2 * 39 * passes)}
    assert len(held_out) == 16  # .3 of the 55 pairs of 0..9
    assert reformatted == held_out
    assert len(train) == 39
    assert not held_out & train


def test_validation_asks_every_held_out_problem_once():
    task = arithmetic("+-", digits=(1, 1), held_out=0.3)
    problems = [
        (frozenset(operands(example.prompt)), "-" in example.prompt) for example in task.examples("validation", 0, 32)
    ]
    assert len(set(problems)) == task.splits["validation"] == 32


def test_a_pass_over_train_visits_each_pair_with_each_operator_once_and_the_next_in_another_order():
    task = arithmetic("+-", digits=(1, 1), held_out=0.3)
    first, second = task.examples("train", 0, 78), task.examples("train", 78, 78)
    identities = [[(frozenset(operands(e.prompt)), "-" in e.prompt) for e in part] for part in (first, second)]
    assert len(set(identities[0])) == 78
    assert set(identities[0]) == set(identities[1])
    assert sum(a == b for a, b in zip(*identities, strict=True)) < 10


def test_both_orders_of_the_operands_occur():
    problems = [operands(example.prompt) for example in some(TASK, "train", 1000)]
    assert 0.4 < sum(a > b for a, b in problems) / len(problems) < 0.6


@given(st.sampled_from(SPLITS), st.integers(0, 200), st.integers(0, 60), st.integers(0, 60))
def test_examples_depend_on_nothing_but_their_index(split, start, first, second):
    together = TASK.examples(split, start, first + second)
    assert together == TASK.examples(split, start, first) + TASK.examples(split, start + first, second)
    assert arithmetic().examples(split, start, first) == together[:first]


@pytest.mark.parametrize("split", SPLITS)
def test_another_seed_asks_other_problems(split):
    first = [e.prompt for e in some(TASK, split, 100)]
    second = [e.prompt for e in some(arithmetic(seed=1), split, 100)]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


def test_another_seed_holds_other_pairs_out():
    pairs = [{frozenset(operands(e.prompt)) for e in some(arithmetic(seed=s), "validation", 1010)} for s in (0, 1)]
    assert len(pairs[0] & pairs[1]) / len(pairs[0]) < 0.3


def test_the_share_held_out_sets_the_size_of_validation():
    assert arithmetic(held_out=0.2).splits["validation"] == 2 * 1010
    assert arithmetic("+", held_out=0.2).splits["validation"] == 1010


@pytest.mark.parametrize("split", SPLITS)
def test_a_thousand_examples_take_less_than_fifty_milliseconds_of_a_processor(split):
    task, seconds = arithmetic("+-*", digits=(2, 4)), []
    for attempt in range(5):
        begin = time.thread_time()
        task.examples(split, attempt * 1000, 1000)
        seconds.append(time.thread_time() - begin)
    assert min(seconds) < 0.05


def test_eight_digits_do_not_overflow():
    for example in arithmetic("+-*", digits=(8, 8)).examples("longer", 0, 50):
        assert example.columns["answer"] == str(eval(expression(example.prompt)))
        assert all(10**8 <= number < 10**9 for number in operands(example.prompt))


def test_the_reward_is_one_for_the_right_answer_and_zero_otherwise():
    texts = ["95", " 95 ", "95\nbecause", "095", "9 5", "95.", "", "59", "-95", "9\ufffd5"]
    rewards = exact_answer(["37+58="] * len(texts), texts, answer=["95"] * len(texts), difficulty=[1] * len(texts))
    assert rewards == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_every_demonstration_earns_the_full_reward():
    for split in SPLITS:
        examples = some(TASK, split, 50)
        answers = [example.columns["answer"] for example in examples]
        texts = [TASK.demonstration(example) for example in examples]
        assert TASK.reward([e.prompt for e in examples], texts, answer=answers) == [1.0] * len(examples)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": ""}, "empty task: no operators"),
        ({"operators": "+/"}, "operators '\\+/'"),
        ({"operators": "++"}, "at most once"),
        ({"digits": (2, 1)}, "empty task: no number has 2 to 1 digits"),
        ({"digits": (0, 1)}, "have 1 to 8 digits"),
        ({"digits": (1, 9)}, "have 1 to 8 digits"),
        ({"held_out": 0.0}, "empty task: held_out 0.0"),
        ({"held_out": 1.0}, "empty task: held_out 1.0"),
        ({"held_out": float("nan")}, "empty task: held_out nan"),
        ({"held_out": 0.001, "digits": (1, 1)}, "empty task: .*no problem in 'validation'"),
        ({"held_out": 0.999, "digits": (1, 1)}, "empty task: .*no problem in 'train'"),
        ({"seed": -1}, "seed -1 is negative"),
    ],
)
def test_a_task_that_cannot_be_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        arithmetic(**arguments)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("test", 0, 1), "unknown split 'test'"),
        (("validation", 1000, 11), "it has 1010"),
        (("train", -1, 1), "do not exist"),
        (("train", 0, -1), "do not exist"),
    ],
)
def test_examples_that_do_not_exist_are_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        TASK.examples(*request_)


@pytest.mark.parametrize(
    ("prompt", "answer", "slip"),
    [
        ("62+66=", "128", "28"),
        ("37+58=", "95", "85"),
        ("9+3=", "12", "2"),
        ("82-35=", "47", "57"),
        ("56-74=", "-18", "-28"),
        ("48-24=", "24", "24"),
        ("5-5=", "0", "0"),
        ("13*24=", "312", "302"),
    ],
)
def test_whoever_forgets_to_carry_errs_only_where_something_is_carried(prompt, answer, slip):
    assert TASK.slip(Example(prompt, {"answer": answer})) == slip


def test_a_slip_fits_the_budget_and_is_wrong_for_a_share_of_the_problems():
    examples = TASK.examples("train", 0, 2000)
    slips = [TASK.slip(example) for example in examples]
    assert all(len(TASK.tokenizer.encode(slip)) < TASK.max_completion_tokens for slip in slips)
    right = [slip == example.columns["answer"] for slip, example in zip(slips, examples, strict=True)]
    assert 0.4 < sum(right) / len(right) < 0.5
