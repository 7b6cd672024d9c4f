"""A checkpoint keeps what was; rollback() goes back to it."""

from dragon.data.ddict import DDict

if __name__ == "__main__":
    with DDict(1, 1, 16 * 2**20, working_set_size=2) as ddict:
        ddict["weights"] = [0.1, 0.2]
        ddict.checkpoint()
        ddict["weights"] = ["not", "a", "number"]
        print(ddict["weights"])
        ddict.rollback()
        print(ddict["weights"])
