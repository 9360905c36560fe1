"""The reward of a task whose prompts ask for the answer alone."""


def whole_response(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: object = None,
    **_: object,
) -> dict[str, float]:
    """Return as ``score`` and ``acc`` 1.0 if the response is the ground truth, else 0.0; both are stripped.

    It is a reward function of verl's, for prompts that ask for the answer alone.
    """
    right = float(solution_str.strip() == str(ground_truth).strip())
    return {"score": right, "acc": right}
