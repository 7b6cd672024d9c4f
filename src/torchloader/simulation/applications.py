"""The goodput of the six applications with which Pollux was evaluated (OSDI 2021), fitted to its authors' measurements.

The measurements are `simulator/traces` of petuum/adaptdl (Apache 2.0): seconds of iterations on up to four nodes of
four GPUs, those of DeepSpeech2 on six to sixteen nodes, and statistics of gradients for each epoch. The parameters are
what `python benchmarks/torchloader/goodput.py` finds for the rows in `tests/torchloader/traces/pollux`; their relative
error, as a root mean square, is 11 % to 18 %. A training is as long as the authors' validation runs.

Batches reach up to the largest ones that the authors' workloads and validation files name, and those of a device up to
the largest ones that were measured. Three things are not measured:

- ImageNet on more than 16 GPUs is fitted to three times that are derived from the ends of uncontended jobs in the
  authors' results (`simulator/results-jobload`): 1.2 s an iteration with 24 GPUs and a batch of 3,200, and 1.9 s with
  32 or 48 and 6,400. The fit is 4 % to 17 % below them.
- DeepSpeech2 on one node is assumed to synchronize in three tenths of the seconds that several nodes take, as the
  others do on average.
- NCF has one device, on which it trains for 47 s. In the same results, each of its jobs that does not wait ends 77 to
  137 s after its arrival: 0 to 60 s until a round begins, 30 s for the start, and the training.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloader.prediction.goodput import Linear, Profile, Stage

__all__ = ["PROFILES"]

_LARGEST_JOB = 1000  # devices: more than any cluster here has


def _profile(
    seconds: tuple[float, ...], batches: tuple[int, int, int], noise: str, most: int = _LARGEST_JOB
) -> Profile:
    """Return a profile.

    Args:
        seconds: the two numbers of the gradient, of one node and of several, and the overlap.
        batches: the initial one, the largest one, and the largest of a device.
        noise: the end and the noise scale of each stage.
        most: the largest number of devices.
    """
    gradient, each, local, local_each, nodes, nodes_each, overlap = seconds
    initial, largest, fitting = batches
    stages = (part.split(":") for part in noise.split())
    return Profile(
        Linear(gradient, each),
        Linear(local, local_each),
        Linear(nodes, nodes_each),
        overlap,
        initial,
        initial,
        largest,
        fitting,
        most,
        tuple(Stage(float(until), float(scale)) for until, scale in stages),
    )


PROFILES: Mapping[str, Profile] = {
    "cifar10": _profile(
        (0.0153, 0.000742, 0.036, 0.00658, 0.122, 0.00374, 2.94),
        (128, 4096, 1024),
        "391:96.1 783:381 1173:558 1564:807 1954:1110 2347:1330 3128:1940 3908:2180 5862:3270 7818:4330 9771:4920 "
        "11724:6540 15626:8770 19536:14000 23440:25000 25394:29100 27346:40800 29303:63900 31254:61300 35159:101000 "
        "39068:69600",
    ),
    "deepspeech2": _profile(
        (0.346, 0.0225, 0.0815, 0.00304, 0.272, 0.0101, 1.12),
        (20, 640, 80),
        "358:13.9 716:41.2 1074:104 1428:183 1788:293 2498:491 3571:937 5353:1920 7137:5680 8920:19300 12845:27900 "
        "28539:49500",
    ),
    "bert": _profile((0.222, 0.0591, 0.162, 0.0757, 1.46, 0.0191, 2.29), (12, 384, 12), "7392:2210 14778:6710"),
    "yolov3": _profile(
        (0.153, 0.0252, 0.0647, 0.0939, 0.711, 0.0293, 1.2),
        (8, 128, 16),
        "2071:0.477 4140:162 6210:189 8278:209 12415:270 20691:379 31034:345 41380:534 51726:444 62067:690 72413:799 "
        "82758:1360 93102:3000 103447:6170",
    ),
    "imagenet": _profile(
        (0.0872, 0.00415, 1e-06, 1e-06, 0.0483, 0.0263, 1.16),
        (200, 6400, 200),
        "6407:687 12814:2820 25625:5120 64061:7090 128120:8240 185770:8720 192179:8800 198581:31400 217799:32500 "
        "256236:28400 320295:25800 384350:26400 390758:55500 435600:55300 499656:53900 576526:54300",
    ),
    "ncf": _profile(
        (0.001, 8.8e-07, 0.0, 0.0, 0.0, 0.0, 1.0),
        (256, 32768, 32768),
        "19455:120000 38892:1160000 97143:5510000 194230:34700000",
        most=1,
    ),
}
"""The profiles by the name that `workload-N.csv` gives the application."""
