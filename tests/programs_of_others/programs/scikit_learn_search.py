"""scikit-learn: a grid search, a forest and cross-validation over processes."""

import multiprocessing as mp

from joblib import parallel_config
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC

import dragon  # noqa: F401

if __name__ == "__main__":
    mp.set_start_method("dragon")
    samples, classes = load_iris(return_X_y=True)
    for backend in ("multiprocessing", "loky"):
        with parallel_config(backend=backend, n_jobs=2):
            search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "kernel": ["linear", "rbf"]}, cv=3)
            search.fit(samples, classes)
            scores = cross_val_score(RandomForestClassifier(20, random_state=1), samples, classes, cv=3)
        assert search.best_score_ > 0.95
        assert len(search.cv_results_["mean_test_score"]) == 6
        assert scores.mean() > 0.9
        print(backend, "done")
