"""SmolLM2-135M-Instruct, a pretrained model without a model hub: a Python package has its weights."""
