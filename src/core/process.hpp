// Starts executables. Everything is prepared before the fork, so that the child only makes system calls.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dragon {

// The umask can only be read by changing it: files that another thread creates meanwhile are accessible only
// to their owner.
mode_t current_umask();

// Soft and hard resource limits by number, then the niceness.
using Limits = std::vector<int64_t>;

Limits current_limits();

// Whether the limits include one of the address space.
bool limits_addresses(const Limits& limits);

// Applies the limits, or the nearest ones that are allowed to this user. System calls only.
void take_limits(const Limits& limits);

// Makes orphaned descendants of this process its children, if the kernel supports it.
void become_reaper();

// A process's handling of signals, as sets: signals that are ignored, signals that are blocked, and signals
// with the default action although Python would change it (SIGINT, SIGPIPE, SIGXFSZ). Signal n is bit n - 1.
struct Signals {
    uint64_t ignored, blocked, defaults;
};

// The signal handling of the calling thread; nullopt if it is that of a new interpreter.
std::optional<Signals> current_signals();

// Sets the blocked signals of the calling thread. A system call only.
void block_signals(uint64_t set);

struct Launch {
    std::string executable;
    std::vector<std::string> arguments, environment;
    std::string folder;              // empty: the caller's
    std::vector<int> descriptors;    // become 0, 1, 2 …; all others are closed on exec as they are marked
    std::vector<int> cpus;           // empty: the caller's
    Limits limits;                   // empty: the caller's
    std::optional<Signals> signals;  // nullopt: defaults, but SIGHUP stays ignored if the caller ignores it
    int death_signal = 0;            // sent to the child when the calling thread ends
    bool reaper = false;             // its orphaned descendants become its children
    bool detached = false;           // not a child of the caller; for the agent
};

// Returns the process id. Throws a SystemFailure that names the failed step and its object.
pid_t launch(const Launch& what);

}  // namespace dragon
