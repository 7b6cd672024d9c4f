// Waits for which the caller set no deadline.
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
        // A caller with a Bounded limit is not prepared for an exception from a signal handler.
        if (Bounded::limit() == kForever && in_python(PyErr_CheckSignals) != 0) throw nb::python_error();
    }
}

}  // namespace dragon::py
