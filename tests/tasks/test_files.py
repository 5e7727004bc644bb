"""Problems from files: every row once a pass, columns to the reward, and every error with its line."""

import json
import re
import sys

import pytest

from grpo_jax.rewards.combine import _RESERVED
from grpo_jax.tasks import arithmetic, columns_of, files, for_rewards, pretrained_tokenizer
from grpo_jax.tasks.files import RESERVED
from tests.tasks.builders import save_tokenizer

ROWS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(20)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return pretrained_tokenizer(folder, (1,))


def length(prompts, completions, **columns):
    return [len(text) for text in completions]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(task, split, start, count):
    return [int(example.columns["answer"]) for example in task.examples(split, start, count)]


def test_every_pass_takes_each_row_once_in_a_new_order_wherever_it_starts(tokenizer, tmp_path):
    task = files(tokenizer, write(tmp_path / "a.jsonl", ROWS), length, evaluation={"validation": ROWS[:3]})
    first, second = answers(task, "train", 0, 20), answers(task, "train", 20, 20)
    assert sorted(first) == sorted(second) == list(range(0, 40, 2))
    assert first != second != sorted(second)
    assert answers(task, "train", 17, 6) == (first + second)[17:23]
    assert task.splits == {"train": None, "validation": 3}
    other = files(tokenizer, ROWS, length, evaluation={"validation": ROWS[:3]}, seed=1)
    assert answers(other, "train", 0, 20) != first
    assert answers(files(tokenizer, ROWS, length, evaluation={"validation": ROWS}), "train", 0, 20) == first
    assert task.examples("train", 3, 0) == []
    assert "20 train, 3 validation" in task.description


def test_a_share_of_the_prompts_is_held_out_with_all_their_rows(tokenizer):
    doubled = [*ROWS, *({**row, "answer": "-1"} for row in ROWS)]
    task = files(tokenizer, doubled, length, held_out=0.25)
    assert task.splits["validation"] == 10
    aside = {example.prompt for example in task.examples("validation", 0, 10)}
    seen = {example.prompt for example in task.examples("train", 0, 30)}
    assert len(aside) == 5
    assert len(seen) == 15
    assert not aside & seen
    assert files(tokenizer, ROWS, length).splits["validation"] == 2


def test_texts_begin_as_the_model_expects_and_rewards_see_what_was_written(tokenizer):
    task = files(tokenizer, ROWS, length)
    example = task.examples("train", 0, 1)[0]
    assert example.prompt == "<s>" + example.source
    assert tokenizer.encode(example.prompt)[0] == 0
    assert for_rewards([example], ["a", "b"]) == ([example.source], ["a", "b"])
    assert columns_of([example]) == {"answer": [example.columns["answer"]]}
    assert task.demonstration is None
    assert task.max_completion_tokens is None
    assert task.max_prompt_tokens == 7


def test_chats_are_rendered_and_reach_the_reward_as_messages(tokenizer):
    chat = [{"role": "user", "content": "1+1="}]
    task = files(tokenizer, [{"prompt": chat}, {"prompt": [{"role": "user", "content": "2"}]}], length, held_out=0.5)
    [example] = [
        each for split in ("train", "validation") for each in task.examples(split, 0, 1) if "1+1" in each.prompt
    ]
    assert example.prompt == "[user]1+1=</s>[assistant]"
    answer = [[{"role": "assistant", "content": "2"}]]
    assert for_rewards([example], ["2"]) == ([chat], answer)


@pytest.mark.parametrize(
    ("system", "start"), [("be brief", "[system]be brief</s>[user]0+0="), ("", "[user]0+0="), (None, "<s>0+0=")]
)
def test_a_system_message_makes_texts_a_turn(tokenizer, system, start):
    task = files(tokenizer, ROWS, length, evaluation={"validation": ROWS[:1]}, system=system)
    assert task.examples("validation", 0, 1)[0].prompt.startswith(start)


def test_a_column_with_completions_can_be_imitated(tokenizer):
    rows = [{"prompt": "a", "completion": "bcd"}, {"prompt": "b", "completion": [{"role": "a", "content": "x"}]}]
    task = files(tokenizer, rows, length, evaluation={"validation": rows})
    assert sorted(map(task.demonstration, task.examples("train", 0, 2))) == ["bcd", "x"]
    assert task.max_completion_tokens == 4


def test_long_prompts_are_an_error_or_left_out(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", ROWS)
    message = (
        f"{path}, line 11: the prompt has 7 tokens, but max_prompt_tokens is 5; 10 of 20 prompts of {path} are too "
        "long, the longest has 7 tokens: raise the limit, or set drop_long"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        files(tokenizer, path, length, max_prompt_tokens=5)
    task = files(tokenizer, path, length, max_prompt_tokens=5, drop_long=True)
    assert sorted({int(answer) for answer in answers(task, "train", 0, 9) + answers(task, "validation", 0, 1)}) == [
        *range(0, 20, 2)
    ]
    assert "10 left out, their prompts have more than 5 tokens" in task.description
    with pytest.raises(ValueError, match="every prompt has more than max_prompt_tokens=1 tokens"):
        files(tokenizer, path, length, max_prompt_tokens=1, drop_long=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n\n{"prompt": 3', "a.jsonl, line 3 is not JSON"),
        ('{"prompt": "a"}\n\xff', "a.jsonl, line 2 is not JSON"),
        ('["a"]', "a.jsonl, line 1 is no JSON object but list"),
        ("", "a.jsonl has no rows"),
        ('{"ask": "a"}', "a.jsonl, line 1 has no column prompt or problem or question, only ['ask']: rename one"),
        ('{"prompt": "a", "x": 1}\n{"prompt": "b", "y": 1}', "line 2 has other columns than"),
        ('{"prompt": "a", "x": 1}\n{"prompt": "b", "y": 1}', "without ['x'], with ['y']"),
        ('{"prompt": null}', "a.jsonl, line 1: the prompt is None: give text, or messages"),
        ('{"prompt": ""}', "line 1: the prompt is ''"),
        ('{"prompt": []}', "line 1: the prompt is []"),
        ('{"prompt": [{"role": "user"}]}', "line 1: the prompt is [{'role': 'user'}]"),
        ('{"prompt": "a", "completion": 3}', "line 1: the completion is 3: give text"),
        ('{"prompt": "a", "prompts": 3}', "line 1 has a column 'prompts', a name that reward functions receive anyway"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tokenizer, tmp_path, text, message):
    (tmp_path / "a.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(message)):
        files(tokenizer, tmp_path / "a.jsonl", length, evaluation={"validation": ROWS})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluation": {"train": ROWS}}, "evaluation has a split 'train'"),
        ({"evaluation": {"validation": ROWS}, "held_out": 0.1}, "held_out=0.1 has no effect"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"held_out": 0.001}, "leaves no problem in 'validation'"),
        ({"held_out": 0.999}, "leaves no problem in 'train'"),
        ({"drop_long": True}, "drop_long has no effect without max_prompt_tokens"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0"),
        ({"seed": -1}, "seed -1 is negative"),
        ({"prompt_column": "question"}, "row 0 has no column question, only"),
    ],
)
def test_options_out_of_range_or_without_effect_are_errors(tokenizer, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        files(tokenizer, ROWS, length, **options)


def test_chats_need_a_template_and_one_system_message(tokenizer):
    chat = [{"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}] * 2
    with pytest.raises(ValueError, match="row 0: a CharacterTokenizer has no chat template"):
        files(arithmetic().tokenizer, chat, length)
    with pytest.raises(ValueError, match="row 0: the chat has a system message of its own"):
        files(tokenizer, chat, length, system="c")


def test_files_of_another_kind_or_none_are_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"a.csv: files end in .jsonl or .parquet"):
        files(tokenizer, tmp_path / "a.csv", length)
    with pytest.raises(FileNotFoundError, match=r"a.jsonl: no such file"):
        files(tokenizer, str(tmp_path / "a.jsonl"), length)
    with pytest.raises(ValueError, match="row 0 is int: give a mapping"):
        files(tokenizer, iter([3]), length)
    with pytest.raises(ValueError, match="unknown split 'test' of files"):
        files(tokenizer, ROWS, length).examples("test", 0, 1)
    with pytest.raises(ValueError, match="examples 1 to 3 of 'validation' do not exist: it has 2"):
        files(tokenizer, ROWS, length).examples("validation", 1, 2)


def test_parquet_is_read_where_pyarrow_is_installed(tokenizer, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    chats = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "a.parquet")
    task = files(tokenizer, tmp_path / "a.parquet", length, evaluation={"validation": chats})
    assert sorted(answers(task, "train", 0, 20)) == list(range(0, 40, 2))
    with pytest.raises(ValueError, match=r"a.parquet, row 0 has no column p, only"):
        files(tokenizer, tmp_path / "a.parquet", length, prompt_column="p")


def test_parquet_without_pyarrow_names_the_extra(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ImportError, match=r"pip install 'grpo-jax\[parquet\]'"):
        files(tokenizer, tmp_path / "a.parquet", length)


def test_ids_that_the_tokenizer_does_not_know_stay_visible(tokenizer):
    assert tokenizer.decode([3, 999, 4, 2, 1, 5]) == "0�1<pad>"
    assert tokenizer.begun("a") == tokenizer.begun("<s>a") == "<s>a"


def test_names_that_rewards_receive_are_the_ones_refused_when_scoring():
    assert RESERVED == _RESERVED
