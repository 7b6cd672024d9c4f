"""scikit-learn's cross-validation with two processes gives the scores of one."""

from __future__ import annotations

import multiprocessing

from joblib import parallel_config
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

import dragon  # noqa: F401 - makes "dragon" a start method


def main() -> None:
    multiprocessing.set_start_method("dragon")
    data, target = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=500)
    expected = cross_val_score(model, data, target, cv=4, n_jobs=1)
    assert expected.min() > 0.9
    for backend in ("multiprocessing", "loky"):
        with parallel_config(backend=backend):
            assert cross_val_score(model, data, target, cv=4, n_jobs=2).tolist() == expected.tolist()
    print("ok")


if __name__ == "__main__":
    main()
