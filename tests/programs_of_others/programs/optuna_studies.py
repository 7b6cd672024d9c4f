"""Optuna: processes that work at one study through a file, and one in a database."""

import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import dragon  # noqa: F401

optuna.logging.set_verbosity(optuna.logging.WARNING)


def storage(kind):
    return "sqlite:///study.db" if kind == "database" else JournalStorage(JournalFileBackend("study.log"))


def objective(trial):
    x = trial.suggest_float("x", -5, 5)
    return (x - 2) ** 2


def optimize(kind, seed):
    study = optuna.load_study(study_name="s", storage=storage(kind), sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=8)
    return len(study.trials)


if __name__ == "__main__":
    mp.set_start_method("dragon")
    optuna.create_study(study_name="s", storage=storage("file"))
    with mp.Pool(2) as pool:
        pool.starmap(optimize, [("file", seed) for seed in range(4)])
    study = optuna.load_study(study_name="s", storage=storage("file"))
    assert sorted(trial.number for trial in study.trials) == list(range(32))
    assert study.best_value < 1
    print("file done")
    optuna.create_study(study_name="s", storage=storage("database"))
    with ProcessPoolExecutor(2) as executor:
        list(executor.map(optimize, ["database"] * 2, range(2)))
    study = optuna.load_study(study_name="s", storage=storage("database"))
    assert all(trial.state.is_finished() for trial in study.trials)
    assert len(study.trials) == 16
    print("database done")
