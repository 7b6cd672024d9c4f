// Waits that have no deadline of their caller's.
#include "common.hpp"

namespace dragon::py {

namespace {

constexpr Nanoseconds kGrace = 1'000'000'000, kAgentsGrace = 2'000'000;

}  // namespace

Nanoseconds grace(Arena& a) { return a.keeps() ? kAgentsGrace : kGrace; }

void wait_in_python(Attempt attempt, void* what) {
    if (WithoutGil::here()) {
        while (!attempt(what));
        return;
    }
    for (;;) {
        {
            WithoutGil without;
            if (attempt(what)) return;
        }
        // One who gives up by itself is in no place for an exception of a signal handler's.
        if (Bounded::limit() == kForever && in_python(PyErr_CheckSignals) != 0) throw nb::python_error();
    }
}

}  // namespace dragon::py
