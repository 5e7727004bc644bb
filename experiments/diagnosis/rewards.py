"""A reward that has nothing to do with the task, so that nothing but the KL term holds the policy."""


def nines(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Returns how many nines each completion has."""
    return [float(completion.count("9")) for completion in completions]
