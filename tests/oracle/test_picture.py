"""Pictures that notebooks show."""

from IPython.core.interactiveshell import InteractiveShell

from grpo_jax.oracle.picture import picture


def test_a_notebook_shows_the_picture_once_without_pyplot():
    figure = picture(3, 2)
    figure.subplots().plot([1, 2])
    shown, _ = InteractiveShell.instance().display_formatter.format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert figure.get_size_inches().tolist() == [3, 2]
