"""Errors of all kernels, and of the operators that they replace, at more radii than in the tests.

TRITON_INTERPRET=1 python -m tests.kernels.error_tables
"""

from tests.kernels import errors, layer_errors, pair_errors


def main() -> None:
    """Print the tables, in triton's interpreter."""
    of_layers = layer_errors.logits(), layer_errors.convolutions()
    for table in (pair_errors.lines(), *errors.tables(), *of_layers):
        for line in (*table, ""):
            print(line, flush=True)


if __name__ == "__main__":
    main()
