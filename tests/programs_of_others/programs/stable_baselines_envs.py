"""Stable-Baselines3: environments in processes, with their attributes and methods, and PPO that trains on them."""

import os

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

import dragon  # noqa: F401


class Counting(gymnasium.Wrapper):
    def who(self, offset):
        return os.getpid() + offset


def make():
    return Counting(gymnasium.make("CartPole-v1"))


if __name__ == "__main__":
    envs = SubprocVecEnv([make] * 3, start_method="dragon")
    envs.seed(1)
    assert envs.reset().shape == (3, 4)
    for _ in range(100):
        observations, rewards, dones, infos = envs.step([1, 0, 1])
    assert rewards.tolist() == [1, 1, 1]
    pids = envs.env_method("who", 0)
    assert len(set(pids)) == 3
    assert os.getpid() not in pids
    assert [spec.id for spec in envs.get_attr("spec")] == ["CartPole-v1"] * 3
    envs.close()
    print("environments done")
    vectors = make_vec_env(
        "CartPole-v1", n_envs=2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "dragon"}
    )
    model = PPO("MlpPolicy", vectors, n_steps=64, batch_size=32, n_epochs=1, device="cpu", seed=1)
    model.learn(256)
    assert model.num_timesteps >= 256
    vectors.close()
    print("training done")
