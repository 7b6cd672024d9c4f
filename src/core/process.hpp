// Starting an executable: everything is prepared before, so that the child only makes system calls.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dragon {

// The system tells it only when it is changed. What another thread creates meanwhile is for its owner alone.
mode_t current_umask();

// Soft and hard resource limits by number, then the niceness.
using Limits = std::vector<int64_t>;

Limits current_limits();

// Be limited like that, or as like that as this user may; system calls only.
void take_limits(const Limits& limits);

struct Launch {
    std::string executable;
    std::vector<std::string> arguments, environment;
    std::string folder;            // empty: the caller's
    std::vector<int> descriptors;  // become 0, 1, 2 …; all others are closed on exec as they are marked
    std::vector<int> cpus;         // empty: the caller's
    Limits limits;                 // empty: the caller's
    int death_signal = 0;          // sent to the child when the calling thread ends
    bool detached = false;         // not a child of the caller; for the agent
};

// Returns the process id. Throws SystemFailure that names the step that failed and what it was about.
pid_t launch(const Launch& what);

}  // namespace dragon
